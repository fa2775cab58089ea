"""Processing of one batch of a state partition: its events, and its due timers."""

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
    """Options for firing the due timers of one batch."""

    idle_advance: IdleAdvance | None = None
    limit: int = LIMIT
    """Maximum number of timers to fire; 0 while the driver isolates an event that kills its process."""
    failure: EventFailure | None = None
    """Failure to record for each due timer instead of running the timer."""


USUAL = Firing()


def process_batch(
    part: StatePartition,
    stream: Stream,
    events: Sequence[StreamEvent],
    now: float,
    forced_failures: Mapping[Arrival, EventFailure] | None = None,
    firing: Firing = USUAL,
) -> tuple[list[Result], ClockReport | None]:
    """Process events of a state partition and fire its due timers, in one transaction. Return the results, and the
    clock report of a stream with timers. Events that were applied before are not handled again; their result is
    Published.

    Events in `forced_failures` fail without a run of the handler.
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
