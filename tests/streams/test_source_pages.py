"""Code examples of the source guides create the streams that the guides describe."""

import re
from pathlib import Path
from typing import Any

import pytest

from penstock.streams.sources import Frame, Kafka

DOCS = Path(__file__).parents[2] / "docs" / "guides"


@pytest.mark.parametrize(("page", "kind"), [("kafka-source", Kafka), ("frame-source", Frame)])
def test_source_page_code_runs(page: str, kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "shop"}
    (block,) = re.findall(r"^```python\n(.*?)^```", (DOCS / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL)
    exec(compile(block, page, "exec"), names)
    assert isinstance(names["app"].streams["total"].source, kind)
