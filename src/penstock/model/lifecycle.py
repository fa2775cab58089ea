"""The life of an event: its states, the only transitions there are, and how a transition counts.

Pure: given where an event stands and what happened, these functions say what is next. The stores do
the same in SQL, and the conformance suite holds them to this page.

    PENDING ── claim ──► CLAIMED ── Published ──► PUBLISHED
       ▲                    │ │                       │
       │◄─ Retry, Released ─┘ └──── Dead ──► DEAD     │
       │◄─ lease expired                       │      │
       └◄──────────────── replay ──────────────┴──────┘
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import assert_never

from penstock.model.outcome import Dead, Outcome, Published, Released, Retry


class State(StrEnum):
    PENDING = "PENDING"
    CLAIMED = "CLAIMED"
    PUBLISHED = "PUBLISHED"
    DEAD = "DEAD"


TRANSITIONS: frozenset[tuple[State, State]] = frozenset(
    {
        (State.PENDING, State.CLAIMED),
        (State.CLAIMED, State.PUBLISHED),
        (State.CLAIMED, State.PENDING),
        (State.CLAIMED, State.DEAD),
        (State.PUBLISHED, State.PENDING),
        (State.DEAD, State.PENDING),
    }
)

MAX_SUSPECT = 9
DEFAULT_MAX_ATTEMPTS = 25


class IllegalTransition(AssertionError):
    """Code tried a transition that the table lacks: a bug, never a user's mistake."""


class OrderPolicy(StrEnum):
    """What a failed event does to the later events of its ordering key."""

    BLOCK = "block"
    """It keeps its place, and they wait for it."""
    SKIP = "skip"
    """It leaves the line, and they go on without it."""


@dataclass(frozen=True, slots=True)
class Life:
    """The changing part of an event."""

    state: State = State.PENDING
    attempts: int = 0
    deliveries: int = 0
    replays: int = 0
    suspect: int = 0
    max_attempts: int | None = None
    last_error: str | None = None


def claim(life: Life) -> Life:
    return replace(_move(life, State.CLAIMED), deliveries=life.deliveries + 1)


def settle(life: Life, outcome: Outcome, *, max_attempts: int = DEFAULT_MAX_ATTEMPTS) -> Life:
    """What becomes of a claimed event. A retry at the last attempt is a death."""
    _require(life, "settled", State.CLAIMED)
    match outcome:
        case Published():
            return _move(life, State.PUBLISHED)
        case Retry(error=error):
            if exhausted(life, max_attempts):
                return _fail(_move(life, State.DEAD), error)
            return replace(_fail(_move(life, State.PENDING), error), suspect=0)
        case Dead(error=error):
            return _fail(_move(life, State.DEAD), error)
        case Released():
            return replace(_move(life, State.PENDING), deliveries=life.deliveries - 1)
        case _:
            assert_never(outcome)


def expire(life: Life, *, max_attempts: int = DEFAULT_MAX_ATTEMPTS, error: str = "lease expired") -> Life:
    """The lease of a claimed event ran out: a lost attempt, and a reason to suspect the event."""
    _require(life, "reaped", State.CLAIMED)
    if exhausted(life, max_attempts):
        return _fail(_move(life, State.DEAD), error)
    return replace(_fail(_move(life, State.PENDING), error), suspect=min(life.suspect + 1, MAX_SUSPECT))


def replay(life: Life) -> Life:
    """A settled event starts a new life; what it went through stays in the history."""
    _require(life, "replayed", State.PUBLISHED, State.DEAD)
    started = _move(life, State.PENDING)
    return replace(started, attempts=0, deliveries=0, suspect=0, last_error=None, replays=life.replays + 1)


def cancel(life: Life, reason: str) -> Life:
    """An unsettled event is called off: as if claimed and found dead, but nobody tried it, so nothing is counted."""
    _require(life, "cancelled", State.PENDING, State.CLAIMED)
    held = _move(life, State.CLAIMED) if life.state is State.PENDING else life
    return replace(_move(held, State.DEAD), last_error=reason)


def exhausted(life: Life, max_attempts: int) -> bool:
    """Whether one more failure is the last; an event's own limit goes before the claim's."""
    return life.attempts + 1 >= (max_attempts if life.max_attempts is None else life.max_attempts)


def overdelivered(deliveries: int, max_deliveries: int | None) -> bool:
    """Whether an event was handed out too often to be handed out again: checked before processing."""
    return max_deliveries is not None and deliveries > max_deliveries


def weight(suspect: int, limit: int) -> int:
    """How much of a claim of `limit` an event takes up: the more suspect, the smaller its company."""
    return int(min(10**suspect, limit))


def fitting(suspects: Iterable[int], limit: int, taken: int = 0) -> int:
    """How many events from the front of a line fit into a claim whose events already weigh `taken`.

    As many as the weights allow, but into an empty claim always one.
    """
    count, total = 0, taken
    for suspect in suspects:
        alone = total == 0
        total += weight(suspect, limit)
        if total > limit and not alone:
            break
        count += 1
    return count


def _require(life: Life, done: str, *states: State) -> None:
    if life.state not in states:
        raise IllegalTransition(f"{life.state} event cannot be {done}; expected {' or '.join(states)}")


def _move(life: Life, to: State) -> Life:
    if (life.state, to) not in TRANSITIONS:
        raise IllegalTransition(f"illegal transition from {life.state} to {to}")
    return replace(life, state=to)


def _fail(life: Life, error: str) -> Life:
    return replace(life, attempts=life.attempts + 1, last_error=error)
