"""One batch of a state partition: its events, and what is due, with the kind of work that its stream needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.model.outcome import PUBLISHED
from penstock.streams.app import Stream
from penstock.streams.engine.timer_work import LIMIT, TimedWork
from penstock.streams.engine.watermarks import ClockReport, IdleAdvance
from penstock.streams.engine.window_work import WindowedWork
from penstock.streams.engine.work import EventFailure, Result, Work, fresh_among
from penstock.streams.event import StreamEvent
from penstock.streams.state.api import Arrival, StatePartition


@dataclass(frozen=True, slots=True)
class Firing:
    """How a batch fires what is due."""

    idle_advance: IdleAdvance | None = None
    limit: int = LIMIT
    """At most so many; none at all while an event is looked for that kills."""
    failure: EventFailure | None = None
    """Why they fail without being run."""


USUAL = Firing()


def process_batch(
    part: StatePartition,
    stream: Stream,
    events: Sequence[StreamEvent],
    now: float,
    forced_failures: Mapping[Arrival, EventFailure] | None = None,
    firing: Firing = USUAL,
) -> tuple[list[Result], ClockReport | None]:
    """Process a part's events and then fire what is due, in one transaction. A stream without timers has
    nothing to report. Events that were processed before are only acknowledged again.

    `forced_failures` are of those that fail without being run.
    """
    kind = Work if not stream.has_timers else TimedWork if stream.window is None else WindowedWork
    with part.transaction() as tx:
        work = kind(stream, tx, fresh_among(tx, events), now)
        failed = work.run(forced_failures or {})
        if isinstance(work, TimedWork) and firing.limit > 0:
            work.fire(firing.idle_advance, firing.limit, firing.failure)
        work.write(failed)
        report = work.report() if isinstance(work, TimedWork) else None
    return [Result(event, failed.get(id(event), PUBLISHED)) for event in events], report
