"""Relays to a lake that die between writing and settling, and the recovery by the next relay."""

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow.dataset as arrow
import pytest
from relay_processes import RelayProcess, emit

from penstock.model.event import Event
from penstock.model.lease import Claim, Lease, LeaseId, Token
from penstock.model.outcome import PUBLISHED
from penstock.outbox import Outbox, connect
from penstock.pipeline.lake.files import LakeFolder, LakeNote
from penstock.pipeline.lake.layout import read
from penstock.pipeline.lake.recovery import Sweep
from penstock.pipeline.relay.driver import run_relay
from penstock.pipeline.relay.report import RelayReport
from penstock.pipeline.relay.spec import RelayOptions
from penstock.runtime.store_cache import close_stores
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark]
WAIT_SECONDS = 180.0
LEASE_SECONDS = 6.0


@dataclass(frozen=True)
class Ground:
    """An outbox, and a folder that contains a lake."""

    spark: "SparkSession"
    url: str
    outbox: Outbox
    folder: Path

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    @property
    def given(self) -> dict[str, object]:
        return {
            "store": self.url,
            "destination": f"lake:{self.lake}?batch_events=100",
            "checkpoint": str(self.folder / "checkpoint"),
            "lease_seconds": LEASE_SECONDS,
            "parallelism": 2,
        }

    def drain(self) -> RelayReport:
        return run_relay(RelayOptions(once=True, **self.given))  # type: ignore[arg-type]

    def plain(self) -> Counter[str]:
        """Return the number of rows of each event in the files, as any Parquet reader sees them."""
        table = arrow.dataset(str(self.lake), partitioning="hive").to_table(columns=["event_id"])
        return Counter(table["event_id"].to_pylist())

    def read(self) -> Counter[str]:
        return Counter(row.event_id for row in read(self.spark, str(self.lake)).collect())

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.lake)) for path in self.lake.glob("day=*/*/*.parquet"))

    def notes(self) -> list[Path]:
        return list((self.lake / "_penstock" / "notes").glob("*.json"))

    def leases_are_over(self) -> bool:
        stats = self.outbox.store.stats()
        return stats.open_leases == stats.expired_leases


@pytest.fixture
def ground(spark: "SparkSession", postgres_url: str, tmp_path: Path) -> Iterator[Ground]:
    with connect(postgres_url) as outbox:
        outbox.store.initialise()
        yield Ground(spark, postgres_url, outbox, tmp_path)
    close_stores()


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize("checkpoint", ["kept", "lost"])
@pytest.mark.parametrize("crash", ["in-settle:1", "in-lake:2"])
def test_relay_kill_before_settling_leaves_each_event_once(ground: Ground, crash: str, checkpoint: str) -> None:
    # Several types, so that each lease has several files.
    ids = ground.outbox.emit_many([Event(event_type=f"t{number % 3}") for number in range(300)])
    with RelayProcess(ground.folder, crash=crash, **ground.given) as relay:
        assert relay.wait(WAIT_SECONDS) == -9, relay.log
    # All or some of the files are in place, and none of their events is settled.
    assert ground.files()
    assert ground.notes()
    assert ground.outbox.store.stats().total("published") == 0
    if checkpoint == "lost":
        shutil.rmtree(ground.folder / "checkpoint")
    if (crash, checkpoint) == ("in-lake:2", "lost"):
        assert wait_until(ground.leases_are_over, WAIT_SECONDS)  # without a checkpoint no query repeats the claims
    ground.drain()
    if ground.outbox.store.stats().total("published") < len(ids):
        assert wait_until(ground.leases_are_over, WAIT_SECONDS)  # of events that were claimed but not written
        ground.drain()
    assert ground.outbox.store.stats().total("published") == len(ids)
    assert ground.read() == Counter(map(str, ids))
    assert ground.plain() == Counter(map(str, ids))
    assert ground.notes() == []


# Notes after a sweep


@dataclass(frozen=True)
class AbandonedLake:
    """A lake in which a relay has died during its work."""

    ground: Ground
    sweep: Sweep
    folder: LakeFolder
    claim: Claim

    def leave(self, *files: str, lease: Lease | None = None, witness: object = None, missing: int = 0) -> LakeNote:
        events = self.claim.events
        note = LakeNote(
            lease or self.claim.lease, [event.seq for event in events], str(witness or events[0].event_id), [*files]
        )
        self.folder.put(note)
        for file in files[missing:]:
            path = self.ground.lake / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
        return note

    def after_sweep(self) -> tuple[list[str], int, int]:
        """Sweep; return the remaining files, the number of remaining notes and the number of published events."""
        self.sweep.now()
        return self.ground.files(), len(self.ground.notes()), self.ground.outbox.store.stats().total("published")


@pytest.fixture
def abandoned(ground: Ground) -> AbandonedLake:
    emit(ground.outbox, 3)
    folder = LakeFolder(ground.spark, str(ground.lake))
    store = ground.outbox.store
    claim = store.claim("outbox", limit=3, claimant="dead", lease_seconds=600)
    return AbandonedLake(ground, Sweep(store, folder), folder, claim)


ONE, TWO = "day=2026-01-31/event_type=a/1.parquet", "day=2026-01-31/event_type=b/2.parquet"


def test_sweep_settles_complete_files(abandoned: AbandonedLake) -> None:
    abandoned.leave(ONE, TWO)
    assert abandoned.after_sweep() == ([ONE, TWO], 0, 3)


def test_sweep_leaves_incomplete_files_of_open_lease(abandoned: AbandonedLake) -> None:
    abandoned.leave(ONE, TWO, missing=1)
    assert abandoned.after_sweep() == ([TWO], 1, 0)


def test_sweep_keeps_files_of_settled_events(abandoned: AbandonedLake) -> None:
    abandoned.leave(ONE)
    store = abandoned.ground.outbox.store
    store.settle(abandoned.claim.lease, {event.seq: PUBLISHED for event in abandoned.claim.events})
    assert abandoned.after_sweep() == ([ONE], 0, 3)


@pytest.mark.parametrize("missing", [0, 1])
def test_sweep_removes_files_of_events_claimed_again(abandoned: AbandonedLake, missing: int) -> None:
    abandoned.leave(ONE, TWO, missing=missing)
    lease = abandoned.claim.lease
    again = abandoned.ground.outbox.store.claim("outbox", limit=3, claimant="other", lease_id=lease.lease_id)
    assert again
    assert abandoned.after_sweep() == ([], 0, 0)


def test_sweep_removes_files_of_reaped_lease(abandoned: AbandonedLake) -> None:
    store = abandoned.ground.outbox.store
    store.release(abandoned.claim.lease)
    claim = store.claim("outbox", limit=3, claimant="dead", lease_seconds=0.1)
    abandoned.leave(ONE, TWO, lease=claim.lease, missing=1)
    assert wait_until(lambda: store.reap() == 3, WAIT_SECONDS)
    assert abandoned.after_sweep() == ([], 0, 0)


def test_sweep_ignores_files_of_another_store(abandoned: AbandonedLake) -> None:
    stranger = Lease(LeaseId(uuid4()), Token(uuid4()), "outbox", 60.0)
    abandoned.leave(ONE, TWO, lease=stranger, witness=uuid4(), missing=1)
    assert abandoned.after_sweep() == ([TWO], 1, 0)
