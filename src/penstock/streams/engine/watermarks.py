"""Time in a stream: watermarks of the state partitions, and the driver's record of their timers.

A watermark is the largest time of a state partition's events, minus the allowed lateness. A watermark never decreases.
A state partition without events has no progress: see `IdleAdvance`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from penstock.streams.state.api import Saved


@dataclass(frozen=True, slots=True)
class IdleAdvance:
    """Advance of the watermark of a state partition without events for `seconds`.

    The watermark advances to `watermark`, the lowest watermark of the state partitions with recent events. If the whole
    stream is idle, `watermark` is None and the watermark follows the clock, `seconds` behind: an event is not late if
    its delay exceeds the delay of the last event by less than `seconds`.
    """

    seconds: float
    watermark: float | None = None


@dataclass(frozen=True, slots=True)
class Watermark:
    """Event-time progress of a state partition, in seconds since 1970."""

    reached: float
    """The watermark: windows that end at or before this time are closed, and timers up to this time have fired."""
    largest: float
    """Largest time of an event."""
    seen_at: float
    """Clock time when the last event was processed."""

    @classmethod
    def read(cls, saved: Saved | None) -> "Watermark | None":
        return None if saved is None else cls(*json.loads(saved.data))

    def saved(self) -> Saved:
        return Saved(json.dumps([self.reached, self.largest, self.seen_at]).encode())

    def quiet(self, idle_advance: IdleAdvance, lateness_seconds: float, now: float) -> "Watermark":
        """Return the watermark after the idle advance."""
        target = idle_advance.watermark
        if target is None:
            passed = now - self.seen_at - idle_advance.seconds
            target = round(self.largest + passed - lateness_seconds, 6)
        return Watermark(max(self.reached, target), self.largest, self.seen_at)


def seen(before: Watermark | None, time: float, lateness_seconds: float, now: float) -> Watermark:
    """Return the watermark after an event with this time."""
    reached = round(time - lateness_seconds, 6)
    if before is None:
        return Watermark(reached, time, now)
    return Watermark(max(before.reached, reached), max(before.largest, time), now)


@dataclass(frozen=True, slots=True)
class ClockReport:
    """Timers and watermark of one state partition after a transaction, for the driver."""

    fired: int = 0
    next_at: float | None = None
    """Time when the first timer is due, in seconds since 1970."""
    watermark: float | None = None
    seen: bool = False
    """True if the transaction had events with a time."""

    @classmethod
    def read(cls, text: str) -> "ClockReport":
        return cls(**json.loads(text))

    def text(self) -> str:
        return json.dumps(asdict(self))


class Clocks:
    """The driver's record of the timers and watermarks of all state partitions. Names those to process without events.

    Idle time counts from the first batch with events, or from the first time when the source was empty, whichever is
    earlier. Before that, events may be waiting in the source, however long the driver takes to start.
    """

    def __init__(self, parts: int, *, event_time: bool, idle_close_seconds: float | None) -> None:
        self._parts = range(parts)
        self._event_time = event_time
        self._idle_seconds = idle_close_seconds
        self._idle_from: float | None = None
        self.fired = 0
        """Number of fired timers in all reports."""
        self._reports: dict[int, ClockReport] = {}
        self._active: dict[int, tuple[float, float]] = {}

    def note(self, reports: Mapping[int, ClockReport], now: float) -> None:
        """Store the reports of state partitions after their transactions."""
        self._reports.update(reports)
        self.fired += sum(report.fired for report in reports.values())
        for part, report in reports.items():
            if report.seen and report.watermark is not None:
                self._active[part] = report.watermark, now
        if any(report.seen for report in reports.values()):
            self.count_idle_from(now)

    def count_idle_from(self, now: float) -> None:
        """Start counting the idle time now, unless it is already counting."""
        if self._idle_from is None:
            self._idle_from = now

    def doubt(self, parts: Iterable[int] | None = None) -> None:
        """Discard the reports of these state partitions, or of all, after a failure: their timers are unknown."""
        for part in self._parts if parts is None else parts:
            self._reports.pop(part, None)

    def due(self, now: float) -> frozenset[int]:
        """Return the state partitions to process without events: a timer is or may be due, or there is no report."""
        return frozenset(part for part in self._parts if self._is_due(part, now))

    def idle_advances(self, now: float) -> dict[int, IdleAdvance]:
        """Return the advances of the state partitions that have been idle for long enough."""
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
