"""The prose of code and documentation: plain technical English, measured by words that mark another manner."""

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.test_tidy import ROOT, files

# The permitted number of marked words in 10,000.
LIMITS = {
    r"\bwhat\b": 12,
    r"\b(told|errands?|tells?|is said|those who|whoever|nobody|somebody|hands over|bell|lull|kin)\b": 3,
}
CODE_BLOCK = re.compile(r"```.*?```", re.DOTALL)


def prose_of_code() -> Iterator[tuple[Path, str]]:
    for path in files():
        if path.suffix == ".py":
            yield path, " ".join((*docstrings(ROOT / path), *comments(ROOT / path)))


def docstrings(path: Path) -> Iterator[str]:
    """Yield the docstrings, those of attributes included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def comments(path: Path) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def prose_of_docs() -> Iterator[tuple[Path, str]]:
    for path in files():
        if path.suffix == ".md" and path.name != "CHANGELOG.md":
            yield path, CODE_BLOCK.sub(" ", (ROOT / path).read_text())


@pytest.mark.parametrize("pages", [prose_of_code, prose_of_docs])
@pytest.mark.parametrize("marker", LIMITS)
def test_marked_words_are_rare(pages: Callable[[], Iterator[tuple[Path, str]]], marker: str) -> None:
    texts = dict(pages())
    words = sum(len(re.findall(r"[A-Za-z']+", text)) for text in texts.values())
    found = {str(path): len(re.findall(marker, text, re.IGNORECASE)) for path, text in texts.items()}
    most = sorted(((count, path) for path, count in found.items() if count), reverse=True)[:10]
    assert words > 10_000
    assert 10_000 * sum(found.values()) / words <= LIMITS[marker], most
