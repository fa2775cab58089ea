"""The lifecycle as the stores live it: a state machine drives real stores and holds each step against the pure core."""

import tempfile
from pathlib import Path

from hypothesis import settings

from penstock.store import SqlStore, StoreOptions, open_store
from penstock.testing.stores.machine import StoreMachine
from penstock.testing.stores.scenario import ManualClock

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


TestSqlite = SqliteMachine.TestCase
TestSqlite.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
