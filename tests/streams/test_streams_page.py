"""The code of the pages about streams runs."""

import re
from pathlib import Path
from typing import Any

import pytest

PAGES = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("page", "count"), [("streams.md", 3), ("windows.md", 3)])
def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str, count: int) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "shop"}
    blocks = re.findall(r"^```python\n(.*?)^```", (PAGES / page).read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == count
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    assert names["harness"] is not None
