"""Progress of a relay: the counts of its slices, added up and logged."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.pipeline.counts import EventCounts, SliceCounts
from penstock.telemetry import log


@dataclass(slots=True)
class RelayReport(EventCounts):
    """Counts of a relay since its start."""

    reaped: int = 0
    slices: int = 0
    seconds: float = 0.0

    def add(self, counts: SliceCounts) -> None:
        for name in EventCounts.__slots__:
            setattr(self, name, getattr(self, name) + getattr(counts, name))


class RelayProgress:
    """Adds up and reports the counts of slices, and ends a draining relay."""

    def __init__(self, report: RelayReport, once: bool, progress: Callable[[RelayReport], None] | None) -> None:
        self.report = report
        self._once = once
        self._progress = progress
        self._started = time.monotonic()
        self._change = threading.Lock()

    def reaped(self, count: int) -> None:
        self.report.reaped += count

    def enter(self, queue: str, _number: int, counts: list[SliceCounts]) -> bool:
        with self._change:
            self.report.slices += 1
            self.report.seconds = time.monotonic() - self._started
            for one in counts:
                self.report.add(one)
            _log(queue, counts)
            if self._progress is not None:
                self._progress(self.report)
        return not (self._once and all(one.drained for one in counts))


def _log(queue: str, counts: list[SliceCounts]) -> None:
    for cause in dict.fromkeys(error for one in counts for error in one.errors):
        log.warn("delivery_failed", queue=queue, error=cause)
    for cause in dict.fromkeys(error for one in counts for error in one.dead_errors):
        log.warn("events_dead", queue=queue, error=cause)
    if any(one.claimed for one in counts):
        names = ("published", "discarded", "retried", "dead", "released", "lost")
        sums = {name: sum(getattr(one, name) for one in counts) for name in names}
        log.info("slice_finished", queue=queue, **{name: count for name, count in sums.items() if count})
