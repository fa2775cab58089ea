"""Progress of a relay: the counts of its slices, added up and logged."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.pipeline.counts import SliceCounts
from penstock.telemetry import log


@dataclass(slots=True)
class RelayReport:
    """What a relay has done since it started."""

    claimed: int = 0
    published: int = 0
    discarded: int = 0
    retried: int = 0
    dead: int = 0
    released: int = 0
    lost: int = 0
    routed: int = 0
    reaped: int = 0
    slices: int = 0
    seconds: float = 0.0

    def add(self, tally: SliceCounts) -> None:
        for name in ("claimed", "published", "discarded", "retried", "dead", "released", "lost", "routed"):
            setattr(self, name, getattr(self, name) + getattr(tally, name))


class RelayProgress:
    """Adds up the counts of slices, reports them, and says whether to go on."""

    def __init__(self, report: RelayReport, once: bool, progress: Callable[[RelayReport], None] | None) -> None:
        self.report = report
        self._once = once
        self._progress = progress
        self._started = time.monotonic()
        self._change = threading.Lock()

    def reaped(self, count: int) -> None:
        self.report.reaped += count

    def enter(self, _number: int, tallies: list[SliceCounts]) -> bool:
        with self._change:
            self.report.slices += 1
            self.report.seconds = time.monotonic() - self._started
            for tally in tallies:
                self.report.add(tally)
            _log(tallies)
            if self._progress is not None:
                self._progress(self.report)
        return not (self._once and all(tally.drained for tally in tallies))


def _log(tallies: list[SliceCounts]) -> None:
    for trouble in dict.fromkeys(line for tally in tallies for line in tally.troubles):
        log.warn("trouble, trying again", cause=trouble)
    for cause in dict.fromkeys(line for tally in tallies for line in tally.deaths):
        log.warn("events died", cause=cause)
    if any(tally.claimed for tally in tallies):
        names = ("published", "discarded", "retried", "dead", "released", "lost")
        sums = {name: sum(getattr(tally, name) for tally in tallies) for name in names}
        log.info("slice", **{name: count for name, count in sums.items() if count})
