"""The tree of packages on the architecture page, and the tree on disk."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.picture import PAGE

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "penstock"
TREE = re.compile(r"^src/penstock/\n(.*?)^```", re.DOTALL | re.MULTILINE)
ENTRY = re.compile(r"( +)([\w.]+/?) +\S")
INDENT = 2


def shown() -> list[str]:
    """Return the packages and top-level modules in the page's tree, as paths below `src/penstock`."""
    found = TREE.search(PAGE.read_text())
    return list(_paths(found[1])) if found else []


def _paths(block: str) -> Iterator[str]:
    folders: list[str] = []
    for line in block.splitlines():
        entry = ENTRY.match(line)
        if entry is None:
            raise ValueError(
                f"no entry of a tree: {line!r}; write two spaces for each level, a name, and a description"
            )
        depth = len(entry[1]) // INDENT - 1
        folders = [*folders[:depth], entry[2]]
        yield "".join(folders)


def on_disk() -> list[str]:
    """Return the packages and top-level modules on disk, without modules whose names begin with `__`."""
    packages = [f"{path.parent.relative_to(PACKAGE)}/" for path in PACKAGE.rglob("__init__.py")]
    modules = [path.name for path in PACKAGE.glob("*.py") if not path.stem.startswith("__")]
    return sorted([*modules, *(package for package in packages if package != "./")])
