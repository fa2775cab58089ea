"""What the tests of workers wait for, and how they run one."""

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
    """What a test waits for, and looks at afterwards."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    def states(self) -> dict[State, int]:
        found = [record.state for record in self._store.find(Selection(everything=True), limit=10_000).records]
        return {state: found.count(state) for state in State if state in found}

    def until(self, **counts: int) -> None:
        """Wait until so many events are in these states, and none in any other."""
        wanted = {State(name.upper()): count for name, count in counts.items() if count}
        assert wait_until(lambda: self.states() == wanted, SECONDS), self.states()

    def that(self, holds: Callable[[], object]) -> None:
        assert wait_until(lambda: bool(holds()), SECONDS)

    def records(self) -> dict[str, Record]:
        """Every event by its payload."""
        found = self._store.find(Selection(everything=True), limit=10_000).records
        return {record.payload.decode(): record for record in found}


@contextmanager
def running(worker: Worker) -> Iterator[Worker]:
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()
