"""Conformance of the object store: the full suite on a folder and in memory, selected scenarios over the S3 protocol,
and the state machine of the lifecycle on a folder."""

import tempfile
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from penstock.model.times import Clock
from penstock.store.api import Store, StoreOptions
from penstock.store.registry import open_store
from penstock.testing.stores import OpenStore, StoreConformance
from penstock.testing.stores.claiming import Claiming
from penstock.testing.stores.emitting import Deduplicating, EmittingEvents
from penstock.testing.stores.inspection import Undeclared
from penstock.testing.stores.leasing import FencingLeases
from penstock.testing.stores.machine import StoreMachine
from penstock.testing.stores.scenario import ManualClock
from penstock.testing.stores.settling import SettlingAgain
from tests.support.servers import S3Server

# The suite injects a clock, and expects that only `reap` reaps expired leases, not every commit pass.
QUIETLY = "expiry=reap"
LACKS = ("insert_into_view", "limits", "ordering", "routing", "staging")
UNBOUNDED = StoreOptions(max_lease_age_seconds=1e9)


def opener(url: str) -> OpenStore:
    def opened(options: StoreOptions | None = None, clock: Clock | None = None) -> Store:
        return open_store(url, options, clock)

    made = opened()
    made.initialise()
    made.close()
    return opened


class TestFolder(StoreConformance):
    lacks = LACKS

    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        return opener(f"objects+file://{tmp_path}/queue?{QUIETLY}")


class TestMemory(StoreConformance):
    lacks = LACKS

    @pytest.fixture
    def open_store(self) -> OpenStore:
        return opener(f"objects+memory://{uuid4().hex}?{QUIETLY}")


class TestS3(EmittingEvents, Deduplicating, Claiming, FencingLeases, SettlingAgain, Undeclared):
    lacks = LACKS

    @pytest.fixture
    def open_store(self, s3_server: S3Server) -> OpenStore:
        return opener(s3_server.url(s3_server.create_bucket(f"b-{uuid4().hex}"), "queue", expiry="reap"))


class FolderMachine(StoreMachine):
    def open(self, clock: ManualClock) -> Store:
        self.folder = tempfile.TemporaryDirectory()
        return opener(f"objects+file://{self.folder.name}/queue?{QUIETLY}")(UNBOUNDED, clock)

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


MACHINE = settings(stateful_step_count=40, deadline=None, phases=[Phase.reuse, Phase.generate], max_examples=20)


def test_state_machine_on_folder() -> None:
    run_state_machine_as_test(FolderMachine, settings=MACHINE)  # type: ignore[no-untyped-call]
