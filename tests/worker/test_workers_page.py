"""The guide to workers: its code runs, and it lists every option with its default."""

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from penstock import AckPolicy
from penstock.worker import HandlerOptions

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "workers.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def rows() -> dict[str, str]:
    """Return the second column of table rows that begin with code, by the names in the first column."""
    found: dict[str, str] = {}
    for first, second in re.findall(r"^\| (`[^|]+) \| ([^|]+) \|", PAGE, re.MULTILINE):
        found |= dict.fromkeys(re.findall(r"`(\w+)`", first), second)
    return found


def test_page_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    *blocks, _ = BLOCKS
    assert len(blocks) >= 6
    names: dict[str, Any] = {"__name__": "shop"}
    for block in blocks:
        exec(compile(block, "workers.md", "exec"), names)
    worker = names["worker"]
    assert [one.queue for one in worker.registered] == ["emails", "newsletters", "payments", "orders"]
    assert [one.name for one in worker.periodics] == ["reports/report.due", "weekly"]


def test_page_example_of_handler_test_passes(tmp_path: Path) -> None:
    path = tmp_path / "test_reminders.py"
    path.write_text(BLOCKS[-1])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


@pytest.mark.parametrize("field", fields(HandlerOptions), ids=lambda field: field.name)
def test_page_lists_every_option_with_default(field: Any) -> None:
    default = rows()[field.name]
    match field.default:
        case bool():
            assert default == "true"
        case int() | float():
            assert default == f"{field.default:g}"
        case _:
            assert default


def test_page_lists_every_ack_policy() -> None:
    assert {policy.name for policy in AckPolicy} <= rows().keys()
