"""Rules for the folders of `src/penstock` and for the imports between its modules."""

import ast
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.architecture import imports
from tests.test_tidy import listed

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "penstock"
FOLDER_MODULES = 15
PREFIX_MODULES = 2

MODULES = sorted(PACKAGE.rglob("*.py"))


def folders() -> dict[str, list[str]]:
    """Return the names of the modules of each folder, without `__init__` and `__main__`."""
    found: dict[str, list[str]] = {}
    for path in MODULES:
        if not path.stem.startswith("__"):
            found.setdefault(str(path.parent.relative_to(ROOT)), []).append(path.stem)
    return found


def shared_prefixes(names: list[str]) -> dict[str, list[str]]:
    """Return the modules by the first word of their names, for words that more than two modules share."""
    firsts = Counter(name.split("_")[0] for name in names)
    shared = {first for first, count in firsts.items() if count > PREFIX_MODULES}
    return {first: [name for name in names if name.split("_")[0] == first] for first in sorted(shared)}


def lazy_imports(code: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the module of each import of `penstock` inside a function."""
    for function in ast.walk(ast.parse(code)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                for name in _imported(node):
                    if name.split(".")[0] == "penstock":
                        yield node.lineno, name


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or "penstock"]  # a relative import is an import of penstock
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def test_folders_have_at_most_15_modules() -> None:
    counts = {folder: len(names) for folder, names in folders().items()}
    crowded = [f"{folder}: {count}" for folder, count in counts.items() if count > FOLDER_MODULES]
    assert crowded == [], listed(crowded)


def test_at_most_two_modules_of_folder_share_prefix() -> None:
    """Modules with a common prefix belong in a folder."""
    shared = [
        f"{folder}: {', '.join(group)}"
        for folder, names in folders().items()
        for group in shared_prefixes(names).values()
    ]
    assert shared == [], listed(shared)


def test_modules_have_no_import_cycles() -> None:
    """Lazy imports count as well."""
    found = [" -> ".join(cycle) for cycle in imports.cycles(imports.modules())]
    assert found == [], listed(found)


def test_only_cli_and_package_inits_import_lazily() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in MODULES
        if path.name != "__init__.py" and not path.is_relative_to(PACKAGE / "cli")
        for line, name in sorted(set(lazy_imports(path.read_text())))
    ]
    assert found == [], listed(found)


def test_import_graph_contains_all_modules() -> None:
    names = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in MODULES}
    assert imports.modules().keys() == {name.removesuffix(".__init__") for name in names}


def test_prefixes_are_whole_words() -> None:
    assert shared_prefixes(["state", "state_a", "state_b", "states", "lake_a", "lake_b"]) == {
        "state": ["state", "state_a", "state_b"]
    }


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import penstock\nfrom penstock.model import event", []),
        (
            "def f():\n    from penstock.model import event\n    import json, penstock.store.api",
            ["penstock.model", "penstock.store.api"],
        ),
        ("class A:\n    async def f(self):\n        from . import b", ["penstock"]),
        ("def f():\n    import pyspark\n    import penstocks", []),
    ],
)
def test_lazy_imports_are_found(code: str, expected: list[str]) -> None:
    assert [name for _, name in lazy_imports(code)] == expected


def test_cycles_are_listed_in_import_direction() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a", "e"}, "e": {"d"}}
    found = list(imports.cycles(graph))
    assert sorted(sorted({*cycle}) for cycle in found) == [["a", "b", "c"], ["d", "e"]]
    for cycle in found:
        assert all(other in graph[name] for name, other in pairwise(cycle))


def test_edges_implied_by_longer_paths_are_removed() -> None:
    graph = {"cli": {"store", "model", "admin"}, "admin": {"store"}, "store": {"model"}, "model": set()}
    assert imports.reduced(graph) == {"cli": {"admin"}, "admin": {"store"}, "store": {"model"}, "model": set()}
