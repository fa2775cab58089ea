"""Event-time windows, as plain values: the windows of a time, and the names of window states. No clock.

Bounds are computed in whole microseconds since 1970, so that floating-point rounding shifts no window.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from penstock.model.errors import UsageError
from penstock.streams.state.api import EPOCH

# Separates the key from the window's start in the name of a window's state. Other states of a windowed stream do not
# have a name of this form.
BETWEEN = "\x02"
MOST_AT_ONCE = 10_000
MICROSECOND = timedelta(microseconds=1)


class Window(NamedTuple):
    """Time span from `start` up to `end`, exclusive."""

    start: datetime
    end: datetime

    def overlaps(self, other: "Window") -> bool:
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Consecutive windows of this length, counted from 1970."""

    seconds: float

    def __post_init__(self) -> None:
        _positive("seconds", self.seconds)

    def windows_of(self, at: datetime) -> Sequence[Window]:
        """Return the one window that contains a time."""
        return _windows(at, self.seconds, self.seconds)


@dataclass(frozen=True, slots=True)
class Sliding:
    """Overlapping windows of this length; a new window begins every `every` seconds. A time can be in several
    windows."""

    seconds: float
    every: float

    def __post_init__(self) -> None:
        _positive("seconds", self.seconds)
        _positive("every", self.every)
        if self.every > self.seconds:
            raise UsageError(f"every must be at most seconds ({self.seconds}), got {self.every}")
        if self.seconds / self.every > MOST_AT_ONCE:
            raise UsageError(f"seconds must be at most {MOST_AT_ONCE} times every, got {self.seconds} and {self.every}")

    def windows_of(self, at: datetime) -> Sequence[Window]:
        """Return the windows that contain a time, in the order of their ends."""
        return _windows(at, self.seconds, self.every)


@dataclass(frozen=True, slots=True)
class Session:
    """Window of the events that follow each other within less than a gap. The window ends a gap after its last
    event."""

    gap_seconds: float

    def __post_init__(self) -> None:
        _positive("gap_seconds", self.gap_seconds)

    def windows_of(self, at: datetime) -> Sequence[Window]:
        """Return the window that an event would form alone."""
        return [Window(at, at + timedelta(seconds=self.gap_seconds))]


Windows = Tumbling | Sliding | Session


def window_key(key: str, window: Window) -> str:
    """Return the name of a window's state."""
    return f"{key}{BETWEEN}{micros(window.start)}"


def window_of(key: str) -> tuple[str, datetime] | None:
    """Return the key and the window start in the name of a window's state; None for other names."""
    own, between, start = key.rpartition(BETWEEN)
    if not between or not start.lstrip("-").isdecimal():
        return None
    return own, EPOCH + int(start) * MICROSECOND


def micros(time: datetime) -> int:
    """Return whole microseconds since 1970."""
    return (time - EPOCH) // MICROSECOND


def seconds_of(time: datetime) -> float:
    """Return seconds since 1970."""
    return micros(time) / 1_000_000


def instant_of(given: datetime | float) -> datetime:
    """Return a time, given as a datetime with time zone or as seconds since 1970."""
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise UsageError(f"time {given} has no time zone; use a datetime such as datetime.now(UTC)")
        return given
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise UsageError(f"time must be a datetime or seconds since 1970, got {type(given).__name__}")
    try:
        return EPOCH + timedelta(seconds=given)
    except (OverflowError, ValueError) as error:
        raise UsageError(f"invalid time {given}; expected seconds since 1970 up to the year 9999") from error


def _windows(time: datetime, seconds: float, every: float) -> list[Window]:
    at, length, step = micros(time), round(seconds * 1_000_000), round(every * 1_000_000)
    last = at - at % step
    first = at - length + 1
    starts = range(last - (last - first) // step * step, last + 1, step)
    return [Window(EPOCH + start * MICROSECOND, EPOCH + (start + length) * MICROSECOND) for start in starts]


def _positive(name: str, seconds: float) -> None:
    if not (math.isfinite(seconds) and round(seconds * 1_000_000) >= 1):
        raise UsageError(f"{name} must be finite and at least 0.000001, got {seconds}")
