"""Commits of the queue document: many changes share one write, and no change is lost or made twice if the answer to a
write is lost or a process is killed."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from object_queues import LARGE, SECONDS, Brake, committer, document, opened

from penstock.model.errors import StoreUnavailable, UsageError
from penstock.model.outcome import PUBLISHED, Published, Retry
from penstock.model.selection import Selection
from penstock.store.objects.bucket import Overtaken, Version
from penstock.store.objects.store import ObjectStore
from penstock.testing.stores.scenario import (
    ManualClock,
    all_to,
    claim,
    emit,
    event,
    ids,
    publish,
    record,
    records,
    seqs,
)
from tests.support.gates import Gate
from tests.support.processes import wait_until
from tests.support.servers import S3Server


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"objects+file://{tmp_path}/queue?broker_seconds=30"
    with closing(opened(url)) as store:
        assert store.initialise().steps
        assert not store.initialise().steps
    return url


@pytest.fixture
def store(url: str) -> Iterator[ObjectStore]:
    store = opened(url)
    yield store
    store.close()


class TestGroups:
    def test_changes_during_write_share_next_write(self, url: str) -> None:
        store = opened(url)
        brake = store.bucket = Brake(store.bucket)
        emit(store)
        writing = committer(store)
        before = writing.writes
        brake.off.clear()
        with ThreadPoolExecutor(64) as pool:
            first = pool.submit(emit, store)
            assert brake.waiting.wait(SECONDS)
            others = [pool.submit(emit, store) for _ in range(63)]
            assert wait_until(lambda: len(writing._waiting) == 63, SECONDS)
            assert len(records(store)) == 1, "a reader sees nothing that is not durable"
            brake.off.set()
            emitted = [one for each in (first, *others) for one in each.result()]
        assert len(set(emitted)) == 64
        assert writing.writes - before == 2
        assert len(records(store)) == 65
        store.close()

    def test_invalid_change_does_not_fail_rest_of_group(self, url: str) -> None:
        store = opened(url)
        brake = store.bucket = Brake(store.bucket)
        (taken,) = emit(store)
        brake.off.clear()
        with ThreadPoolExecutor(3) as pool:
            pool.submit(emit, store)
            assert brake.waiting.wait(SECONDS)
            wrong = pool.submit(store.append, [event(), event(event_id=taken)])
            right = pool.submit(emit, store, 2)
            assert wait_until(lambda: len(committer(store)._waiting) == 2, SECONDS)
            brake.off.set()
            with pytest.raises(UsageError, match="event_id"):
                wrong.result()
            assert len(right.result()) == 2
        assert len(records(store)) == 4
        store.close()

    def test_operations_without_change_write_nothing(self, store: ObjectStore) -> None:
        emit(store, delay_seconds=900)
        before = committer(store).writes
        assert not claim(store)
        assert not store.ready("outbox")
        assert store.stats().total("pending") == 1
        assert store.reap() == 0
        assert store.extend([claim(store).lease]) == []
        assert store.cancel(Selection(queue="none")) == 0
        store.withdraw(uuid4())
        assert committer(store).writes == before

    def test_commit_pass_reaps_expired_leases(self, url: str) -> None:
        clock = ManualClock()
        with closing(opened(url, clock)) as store:
            (emitted,) = emit(store)
            slept = claim(store)
            clock.expire_leases()
            assert ids(claim(store)) == [emitted]
            assert record(store, emitted).attempts == 1
            assert store.settle(slept.lease, all_to(PUBLISHED, slept)).lost == set(seqs(slept))

    def test_broker_lease_is_renewed_while_idle(self, tmp_path: Path) -> None:
        url = f"objects+file://{tmp_path}/queue?broker_seconds=0.3"
        with closing(opened(url)) as store:
            store.initialise()
            emit(store)
            first = document(store).broker
            assert first is not None
            assert wait_until(lambda: (document(store).broker or first).expires_at > first.expires_at, SECONDS)

    def test_idle_broker_returns_lease(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """An idle broker returns its lease; otherwise a process would renew it forever after a single emit."""
        monkeypatch.setattr("penstock.store.objects.group_commit.IDLE_SECONDS", 0.2)
        with closing(opened(f"objects+file://{tmp_path}/queue?broker_seconds=3")) as store:
            store.initialise()
            emit(store)
            assert wait_until(lambda: document(store).broker is None, SECONDS)
            writes = committer(store).writes
            assert len(records(store)) == 1
            assert not committer(store).leads
            emit(store)
            assert committer(store).writes > writes
            assert document(store).broker is not None


class TestUnknownWrites:
    """The answer to a PUT is lost: the server executed the write, but the broker does not know."""

    @pytest.fixture
    def gate(self, s3_server: S3Server) -> Iterator[Gate]:
        with Gate(s3_server.port) as gate:
            yield gate

    @pytest.fixture
    def far(self, s3_server: S3Server, gate: Gate) -> Iterator[ObjectStore]:
        name = s3_server.create_bucket(f"b-{uuid4().hex}")
        store = opened(s3_server.url(name, "queue", endpoint=f"http://127.0.0.1:{gate.port}", broker_seconds=30))
        store.initialise()
        yield store
        store.close()

    @pytest.mark.parametrize("cuts", [1, 4])
    def test_emit_with_lost_answer_is_not_duplicated(self, far: ObjectStore, gate: Gate, cuts: int) -> None:
        emit(far)
        gate.cut_answers(to=b"PUT ", count=cuts)
        emitted = emit(far, 3)
        assert gate.cuts_left == 0
        assert [one.event_id for one in records(far)][1:] == emitted

    @pytest.mark.parametrize("cuts", [1, 4])
    def test_claim_and_settle_with_lost_answer_count_once(self, far: ObjectStore, gate: Gate, cuts: int) -> None:
        emitted = emit(far, 2)
        gate.cut_answers(to=b"PUT ", count=cuts)
        held = claim(far, 1)
        assert ids(held) == emitted[:1]
        assert [one.deliveries for one in records(far)] == [1, 0]
        assert document(far).leases.keys() == {held.lease.lease_id.hex}
        gate.cut_answers(to=b"PUT ", count=cuts)
        settled = far.settle(held.lease, all_to(Retry("no", 0), held))
        assert gate.cuts_left == 0
        assert settled.retried == set(seqs(held))
        assert record(far, emitted[0]).attempts == 1
        assert [line.what for line in far.history(emitted[0])] == ["retried"]

    def test_large_payload_with_lost_answer_is_stored(self, far: ObjectStore, gate: Gate) -> None:
        gate.cut_answers(to=b"PUT ", count=1)
        emit(far, payload=LARGE)
        assert [one.payload for one in records(far)] == [LARGE]

    def test_stopped_server_is_store_unavailable(self, s3_server: S3Server) -> None:
        with S3Server() as server:
            name = server.create_bucket("away")
            store = opened(server.url(name, wait_seconds=3.0, broker_seconds=3.0))
            store.initialise()
            emit(store)
            server.stop()
            with pytest.raises(StoreUnavailable):
                emit(store)
            server.start()
            emit(store)
            assert len(records(store)) in (2, 3)
            store.close()


DIES = """
import os, sys
from penstock.model.event import Event
from penstock.store.registry import open_store
from penstock.store.objects.bucket import FolderBucket
store = open_store(sys.argv[1])
swap = FolderBucket.swap
def dying(self, data, before):
    if sys.argv[2] == "after":
        swap(self, data, before)
    os._exit(7)
FolderBucket.swap = dying
store.append([Event(event_type="orders.created", payload=b"x" * 100_000)])
"""


class TestCrashes:
    def die(self, url: str, when: str) -> None:
        """Run a process that has written a payload object and dies before or after its write of the document."""
        assert subprocess.run([sys.executable, "-c", DIES, url, when]).returncode == 7

    def test_crash_before_document_write_emits_nothing(self, url: str, tmp_path: Path) -> None:
        self.die(url, "before")
        (orphan,) = (tmp_path / "queue" / "payloads").iterdir()
        draft = tmp_path / "queue" / "drafts" / "half-written"
        draft.write_bytes(b"half")
        with closing(opened(url)) as store:
            assert records(store) == []
            store.maintain()
            assert orphan.exists(), "it may still be on its way into a document"
        long_ago = (datetime.now(UTC) - timedelta(days=2)).timestamp()
        for left_over in (orphan, draft):
            os.utime(left_over, (long_ago, long_ago))
        with closing(opened(url)) as store:
            emit(store, payload=LARGE)
            store.maintain()
            assert not orphan.exists()
            assert not draft.exists()
            assert [one.payload for one in records(store)] == [LARGE]

    def test_crash_after_document_write_keeps_event(self, url: str) -> None:
        with closing(opened(url.replace("broker_seconds=30", "broker_seconds=1"))) as store:
            self.die(url.replace("broker_seconds=30", "broker_seconds=1"), "after")
            assert [one.payload for one in records(store)] == [b"x" * 100_000]
            publish(store, claim(store))

    def test_maintain_on_s3_deletes_unreferenced_objects(
        self, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("penstock.store.objects.blobs.ORPHAN_AGE", timedelta(seconds=-60))
        bucket = s3_server.create_bucket(f"b-{uuid4().hex}")
        with closing(opened(s3_server.url(bucket, "queue", broker_seconds=30))) as store:
            store.initialise()
            emit(store, payload=LARGE)
            store.bucket.write("payloads/left-over", LARGE)
            store.maintain()
            (name,) = [name for name, _ in store.bucket.names("payloads")]
            assert name != "payloads/left-over"
            assert [one.payload for one in records(store)] == [LARGE]

    def test_maintain_deletes_objects_of_purged_events_only(self, url: str, tmp_path: Path) -> None:
        with closing(opened(url)) as store:
            emit(store, 3, payload=LARGE)
            held = claim(store)
            store.note(held.lease, dict.fromkeys(seqs(held), LARGE))
            store.settle(held.lease, all_to(Published(result=LARGE), held))
            purged = ids(held)[0]
            assert store.purge(Selection(ids=frozenset({purged}))) == 1
            objects = tmp_path / "queue" / "payloads"
            assert len(list(objects.iterdir())) == 9
            long_ago = (datetime.now(UTC) - timedelta(days=2)).timestamp()
            for path in objects.iterdir():
                os.utime(path, (long_ago, long_ago))
            store.maintain()
            assert len(list(objects.iterdir())) == 6
            assert [one.payload for one in records(store)] == [LARGE] * 2
            assert [(note.progress, note.result) for note in store.notes(ids(held)).values()] == [(LARGE, LARGE)] * 2


class TestSwapping:
    def test_one_of_many_concurrent_swaps_succeeds(self, url: str) -> None:
        with closing(opened(url)) as store, ThreadPoolExecutor(8) as pool:
            for number in range(50):
                before = store.bucket.load()
                together = threading.Barrier(8)

                def swap(writer: int, before: Version | None = before, together: Any = together) -> bool:
                    together.wait()
                    try:
                        store.bucket.swap(str(writer).encode(), before)
                    except Overtaken:
                        return False
                    return True

                won = list(pool.map(swap, range(8)))
                found = store.bucket.load()
                assert found is not None
                # A winner that is overtaken before its check would also lose, but no later version is written here.
                assert sum(won) == 1, number
                assert found.data == str(won.index(True)).encode()

    def test_swap_from_old_version_is_overtaken(self, store: ObjectStore) -> None:
        """The file name of the stale writer's version is free again, because old versions are deleted."""
        stale = store.bucket.load()
        emit(store)
        for _ in range(3):
            emit(store)
        with pytest.raises(Overtaken):
            store.bucket.swap(b"stale", stale)
        assert len(records(store)) == 4
