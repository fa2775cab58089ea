"""Lists and counts of dead letters: latest death first; counts by queue and kind of error.

A dead letter is an event in state DEAD, in any queue. This module defines the values; each backend has its own queries.
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
# Bounds the memory of a count over millions of distinct errors: further kinds are counted together.
MOST_KINDS = 10_000
OTHER_ERRORS = "other errors"


class DeathMark(NamedTuple):
    """Position in the list of deaths at which a page ended."""

    died_at: datetime
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A dead event in a list, without its payload and with only the beginning of its error."""

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
    """A page of dead events. Pass `after` to get the next page; `after` is None on the last page."""

    deaths: Sequence[Death]
    after: DeathMark | None


@dataclass(frozen=True, slots=True)
class DeathCount:
    """Number of dead events of one queue with one kind of error."""

    queue: str
    error: str
    count: int


def only_dead(selection: Selection) -> Selection:
    """Return the selection, restricted to dead events."""
    return replace(selection, states=DEAD if selection.states is None else selection.states & DEAD)


def page_of(found: Sequence[Death], limit: int) -> DeathPage:
    """Return a page of up to `limit` deaths; `found` has one more than `limit` if another page follows."""
    shown = found[:limit]
    more = len(found) > limit
    return DeathPage(shown, DeathMark(shown[-1].died_at, shown[-1].seq) if more else None)


def count_by_kind(rows: Iterable[tuple[str, str | None, int]]) -> list[DeathCount]:
    """Group rows of (queue, error, count) by queue and kind of error, largest count first."""
    counts: Counter[tuple[str, str]] = Counter()
    for queue, error, count in rows:
        kind = (queue, error_kind(error))
        if len(counts) >= MOST_KINDS and kind not in counts:
            kind = (queue, OTHER_ERRORS)
        counts[kind] += count
    found = [DeathCount(queue, error, count) for (queue, error), count in counts.items()]
    return sorted(found, key=lambda one: (-one.count, one.queue, one.error))
