"""Dotted paths of Penstock in the README, the documentation and the examples."""

import re
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

ROOT = Path(__file__).parents[2]
PATH = re.compile(r"(?<![\w./@-])penstock(?:\.[A-Za-z_]\w*)+")
IMPORT = re.compile(r"from (penstock[\w.]*) import \(?\s*(\w+(?: as \w+)?(?:,\s*\w+(?: as \w+)?)*)")
FILES = re.compile(r".+\.(?:db|toml)")  # penstock.db, penstock.toml


def lines() -> list[str]:
    """Return each dotted path that the documentation contains."""
    found = {path for text in _texts() for path in _paths(text)}
    return sorted(path for path in found if not FILES.fullmatch(path))


def resolves(path: str) -> bool:
    """True if the path is a module, or an attribute of a module."""
    try:
        resolve_name(path)
    except (ImportError, AttributeError):
        return False
    return True


def _texts() -> Iterator[str]:
    files = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.py")]
    return (path.read_text() for path in files)


def _paths(text: str) -> Iterator[str]:
    yield from PATH.findall(text)
    for module, names in IMPORT.findall(text):
        yield from (f"{module}.{name.split()[0]}" for name in names.split(","))
