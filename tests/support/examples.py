"""The programs in `examples`, and the output that each of them ends with."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
HEADING = "# Output:"
ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def run(name: str, *arguments: str, folder: Path | None = None) -> list[str]:
    """Run an example as a program, in a folder, and return the lines that it prints."""
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip("\n").splitlines()


def output_block(name: str) -> list[str]:
    """Return the lines of the comment that ends an example."""
    _, heading, block = (EXAMPLES / name).read_text().partition(f"\n{HEADING}\n")
    lines = block.splitlines()
    assert heading, f"{name} has no comment {HEADING!r}"
    assert all(line == "#" or line.startswith("# ") for line in lines), f"{name} does not end with its output"
    return [line.removeprefix("#").removeprefix(" ") for line in lines]


def without_ids(lines: list[str]) -> list[str]:
    """Replace event ids, which differ between runs."""
    return [ID.sub("ID", line) for line in lines]
