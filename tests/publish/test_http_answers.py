"""What a receiver's answer means."""

from datetime import UTC, datetime

import pytest

from penstock.lifecycle import PUBLISHED, Dead, Retry
from penstock.publish.http_answers import outcome, retry_after

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
def test_retry_after(value: str, seconds: float | None) -> None:
    assert retry_after(value, NOW) == seconds


@pytest.mark.parametrize("status", range(100, 600))
def test_every_status_means_something(status: int) -> None:
    meaning = outcome(status, "Reason", {"retry-after": "3"}, "why", NOW)
    if status // 100 == 2:
        assert meaning == PUBLISHED
        return
    assert isinstance(meaning, Retry | Dead)
    assert meaning.error.startswith(f"the receiver answered {status} Reason")
    assert meaning.error.endswith(": why")
    if status // 100 == 4 and status not in (401, 403, 404, 407, 408, 425, 429):
        assert isinstance(meaning, Dead)
    else:
        assert isinstance(meaning, Retry)
        assert meaning.delay_seconds == 3.0


def test_an_answer_without_words_is_its_number() -> None:
    assert outcome(500, "", {}, " \n", NOW) == Retry("the receiver answered 500")


def test_long_words_are_cut() -> None:
    meaning = outcome(400, "Bad Request", {}, "x" * 201, NOW)
    assert isinstance(meaning, Dead)
    assert meaning.error == "the receiver answered 400 Bad Request: " + "x" * 199 + "…"
