"""Commands that need Spark, in an installation without PySpark."""

import subprocess
import sys
from pathlib import Path

import pytest

# `None` in `sys.modules` makes a module appear as not installed.
PROGRAM = "import sys; sys.modules['pyspark'] = None; from penstock.cli import main; sys.exit(main())"
APPLICATION = """
from penstock import Streams

app = Streams("sqlite:///shop.db")


@app.stream("orders", name="total")
def total(event, ctx):
    pass
"""


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", PROGRAM, *arguments], cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("command", "subject"),
    [
        (("relay", "--to", "null:", "--store", "sqlite:///shop.db"), "the relay"),
        (("streams", "run", "shop:app"), "a stream"),
        (("demo",), "the demo"),
    ],
)
def test_missing_pyspark_is_named_with_its_extra(tmp_path: Path, command: tuple[str, ...], subject: str) -> None:
    (tmp_path / "shop.py").write_text(APPLICATION)
    assert run(tmp_path, "init", "--store", "sqlite:///shop.db").returncode == 0
    ran = run(tmp_path, *command)
    message = f"error: {subject} requires an extra that is not installed; run: pip install 'penstock[spark]'\n"
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", message)
