"""The frozen lines of one kind, in a separate file."""

from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).parent / "frozen"


def read(name: str) -> list[str]:
    """Return the frozen lines."""
    path = FOLDER / f"{name}.txt"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def write(name: str, lines: Iterable[str]) -> None:
    """Replace the frozen lines."""
    (FOLDER / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def difference(name: str, lines: Iterable[str]) -> list[str]:
    """Return the removed lines, marked with `-`, and the added lines, marked with `+`."""
    frozen, found = set(read(name)), set(lines)
    return [*(f"- {line}" for line in sorted(frozen - found)), *(f"+ {line}" for line in sorted(found - frozen))]
