"""The notebook's cells run in order and print the stored outputs.

To store the outputs anew: python tests/examples/test_notebook.py
"""

import ast
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"

# Executes the code cells in one namespace, and writes what each cell printed to a file: the JVM shares standard output.
RUNNER = """
import contextlib, io, json, sys

cells, printed, scope = json.load(open(sys.argv[1])), [], {"__name__": "__main__"}
for cell in cells:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(cell, scope)
    printed.append(output.getvalue())
json.dump(printed, open(sys.argv[2], "w"))
"""


def document() -> Any:
    return json.loads(NOTEBOOK.read_text())


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def stored(cell: Any) -> str:
    """Return the output of a cell, which is text on standard output and nothing else."""
    assert all((output["output_type"], output["name"]) == ("stream", "stdout") for output in cell["outputs"])
    return "".join(line for output in cell["outputs"] for line in output["text"])


def execute(notebook: Any, folder: Path) -> list[str]:
    """Return the text that each code cell printed."""
    cells, printed = folder / "cells.json", folder / "printed.json"
    cells.write_text(json.dumps(["".join(cell["source"]) for cell in code_cells(notebook)]))
    command = [sys.executable, "-c", RUNNER, str(cells), str(printed)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    outputs: list[str] = json.loads(printed.read_text())
    return outputs


def test_notebook_has_title_and_stored_outputs() -> None:
    notebook = document()
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["cells"][0]["cell_type"] == "markdown"
    assert notebook["cells"][0]["source"][0].startswith("# ")
    cells = code_cells(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert [bool(stored(cell)) for cell in cells] == [*[True] * (len(cells) - 1), False]
    for cell in cells:
        ast.parse("".join(cell["source"]))


@pytest.mark.spark
@pytest.mark.slow
def test_cells_print_stored_outputs(tmp_path: Path) -> None:
    notebook = document()
    assert execute(notebook, tmp_path) == [stored(cell) for cell in code_cells(notebook)]


def store_outputs() -> None:
    """Execute the notebook and write its outputs in Jupyter's format."""
    notebook = document()
    with tempfile.TemporaryDirectory() as folder:
        printed = execute(notebook, Path(folder))
    for number, (cell, text) in enumerate(zip(code_cells(notebook), printed, strict=True), 1):
        cell["execution_count"] = number
        lines = text.splitlines(keepends=True)
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    store_outputs()
