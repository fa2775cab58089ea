"""What streams of the tests leave behind: their state, and the events in a queue."""

from typing import Any

from penstock.lifecycle import State
from penstock.outbox import Outbox
from penstock.store.base import Record, Selection
from penstock.streams.context import KeyState
from penstock.streams.engine import is_users
from penstock.streams.state import open_state

LIVE = frozenset({State.PENDING, State.CLAIMED})
DEAD = frozenset({State.DEAD})


def states(url: str, stream: str) -> dict[str, dict[str, Any]]:
    """The state of every key."""
    store = open_state(url)
    try:
        return {key: dict(KeyState(saved)) for key, saved in store.read(stream) if is_users(key)}
    finally:
        store.close()


def records(outbox: Outbox, queue: str, states: frozenset[State] | None = None) -> list[Record]:
    return list(outbox.store.find(Selection(queue=queue, states=states), limit=100_000).records)
