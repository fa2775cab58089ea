"""What time it is in a stream: how far the events of a part have come, and what a driver knows of its parts.

A part's watermark is the largest time of its events, less what they may be late. It never goes back. A part without
events has no progress of its own: see `IdleAdvance`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from penstock.streams.state.api import Saved


@dataclass(frozen=True, slots=True)
class IdleAdvance:
    """A part that has had no event for so many seconds moves on: to the watermark of those that have, or, if the whole
    stream is quiet, by the time that has passed since.

    It stays behind by those seconds: an event is not late that takes less than them longer than the last one did.
    """

    seconds: float
    watermark: float | None = None


@dataclass(frozen=True, slots=True)
class Watermark:
    """How far the events of a part have come, in seconds since 1970."""

    reached: float
    """Up to here windows are closed and timers have fired."""
    largest: float
    """The largest time of an event."""
    seen_at: float
    """When the last event was processed."""

    @classmethod
    def read(cls, saved: Saved | None) -> "Watermark | None":
        return None if saved is None else cls(*json.loads(saved.data))

    def saved(self) -> Saved:
        return Saved(json.dumps([self.reached, self.largest, self.seen_at]).encode())

    def quiet(self, idle_advance: IdleAdvance, lateness_seconds: float, now: float) -> "Watermark":
        """What it is after a while without events."""
        target = idle_advance.watermark
        if target is None:
            passed = now - self.seen_at - idle_advance.seconds
            target = round(self.largest + passed - lateness_seconds, 6)
        return Watermark(max(self.reached, target), self.largest, self.seen_at)


def seen(before: Watermark | None, time: float, lateness_seconds: float, now: float) -> Watermark:
    """The watermark after an event of such a time."""
    reached = round(time - lateness_seconds, 6)
    if before is None:
        return Watermark(reached, time, now)
    return Watermark(max(before.reached, reached), max(before.largest, time), now)


@dataclass(frozen=True, slots=True)
class ClockReport:
    """Time of a part after a transaction, for the driver."""

    fired: int = 0
    next_at: float | None = None
    """When the first of its timers is due."""
    watermark: float | None = None
    seen: bool = False
    """Whether there were events that have a time."""

    @classmethod
    def read(cls, text: str) -> "ClockReport":
        return cls(**json.loads(text))

    def text(self) -> str:
        return json.dumps(asdict(self))


class Clocks:
    """What a driver knows of the time in its parts: which of them have something to do without any event.

    Idle time counts from the first batch with events, or from when the source was first found drained, whichever comes
    first: until then events may wait in the source, however long the driver takes to start.
    """

    def __init__(self, parts: int, *, event_time: bool, idle_close_seconds: float | None) -> None:
        self._parts = range(parts)
        self._event_time = event_time
        self._idle_seconds = idle_close_seconds
        self._idle_from: float | None = None
        self.fired = 0
        """How many timers it has heard of that fired."""
        self._reports: dict[int, ClockReport] = {}
        self._active: dict[int, tuple[float, float]] = {}

    def note(self, reports: Mapping[int, ClockReport], now: float) -> None:
        """These parts have had a transaction."""
        self._reports.update(reports)
        self.fired += sum(report.fired for report in reports.values())
        for part, report in reports.items():
            if report.seen and report.watermark is not None:
                self._active[part] = report.watermark, now
        if any(report.seen for report in reports.values()):
            self.count_idle_from(now)

    def count_idle_from(self, now: float) -> None:
        """Let idle time count from now, unless it counts already."""
        if self._idle_from is None:
            self._idle_from = now

    def doubt(self, parts: Iterable[int] | None = None) -> None:
        """Something has failed: what these parts hold, or all, is not known."""
        for part in self._parts if parts is None else parts:
            self._reports.pop(part, None)

    def due(self, now: float) -> frozenset[int]:
        """The parts to look after: something is due, or may be, or nothing is known of them."""
        return frozenset(part for part in self._parts if self._is_due(part, now))

    def idle_advances(self, now: float) -> dict[int, IdleAdvance]:
        """The parts that have had no event for so long that they move on without one."""
        if not self._event_time or self._idle_seconds is None or self._idle_from is None:
            return {}
        if now < self._idle_from + self._idle_seconds:
            return {}
        recent = {part: mark for part, (mark, at) in self._active.items() if now < at + self._idle_seconds}
        idle_advance = IdleAdvance(self._idle_seconds, min(recent.values()) if recent else None)
        return {part: idle_advance for part in self._parts if part not in recent}

    def _is_due(self, part: int, now: float) -> bool:
        report = self._reports.get(part)
        if report is None:
            return True
        if report.next_at is None:
            return False
        if not self._event_time:
            return report.next_at <= now
        return (report.watermark is not None and report.next_at <= report.watermark) or part in self.idle_advances(now)
