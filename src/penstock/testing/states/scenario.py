"""Fixtures and helpers of the conformance tests for state stores."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import pytest

from penstock.streams.state.api import Arrival, Saved, StatePartition, StateStore

OpenState = Callable[[], StateStore]
STREAM = "orders"
ARRIVALS = [Arrival("9-0"), Arrival("10-0"), Arrival("é 水"), Arrival("9-0", 1)]


class StateScenario:
    """A store, and the first state partition of a started stream."""

    @pytest.fixture
    def store(self, open_state: OpenState) -> Iterator[StateStore]:
        store = open_state()
        yield store
        store.close()

    @pytest.fixture
    def part(self, store: StateStore) -> Iterator[StatePartition]:
        part = store.open_part(store.start(STREAM, 3), 0)
        yield part
        part.close()

    @staticmethod
    def entered(part: StatePartition, arrivals: Sequence[Arrival]) -> set[Arrival]:
        """Return the arrivals that are in the inbox. Finds them by inserting all in a transaction that is rolled
        back."""
        fresh: set[Arrival] = set()
        with suppress(_Undone), part.transaction() as transaction:
            fresh = transaction.fresh(arrivals)
            raise _Undone
        return set(arrivals) - fresh


class _Undone(Exception):
    """A transaction that is not to commit."""


def save(part: StatePartition, key: str, data: bytes, expires_at: float | None = None) -> None:
    with part.transaction() as transaction:
        transaction.save({key: Saved(data, expires_at)})
