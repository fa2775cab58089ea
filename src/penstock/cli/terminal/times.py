"""Parsers of times and durations as users type them. Pure: the caller passes the current time."""

import re
from datetime import datetime, timedelta

from penstock.model.errors import UsageError
from penstock.model.event import LONGEST_SECONDS

_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_LENGTH = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


def seconds(text: str) -> float:
    """Return the seconds of a duration: a number of seconds, or a number with a unit, such as 10m, 2h, 3d."""
    found = _LENGTH.fullmatch(text.strip().lower())
    if found is None or found[2] not in _SECONDS:
        raise UsageError(f"invalid duration {text!r}; expected seconds, or a value such as 10m, 2h or 3d")
    length = float(found[1]) * _SECONDS[found[2]]
    if length > LONGEST_SECONDS:
        raise UsageError(f"duration must be at most 100 years, got {text!r}")
    return length


def instant(text: str, now: datetime) -> datetime:
    """Return an ISO time (local time zone by default), or the time an age ago: 10m is ten minutes before `now`."""
    if _LENGTH.fullmatch(text.strip().lower()) and not text.strip().isdecimal():
        return now - timedelta(seconds=seconds(text))
    return iso(text)


def iso(text: str) -> datetime:
    """Return an ISO time, in the local time zone by default."""
    try:
        return datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"invalid time {text!r}; expected ISO 8601, such as 2026-01-31, 2026-01-31T12:00 or 2026-01-31T12:00Z"
        ) from error
