"""The README's blocks run as they stand, from top to bottom, in one folder."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


def blocks() -> list[tuple[str, str]]:
    found = re.findall(r"^```(python|sh)\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    return [(kind, text) for kind, text in found if not text.startswith("make ")]


def make_targets() -> set[str]:
    return set(re.findall(r"^make (\w+)", README.read_text(), re.MULTILINE))


def test_the_make_commands_exist() -> None:
    makefile = README.with_name("Makefile").read_text()
    assert make_targets() >= {"demo", "test"}
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in make_targets())


@pytest.mark.spark
@pytest.mark.slow
def test_the_blocks_run(tmp_path: Path) -> None:
    output = Path("/tmp/penstock-readme")
    shutil.rmtree(output, ignore_errors=True)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment["PENSTOCK_STORE"] = "sqlite:///shop.db"
    assert len(blocks()) >= 4
    for kind, text in blocks():
        command = [sys.executable, "-c", text] if kind == "python" else ["sh", "-ec", text]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180, check=False
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    lines = [line for path in output.rglob("*.jsonl") for line in path.read_text().splitlines()]
    shutil.rmtree(output)
    assert len(lines) == 1
    assert '"order.placed"' in lines[0]
