"""Periodic emits: due times of cron expressions, each emitted once by any number of processes.

Every process emits the event of each due time under the same deduplication key; the store keeps only the first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

from penstock.config.extras import needs_extra
from penstock.model.errors import UsageError
from penstock.model.event import Event
from penstock.outbox import Outbox

# Exceeds any difference between the clocks of two processes and any suspension of a process.
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
        self.next_after(datetime.now(UTC))  # raises an error if the expression is invalid

    def next_after(self, start: datetime) -> datetime:
        """Return the first due time after `start`, in UTC."""
        with needs_extra("a periodic emit", "worker"):
            from cronsim import CronSim, CronSimError
        try:
            found: datetime = next(CronSim(self.cron, start.astimezone(self.timezone)))
        except (CronSimError, StopIteration) as error:
            raise UsageError(f"{self.cron!r} is not a cron expression that ever comes true: {error}") from error
        return found.astimezone(UTC)

    def event(self, outbox: Outbox, due: datetime) -> Event:
        """Return the event of one due time. If a clock is ahead, the event is emitted early but available on time."""
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
    """Emits the events that are due; a worker loop calls `step`."""

    def __init__(self, outbox: Outbox, periodics: Sequence[Periodic], started: datetime | None = None) -> None:
        self._outbox = outbox
        begun = started or datetime.now(UTC)
        self._periodics = {periodic.name: periodic for periodic in periodics}
        self._next = {name: periodic.next_after(begun) for name, periodic in self._periodics.items()}

    def step(self) -> float:
        return self.emit_due(datetime.now(UTC))

    def emit_due(self, now: datetime) -> float:
        """Emit the events that are due; return the seconds until the next due time."""
        for name, due in self._next.items():
            periodic = self._periodics[name]
            while due <= now:
                following = periodic.next_after(due)
                if following > now:  # of the times missed while the process was suspended, emit only the last
                    self._outbox.emit_many([periodic.event(self._outbox, due)])
                self._next[name] = due = following
        wait = (min(self._next.values()) - now).total_seconds()
        return min(max(wait, 0.0), LONGEST_WAIT_SECONDS)
