"""The lifecycle of an event: its states, the allowed transitions, and their effect on the counters.

Pure functions from the state of an event and an occurrence to the next state. The stores implement the same rules in
SQL; the conformance suite compares them with this module.

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
    """The code attempted a transition that `TRANSITIONS` does not allow: always a bug in Penstock."""


class OrderPolicy(StrEnum):
    """Effect of a failed event on the later events of its ordering key."""

    BLOCK = "block"
    """Block: later events wait until the failed event is settled."""
    SKIP = "skip"
    """Skip: later events are delivered while the failed event waits for its retry."""


@dataclass(frozen=True, slots=True)
class Life:
    """The mutable state of an event."""

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
    """Apply an outcome to a claimed event. A retry at the last attempt makes the event DEAD."""
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
    """Apply the expiry of its lease to a claimed event: count an attempt and increment `suspect`."""
    _require(life, "reaped", State.CLAIMED)
    if exhausted(life, max_attempts):
        return _fail(_move(life, State.DEAD), error)
    return replace(_fail(_move(life, State.PENDING), error), suspect=min(life.suspect + 1, MAX_SUSPECT))


def replay(life: Life) -> Life:
    """Make a settled event pending again with reset counters; the history of the event is kept by the store."""
    _require(life, "replayed", State.PUBLISHED, State.DEAD)
    started = _move(life, State.PENDING)
    return replace(started, attempts=0, deliveries=0, suspect=0, last_error=None, replays=life.replays + 1)


def cancel(life: Life, reason: str) -> Life:
    """Make an unsettled event DEAD without counting an attempt or a delivery."""
    _require(life, "cancelled", State.PENDING, State.CLAIMED)
    held = _move(life, State.CLAIMED) if life.state is State.PENDING else life
    return replace(_move(held, State.DEAD), last_error=reason)


def exhausted(life: Life, max_attempts: int) -> bool:
    """Return whether one more failure is final. The event's own maximum overrides `max_attempts`."""
    return life.attempts + 1 >= (max_attempts if life.max_attempts is None else life.max_attempts)


def overdelivered(deliveries: int, max_deliveries: int | None) -> bool:
    """Return whether an event exceeds the maximum of deliveries. Consumers check this before processing the event."""
    return max_deliveries is not None and deliveries > max_deliveries


def weight(suspect: int, limit: int) -> int:
    """Return how many places of a claim of `limit` an event occupies: ten times as many for each expired lease."""
    return int(min(10**suspect, limit))


def fitting(suspects: Iterable[int], limit: int, taken: int = 0) -> int:
    """Return how many of the first events fit into a claim whose events already weigh `taken`.

    An empty claim always accepts one event, whatever its weight.
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
