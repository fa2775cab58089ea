"""The dead as an operator looks for them: the latest death first, and counted by queue and by kind of error.

A dead letter is an event in the state DEAD, in whatever queue. These are the values; every backend looks for itself.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from penstock.model.error_kinds import error_kind
from penstock.model.event import EventId
from penstock.model.lifecycle import State
from penstock.model.selection import Selection

DEAD = frozenset({State.DEAD})
# Kinds beyond this are counted together, so that a count of millions that are all different needs no memory for them.
MOST_KINDS = 10_000
OTHER_ERRORS = "other errors"


class DeathMark(NamedTuple):
    """A place in the list of deaths: where a page ended."""

    died_at: datetime
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A dead event in a list: without its payload, and with only the beginning of its error."""

    seq: int
    event_id: EventId
    event_type: str
    queue: str
    attempts: int
    replays: int
    created_at: datetime
    died_at: datetime
    error: str


@dataclass(frozen=True, slots=True)
class DeathPage:
    """Some of the deaths; `after` asks for the next page, and is None on the last one."""

    deaths: Sequence[Death]
    after: DeathMark | None


@dataclass(frozen=True, slots=True)
class DeathCount:
    """How many events of a queue are dead of errors of one kind."""

    queue: str
    error: str
    count: int


def only_dead(selection: Selection) -> Selection:
    """Of a selection, the dead alone."""
    return replace(selection, states=DEAD if selection.states is None else selection.states & DEAD)


def page_of(found: Sequence[Death], limit: int) -> DeathPage:
    """A page, from what was found when one more than `limit` was asked for."""
    shown = found[:limit]
    more = len(found) > limit
    return DeathPage(shown, DeathMark(shown[-1].died_at, shown[-1].seq) if more else None)


def count_by_kind(rows: Iterable[tuple[str, str | None, int]]) -> list[DeathCount]:
    """Rows of (queue, error, how many) by queue and kind of error, the most first."""
    counts: Counter[tuple[str, str]] = Counter()
    for queue, error, count in rows:
        kind = (queue, error_kind(error))
        if len(counts) >= MOST_KINDS and kind not in counts:
            kind = (queue, OTHER_ERRORS)
        counts[kind] += count
    found = [DeathCount(queue, error, count) for (queue, error), count in counts.items()]
    return sorted(found, key=lambda one: (-one.count, one.queue, one.error))
