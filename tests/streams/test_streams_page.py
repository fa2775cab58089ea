"""Code examples of the streams guides run."""

import re
from pathlib import Path
from typing import Any

import pytest

from penstock.streams.event import StreamEvent
from penstock.testing.streams import StreamHarness

PAGES = Path(__file__).parents[2] / "docs" / "guides"


@pytest.mark.parametrize(("page", "count"), [("streams.md", 4), ("windows.md", 3)])
def test_streams_page_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str, count: int) -> None:
    monkeypatch.chdir(tmp_path)
    assert _run(page, count)["harness"] is not None


def test_states_as_columns_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    harness = StreamHarness(_run("streams.md", 4)["app"], "refunded", f"sqlite:///{tmp_path}/refunds")
    harness.run([StreamEvent(f"{number}", "ada", b'{"amount": 4}') for number in range(3)])
    harness.run([StreamEvent("last", "ada", b'{"amount": 5}')])
    assert harness.state("ada") == {"total": 17}
    harness.close()


def _run(page: str, count: int) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "shop"}
    blocks = re.findall(r"^```python\n(.*?)^```", (PAGES / page).read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == count
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    return names
