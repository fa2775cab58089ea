"""The commands and programs of README and of the tutorial run as printed, from top to bottom, in one folder.

A Python block that begins with a file name in a comment is saved under this name. A command line that ends with "#
until Ctrl-C" is interrupted after all events are settled.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.outbox import connect

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, ROOT / "docs" / "tutorial" / "getting-started.md"]
STORE = "sqlite:///shop.db"
UNTIL_INTERRUPTED = "# until Ctrl-C"
LIMIT = 180


def blocks(page: Path) -> list[tuple[str, str]]:
    found = re.findall(r"^```(python|sh)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return [(kind, text) for kind, text in found if not text.startswith("make ")]


def make_targets() -> set[str]:
    return set(re.findall(r"^make (\w+)", README.read_text(), re.MULTILINE))


def test_make_commands_exist() -> None:
    makefile = README.with_name("Makefile").read_text()
    assert make_targets() >= {"demo", "test"}
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in make_targets())


def test_readme_shows_no_test_support() -> None:
    assert "penstock.testing" not in README.read_text()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PENSTOCK_STORE", STORE)
    assert len(blocks(page)) >= 4
    for kind, text in blocks(page):
        if kind == "python":
            run_program(text)
        else:
            run_commands(text)
    (line,) = [line for path in (tmp_path / "events").iterdir() for line in path.read_text().splitlines()]
    assert '"order.placed"' in line


def run_program(text: str) -> None:
    name = re.match(r"# (\w+\.py)\n", text)
    if name:
        Path(name[1]).write_text(text)
    else:
        run([sys.executable, "-c", text])


def run_commands(text: str) -> None:
    lines = text.splitlines()
    if not lines[-1].endswith(UNTIL_INTERRUPTED):
        run(["sh", "-ec", text])
        return
    run(["sh", "-ec", "\n".join(lines[:-1])])
    with subprocess.Popen(["sh", "-ec", f"exec {lines[-1]}"]) as process:
        try:
            await_settled(process)
            process.send_signal(signal.SIGINT)
            assert process.wait(LIMIT) == 0
        finally:
            process.kill()


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"


def await_settled(process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + LIMIT
    with connect(STORE) as outbox:
        while unsettled := [queue for queue in outbox.store.stats().queues if queue.pending or queue.claimed]:
            assert process.poll() is None, f"ended with exit code {process.returncode} and left {unsettled}"
            assert time.monotonic() < deadline, f"not settled after {LIMIT} s: {unsettled}"
            time.sleep(0.1)
