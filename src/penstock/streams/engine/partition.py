"""One turn of a part: its events, and what is due, with the kind of work that its stream needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.model.outcome import PUBLISHED
from penstock.streams.app import Stream
from penstock.streams.engine.timer_work import LIMIT, TimedWork
from penstock.streams.engine.watermarks import Lull, Turn
from penstock.streams.engine.window_work import WindowedWork
from penstock.streams.engine.work import Result, Verdict, fresh_among, run_part
from penstock.streams.event import StreamEvent
from penstock.streams.state.api import Arrival, Part


@dataclass(frozen=True, slots=True)
class Firing:
    """How a turn fires what is due."""

    lull: Lull | None = None
    limit: int = LIMIT
    """At most so many; none at all while an event is looked for that kills."""
    verdict: Verdict | None = None
    """Why they fail without being run."""


USUAL = Firing()


def take_turn(
    part: Part,
    stream: Stream,
    events: Sequence[StreamEvent],
    now: float,
    condemned: Mapping[Arrival, Verdict] | None = None,
    firing: Firing = USUAL,
) -> tuple[list[Result], Turn | None]:
    """Process a part's events and then fire what is due, in one transaction. A stream without timers has no turns to
    tell of."""
    if not stream.has_timers:
        return run_part(part, stream, events, now, condemned), None
    kind = TimedWork if stream.window is None else WindowedWork
    with part.transaction() as tx:
        work = kind(stream, tx, fresh_among(tx, events), now)
        failed = work.run(condemned or {})
        if firing.limit > 0:
            work.fire(firing.lull, firing.limit, firing.verdict)
        work.write(failed)
        turn = work.turn()
    return [Result(event, failed.get(id(event), PUBLISHED)) for event in events], turn
