"""Lifecycle of events in the stores: a state machine drives real stores and compares each step with the model."""

import tempfile
from pathlib import Path

from databases import empty_mysql, empty_postgres
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from penstock.store.api import StoreOptions
from penstock.store.registry import open_store
from penstock.store.sql.store import SqlStore
from penstock.testing.stores.machine import StoreMachine
from penstock.testing.stores.scenario import ManualClock

# Without Phase.shrink: shrinking a failure on a real database takes minutes. Add it to investigate a failure.
MACHINE = settings(stateful_step_count=40, deadline=None, phases=[Phase.reuse, Phase.generate])
UNBOUNDED = StoreOptions(max_lease_age_seconds=1e9)


class SqliteMachine(StoreMachine):
    def open(self, clock: ManualClock) -> SqlStore:
        self.folder = tempfile.TemporaryDirectory()
        store = open_store(f"sqlite:///{Path(self.folder.name) / 'penstock.db'}", UNBOUNDED, clock)
        store.initialise()
        return store

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


def test_state_machine_on_sqlite() -> None:
    run_state_machine_as_test(SqliteMachine, settings=settings(MACHINE, max_examples=30))  # type: ignore[no-untyped-call]


def test_state_machine_on_postgres(postgres_url: str) -> None:
    first = open_store(postgres_url)
    first.initialise()
    first.close()

    class PostgresMachine(StoreMachine):
        def open(self, clock: ManualClock) -> SqlStore:
            empty_postgres(postgres_url)
            return open_store(postgres_url, UNBOUNDED, clock)

    run_state_machine_as_test(PostgresMachine, settings=settings(MACHINE, max_examples=15))  # type: ignore[no-untyped-call]


def test_state_machine_on_mariadb(mariadb_url: str) -> None:
    first = open_store(mariadb_url)
    first.initialise()
    first.close()

    class MariadbMachine(StoreMachine):
        def open(self, clock: ManualClock) -> SqlStore:
            empty_mysql(mariadb_url)
            return open_store(mariadb_url, UNBOUNDED, clock)

    run_state_machine_as_test(MariadbMachine, settings=settings(MACHINE, max_examples=15))  # type: ignore[no-untyped-call]
