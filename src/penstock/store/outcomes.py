"""Outcomes on their way into a database: the plain successes, and rows for the rest. What a publisher or handler says
of an error may hold anything; what is stored may not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, assert_never
from uuid import UUID

import uuid_utils.compat as uuid7

from penstock.event import LONGEST_SECONDS
from penstock.lifecycle import PUBLISHED, Dead, Outcome, Published, Released, Retry

DEFAULT_RETRY_SECONDS = 1.0


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


def split(outcomes: Mapping[int, Outcome]) -> tuple[list[int], list[OutcomeRow]]:
    """The published, by seq, and a row for each of the others. All published, the usual case, costs no loop."""
    if list(outcomes.values()).count(PUBLISHED) == len(outcomes):
        return list(outcomes), []
    published: list[int] = []
    others: list[OutcomeRow] = []
    for seq, outcome in outcomes.items():
        match outcome:
            case Published():
                published.append(seq)
            case Retry(error=error, delay_seconds=delay):
                others.append(OutcomeRow(seq, "RETRY", _storable(error), _wait(delay)))
            case Dead(error=error):
                others.append(OutcomeRow(seq, "DEAD", _storable(error)))
            case Released():
                others.append(OutcomeRow(seq, "RELEASED"))
            case _:
                assert_never(outcome)
    return published, others


def _storable(error: str) -> str:
    """No database takes half a surrogate pair, and PostgreSQL takes no NUL."""
    return error.replace("\x00", "\ufffd").encode(errors="replace").decode()


def _wait(delay: float | None) -> float:
    """A wait that ends within the years that dates have, whatever a destination asked for."""
    if delay is None:
        return DEFAULT_RETRY_SECONDS
    return float(min(delay, LONGEST_SECONDS)) if delay > 0 else 0.0
