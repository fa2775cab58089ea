"""Files that another process waits for."""

from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """In one step: who sees the file sees all of it."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text)
    draft.rename(path)
