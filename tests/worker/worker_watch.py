"""Conditions that tests of workers wait for, and a context manager that runs a worker."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock import Worker
from penstock.model.lifecycle import State
from penstock.model.records import Record
from penstock.model.selection import Selection
from penstock.store.sql.store import SqlStore
from tests.support.processes import wait_until

SECONDS = 60.0


class Watch:
    """Waits for states of a store's events, and reads them."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    def states(self) -> dict[State, int]:
        found = [record.state for record in self._store.find(Selection(everything=True), limit=10_000).records]
        return {state: found.count(state) for state in State if state in found}

    def until(self, **counts: int) -> None:
        """Wait until the events have exactly these states in these numbers."""
        wanted = {State(name.upper()): count for name, count in counts.items() if count}
        assert wait_until(lambda: self.states() == wanted, SECONDS), self.states()

    def that(self, holds: Callable[[], object]) -> None:
        assert wait_until(lambda: bool(holds()), SECONDS)

    def records(self) -> dict[str, Record]:
        """Return all events by payload."""
        found = self._store.find(Selection(everything=True), limit=10_000).records
        return {record.payload.decode(): record for record in found}


@contextmanager
def running(worker: Worker) -> Iterator[Worker]:
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()
