"""The store on object storage: the conformance suite on a folder, with an archive that rolls all the time, and in part
over S3's protocol; and the lifecycle's state machine."""

import tempfile
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from penstock.store import Store, StoreOptions, open_store
from penstock.store.moves import Clock
from penstock.store.objects import archive
from penstock.testing.stores import OpenStore, StoreConformance
from penstock.testing.stores.claiming import Claiming
from penstock.testing.stores.emitting import Deduplicating, Emitting
from penstock.testing.stores.leasing import Fencing
from penstock.testing.stores.machine import StoreMachine
from penstock.testing.stores.ordering import Ordering
from penstock.testing.stores.scenario import ManualClock
from penstock.testing.stores.settling import SettlingAgain
from penstock.testing.stores.staging import CommittingOnce, Staging
from tests.support.servers import S3Server

# Time stands still in the suite until a test moves it on, and leases are reaped when a test says so.
QUIETLY = "expiry=reap"
UNBOUNDED = StoreOptions(max_lease_age_seconds=1e9)


def opener(url: str) -> OpenStore:
    def opened(options: StoreOptions | None = None, clock: Clock | None = None) -> Store:
        return open_store(url, options, clock)

    made = opened()
    made.initialise()
    made.close()
    return opened


class TestFolder(StoreConformance):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        return opener(f"objects+file://{tmp_path}/queue?{QUIETLY}")


class TestRolling(StoreConformance):
    """The document keeps next to no settled events: nearly every look, replay and purge has to go to the segments."""

    @pytest.fixture
    def open_store(self, monkeypatch: pytest.MonkeyPatch) -> OpenStore:
        monkeypatch.setattr(archive, "ROLL_ENTRIES", 2)
        monkeypatch.setattr(archive, "KEPT_ENTRIES", 1)
        return opener(f"objects+memory://{uuid4().hex}?{QUIETLY}")


class TestS3(Emitting, Deduplicating, Claiming, Fencing, SettlingAgain, Ordering, Staging, CommittingOnce):
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


class RollingMachine(StoreMachine):
    def open(self, clock: ManualClock) -> Store:
        return opener(f"objects+memory://{uuid4().hex}?{QUIETLY}")(UNBOUNDED, clock)


MACHINE = settings(stateful_step_count=40, deadline=None, phases=[Phase.reuse, Phase.generate], max_examples=20)


def test_the_machine_on_a_folder() -> None:
    run_state_machine_as_test(FolderMachine, settings=MACHINE)  # type: ignore[no-untyped-call]


def test_the_machine_with_an_archive_that_rolls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "ROLL_ENTRIES", 3)
    monkeypatch.setattr(archive, "KEPT_ENTRIES", 1)
    run_state_machine_as_test(RollingMachine, settings=MACHINE)  # type: ignore[no-untyped-call]
