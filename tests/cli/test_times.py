"""Parsing of times and durations on the command line."""

from datetime import UTC, datetime, timedelta

import pytest

from penstock.cli.terminal import times
from penstock.model.errors import UsageError

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("0", 0),
        ("1.5", 1.5),
        ("90s", 90),
        ("10m", 600),
        ("10 min", 600),
        ("2H", 7_200),
        ("3d", 259_200),
        ("1w", 604_800),
    ],
)
def test_durations_are_parsed(text: str, length: float) -> None:
    assert times.seconds(text) == length


@pytest.mark.parametrize("text", ["", "m", "-1", "10 fortnights", "1e9", "inf", "9" * 40])
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        times.seconds(text)


def test_durations_are_times_before_now() -> None:
    assert times.instant("10m", NOW) == NOW - timedelta(minutes=10)
    assert times.instant("1.5h", NOW) == NOW - timedelta(minutes=90)


def test_iso_times_are_parsed() -> None:
    assert times.instant("2026-01-31T12:00Z", NOW) == NOW
    assert times.instant("2026-01-31 13:00:00+01:00", NOW) == NOW
    assert times.instant("2026-01-31", NOW) == datetime(2026, 1, 31).astimezone()
    assert times.instant("20260131", NOW) == datetime(2026, 1, 31).astimezone()


@pytest.mark.parametrize("text", ["", "yesterday", "31.1.2026", "2026-13-01", "12345", "10x", "0001-01-01T00:00+14:00"])
def test_invalid_times_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        times.instant(text, NOW)
