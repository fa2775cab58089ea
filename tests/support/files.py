"""Files that another process waits for."""

from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write the file atomically: a reader sees the complete text or no file."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text)
    draft.rename(path)
