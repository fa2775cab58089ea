"""Periodic emits: when they are due, and how they fire once across many processes.

Every process emits for the same moments under the same deduplication key, and the store takes the first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

from penstock.config.extras import needs_extra
from penstock.model.errors import UsageError
from penstock.model.event import Event
from penstock.outbox import Outbox

# Longer than clocks of processes lie apart, and than one of them could be held up.
WINDOW_SECONDS = 7 * 86_400.0
LONGEST_WAIT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Periodic:
    """An event to emit at the times of a cron expression."""

    cron: str
    name: str
    event_type: str
    payload: object
    queue: str
    timezone: tzinfo
    fields: Mapping[str, Any]

    def __post_init__(self) -> None:
        taken = {"dedupe_key", "dedupe_seconds", "available_at", "delay"} & self.fields.keys()
        if taken:
            raise UsageError(f"a periodic emit sets {sorted(taken)[0]} itself")
        self.next_after(datetime.now(UTC))  # what is wrong with the expression is told here

    def next_after(self, start: datetime) -> datetime:
        """The first time after `start`, in UTC."""
        with needs_extra("a periodic emit", "worker"):
            from cronsim import CronSim, CronSimError
        try:
            found: datetime = next(CronSim(self.cron, start.astimezone(self.timezone)))
        except (CronSimError, StopIteration) as error:
            raise UsageError(f"{self.cron!r} is not a cron expression that ever comes true: {error}") from error
        return found.astimezone(UTC)

    def event(self, outbox: Outbox, due: datetime) -> Event:
        """The event of one moment. It may be emitted early, by a clock that is ahead, but is available on time."""
        return outbox.event(
            self.event_type,
            self.payload,
            queue=self.queue,
            available_at=due,
            dedupe_key=f"periodic:{self.name}:{due.isoformat()}",
            dedupe_seconds=WINDOW_SECONDS,
            **self.fields,
        )


class PeriodicEmitter:
    """The loop that emits what is due."""

    def __init__(self, outbox: Outbox, periodics: Sequence[Periodic], started: datetime | None = None) -> None:
        self._outbox = outbox
        begun = started or datetime.now(UTC)
        self._periodics = {periodic.name: periodic for periodic in periodics}
        self._next = {name: periodic.next_after(begun) for name, periodic in self._periodics.items()}

    def step(self) -> float:
        return self.emit_due(datetime.now(UTC))

    def emit_due(self, now: datetime) -> float:
        """Emit for every moment that has come; returns the seconds until the next one."""
        for name, due in self._next.items():
            periodic = self._periodics[name]
            while due <= now:
                following = periodic.next_after(due)
                if following > now:  # of moments that were missed while this process stood still, the last one counts
                    self._outbox.emit_many([periodic.event(self._outbox, due)])
                self._next[name] = due = following
        wait = (min(self._next.values()) - now).total_seconds()
        return min(max(wait, 0.0), LONGEST_WAIT_SECONDS)
