"""The code blocks of docs/guides/spark.md run unchanged, from top to bottom, as one script."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.model.event import Event
from penstock.model.selection import Selection
from penstock.outbox import connect
from penstock.pipeline.datasource.columns import COLUMNS as READ
from penstock.pipeline.datasource.reader import SourceOptions
from penstock.pipeline.datasource.writer import COLUMNS as WRITTEN

PAGE = (Path(__file__).parents[1] / "docs" / "guides" / "spark.md").read_text()


def test_page_names_every_column_and_option() -> None:
    named = set(re.findall(r"`(\w+)`", PAGE))
    assert named >= {*READ, *WRITTEN, *SourceOptions.__dataclass_fields__}
    assert {*WRITTEN} == {*Event.__dataclass_fields__}


@pytest.mark.spark
@pytest.mark.slow
def test_code_blocks_run(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    with connect(f"sqlite:///{tmp_path}/shop.db") as outbox:
        queues = {stats.queue: stats for stats in outbox.store.stats().queues}
        assert queues["payments"].published == 3
        published = [line for file in (tmp_path / "large").iterdir() for line in file.read_text().splitlines()]
        assert len(published) == 2
        assert (queues["outbox"].published, queues["invoices"].pending) == (100, 103)
        alarms = outbox.store.find(Selection(queue="alarms")).records
    assert alarms
    assert len({alarm.payload for alarm in alarms}) == len(alarms)
