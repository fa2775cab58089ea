"""Outcomes on their way into a database: the plain successes, and rows for the rest. What a publisher or handler says
of an error may hold anything; what is stored may not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, assert_never
from uuid import UUID

import uuid_utils.compat as uuid7

from penstock.model.outcome import PUBLISHED, Dead, Outcome, Published, Released, Retry
from penstock.model.retry import wait_seconds
from penstock.model.text import storable


@dataclass(frozen=True, slots=True)
class OutcomeRow:
    """A failure or a release, as the settling statement takes it."""

    seq: int
    kind: str
    error: str | None = None
    delay: float = 0.0


class RouteRow(NamedTuple):
    """An event's way into one queue: the first takes the event itself, each further one a copy under an id given."""

    seq: int
    queue: str
    copy_id: UUID | None


def route_rows(queues: Mapping[int, Sequence[str]]) -> list[RouteRow]:
    """In the order of the events: copies are numbered as they come, and a line stays one."""
    rows: list[RouteRow] = []
    for seq in sorted(queues):
        first, *others = dict.fromkeys(queues[seq])
        rows.append(RouteRow(seq, first, None))
        rows += [RouteRow(seq, queue, uuid7.uuid7()) for queue in others]
    return rows


@dataclass(frozen=True, slots=True)
class Asked:
    """What a settle asks for: the published by seq, a row for each of the others, and what to keep of either."""

    published: list[int]
    others: list[OutcomeRow]
    results: Mapping[int, bytes]
    dropped: frozenset[int]

    @property
    def seqs(self) -> list[int]:
        return [*self.published, *(row.seq for row in self.others)]


def split(outcomes: Mapping[int, Outcome]) -> Asked:
    """Outcomes as the settling statements take them. All published, the usual case, costs no loop."""
    if list(outcomes.values()).count(PUBLISHED) == len(outcomes):
        return Asked(list(outcomes), [], {}, frozenset())
    published: list[int] = []
    others: list[OutcomeRow] = []
    results: dict[int, bytes] = {}
    for seq, outcome in outcomes.items():
        match outcome:
            case Published(result=result):
                published.append(seq)
                if result is not None:
                    results[seq] = result
            case Retry(error=error, delay_seconds=delay):
                others.append(OutcomeRow(seq, "RETRY", storable(error), wait_seconds(delay)))
            case Dead(error=error):
                others.append(OutcomeRow(seq, "DEAD", storable(error)))
            case Released():
                others.append(OutcomeRow(seq, "RELEASED"))
            case _:
                assert_never(outcome)
    dropped = {seq for seq, outcome in outcomes.items() if not isinstance(outcome, Released) and not outcome.keep}
    return Asked(published, others, results, frozenset(dropped))
