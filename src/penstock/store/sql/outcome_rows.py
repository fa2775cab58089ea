"""Outcomes in the form of the settling statements: seqs of published events, and rows for all other outcomes. Error
texts of publishers and handlers may contain anything; `storable` replaces characters that databases refuse."""

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
    """Row of a failure or a release, for the settling statement."""

    seq: int
    kind: str
    error: str | None = None
    delay: float = 0.0


class RouteRow(NamedTuple):
    """Route of an event to one queue. The first queue gets the event itself, each further one a copy with `copy_id`."""

    seq: int
    queue: str
    copy_id: UUID | None


def route_rows(queues: Mapping[int, Sequence[str]]) -> list[RouteRow]:
    """Return the rows in seq order. Copies are numbered in this order, which keeps the order within an ordering key."""
    rows: list[RouteRow] = []
    for seq in sorted(queues):
        first, *others = dict.fromkeys(queues[seq])
        rows.append(RouteRow(seq, first, None))
        rows += [RouteRow(seq, queue, uuid7.uuid7()) for queue in others]
    return rows


@dataclass(frozen=True, slots=True)
class Asked:
    """Outcomes of one settle: seqs to publish, rows of the other outcomes, results to store, and seqs to delete."""

    published: list[int]
    others: list[OutcomeRow]
    results: Mapping[int, bytes]
    dropped: frozenset[int]

    @property
    def seqs(self) -> list[int]:
        return [*self.published, *(row.seq for row in self.others)]


def split(outcomes: Mapping[int, Outcome]) -> Asked:
    """Convert outcomes for the settling statements. If all are `PUBLISHED`, the usual case, skip the loop."""
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
