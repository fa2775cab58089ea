"""The jobs guide: its Python code runs unchanged, and its curl commands print the output shown in the guide."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "jobs.md").read_text()
SOON = 60.0
PENSTOCK = [sys.executable, "-c", "import sys; from penstock.cli import main; sys.exit(main())"]
PAGES_SERVER = "http://127.0.0.1:8070"
COMMAND = "$ "


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_guide_python_code_runs(tmp_path: Path) -> None:
    script = "\n".join(blocks("python"))
    subprocess.run([*PENSTOCK, "init", "--store", "sqlite:///jobs.db"], cwd=tmp_path, check=True, capture_output=True)
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=SOON)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The server started as in the guide, but on a free port."""
    (commands,) = blocks("sh")
    assert commands == "penstock init\nPENSTOCK_JOBS_TOKEN=correct-horse penstock jobs serve\n"
    environment = {**os.environ, "PENSTOCK_STORE": "sqlite:///jobs.db", "PENSTOCK_JOBS_TOKEN": "correct-horse"}
    subprocess.run([*PENSTOCK, "init"], cwd=tmp_path, env=environment, check=True, capture_output=True)
    command = [*PENSTOCK, "jobs", "serve", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        yield started.stdout.readline().split()[-1]
        started.terminate()


def test_guide_curl_output_matches_server(server: str, tmp_path: Path) -> None:
    for program in ("curl", "jq", "bash"):
        if shutil.which(program) is None and os.environ.get("CI") != "true":
            pytest.skip(f"{program} is not installed")
    lines = [line for block in blocks("console") for line in block.splitlines()]
    assert sum(line.startswith(COMMAND) for line in lines) >= 20
    script = [line.removeprefix(COMMAND) for line in lines if line.startswith(COMMAND)]
    # Print each command before its output, so that the whole output equals the console blocks of the guide.
    announced = [f"cat <<'EOF'\n{COMMAND}{line}\nEOF\n{line}" for line in script]
    text = "\n".join(announced).replace(PAGES_SERVER, server)
    done = subprocess.run(["bash", "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=SOON)
    assert done.stderr == ""
    assert done.stdout.replace(server, PAGES_SERVER).splitlines() == lines
