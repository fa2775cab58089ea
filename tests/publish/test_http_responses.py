"""Outcomes of HTTP responses."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.model.outcome import Dead, Retry
from penstock.publish.http.responses import failure, retry_after

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120.0),
        (" 7 ", 7.0),
        ("Thu, 01 Jan 2026 12:00:30 GMT", 30.0),
        ("Thursday, 01-Jan-26 12:00:30 GMT", 30.0),
        ("Thu Jan  1 12:00:30 2026", 30.0),
        ("9" * 400, 86_400.0),
        ("172800", 86_400.0),
        ("Thu, 01 Jan 2099 12:00:00 GMT", 86_400.0),
        ("0", None),
        ("Thu, 01 Jan 2026 11:59:59 GMT", None),
        ("", None),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("٣", None),
    ],
)
def test_retry_after_is_parsed(value: str, seconds: float | None) -> None:
    assert retry_after(value, NOW) == seconds


@pytest.mark.parametrize("status", [*range(100, 200), *range(300, 600)])
def test_every_status_is_retry_or_dead_with_error(status: int) -> None:
    meaning = failure(status, "Reason", {"retry-after": "3"}, "why", NOW)
    assert meaning.error.startswith(f"the receiver answered {status} Reason")
    assert meaning.error.endswith(": why")
    if status // 100 == 4 and status not in (401, 403, 404, 407, 408, 425, 429):
        assert isinstance(meaning, Dead)
    else:
        assert isinstance(meaning, Retry)
        assert meaning.delay_seconds == 3.0


def test_destinations_page_lists_each_status_with_its_outcome() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "destinations.md").read_text()
    listed: dict[str, set[int]] = {"retry": set(), "dead": set()}
    for answer, ends in re.findall(r"^\| \| (4\d\d, [^|]*) \| (retry|dead)", page, re.MULTILINE):
        listed[ends] |= {int(status) for status in re.findall(r"\d{3}", answer)}
    assert listed["retry"] == {
        status for status in range(400, 500) if isinstance(failure(status, "", {}, "", NOW), Retry)
    }
    assert listed["dead"] == {400, 405, 409, 410, 413, 415, 422}
    assert not listed["dead"] & listed["retry"]


def test_empty_response_error_is_status_number() -> None:
    assert failure(500, "", {}, " \n", NOW) == Retry("the receiver answered 500")


def test_long_response_text_is_cut() -> None:
    meaning = failure(400, "Bad Request", {}, "x" * 201, NOW)
    assert isinstance(meaning, Dead)
    assert meaning.error == "the receiver answered 400 Bad Request: " + "x" * 199 + "…"
