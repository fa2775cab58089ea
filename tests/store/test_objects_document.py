"""Contents of the queue document: bounds, retention, and clear errors for unsupported or invalid use."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from penstock.config.urls import mask_url
from penstock.model.errors import InvalidEvent, NotInitialised, NotSupported, StoreError, UsageError
from penstock.model.event import EventId
from penstock.model.lifecycle import State
from penstock.model.outcome import PUBLISHED, Dead, Published
from penstock.model.selection import Selection
from penstock.outbox import Outbox
from penstock.store.objects.blobs import INLINE_BYTES
from penstock.store.objects.store import ObjectStore
from penstock.store.registry import open_store
from penstock.testing.stores.scenario import (
    ManualClock,
    all_to,
    claim,
    emit,
    event,
    publish,
    records,
    seqs,
    settle,
)
from penstock.worker import Worker
from penstock.worker.received import Received

LARGE = b"\xff" * (INLINE_BYTES + 1)


def opened(url: str, clock: ManualClock | None = None) -> ObjectStore:
    store = open_store(url, clock=clock)
    assert isinstance(store, ObjectStore)
    return store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    store = opened(f"objects+file://{tmp_path}/queue")
    store.initialise()
    yield store
    store.close()


class TestBounds:
    def test_large_payloads_and_results_are_separate_objects(self, store: ObjectStore) -> None:
        (emitted,) = emit(store, payload=LARGE)
        held = claim(store)
        store.note(held.lease, {seqs(held)[0]: LARGE})
        store.settle(held.lease, all_to(Published(result=LARGE), held))
        found = store.bucket.load()
        assert found is not None
        assert len(found.data) < len(LARGE)
        assert store.notes([emitted])[emitted].progress == store.notes([emitted])[emitted].result == LARGE

    def test_emit_to_full_queue_document_is_error(self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
        emit(store)
        monkeypatch.setattr("penstock.store.objects.operations.emits.DOCUMENT_LIMIT", 10)
        with pytest.raises(StoreError, match="queue document must be at most"):
            emit(store)
        publish(store, claim(store))


class TestRetention:
    """PUBLISHED events are kept for a while, within limits that bound the size of the document."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def store(self, clock: ManualClock) -> Iterator[ObjectStore]:
        with closing(opened(f"objects+memory://{uuid4().hex}", clock)) as store:
            store.initialise()
            yield store

    def test_newest_1000_events_are_kept_at_any_age(self, store: ObjectStore, clock: ManualClock) -> None:
        emitted = settle(store, PUBLISHED, 1_500)
        clock.advance(61)
        emitted += settle(store, PUBLISHED, 1)
        kept = [one.event_id for one in records(store)]
        assert kept == emitted[-1_000:]
        clock.advance(86_400)
        emit(store, delay_seconds=900)
        assert store.stats().total("published") == 1_000
        assert store.stats().purged == {"outbox": 501}

    def test_events_of_last_minute_are_kept(self, store: ObjectStore, clock: ManualClock) -> None:
        emitted = settle(store, PUBLISHED, 3_000)
        clock.advance(59)
        settle(store, PUBLISHED, 1)
        assert store.stats().total("published") == 3_001
        assert store.find(Selection(ids=frozenset(emitted[:1]))).records

    def test_at_most_4000_settled_events_are_kept(self, store: ObjectStore) -> None:
        for _ in range(2):
            settle(store, PUBLISHED, 2_500)
        assert store.stats().total("published") == 4_000
        assert store.stats().purged == {"outbox": 1_000}
        assert store.bounds() == (1_001, 5_000)

    def test_at_most_4_mb_of_settled_events_are_kept(self, store: ObjectStore) -> None:
        for _ in range(4):
            settle(store, PUBLISHED, 500, payload=b"x" * 4_000)
        found = store.bucket.load()
        assert found is not None
        assert len(found.data) < 4.5 * 2**20
        assert 900 < store.stats().total("published") < 1_100
        assert store.stats().total("published") + store.stats().purged["outbox"] == 2_000

    def test_dead_and_unsettled_events_are_kept(self, store: ObjectStore, clock: ManualClock) -> None:
        dead = settle(store, Dead("no"), 1_500)
        clock.advance(86_400)
        waiting = emit(store, 1_500)
        settle(store, PUBLISHED, 1_100, queue="other")
        clock.advance(61)
        emit(store)
        assert {one.event_id for one in records(store)} >= {*dead, *waiting}
        assert store.stats().total("dead") == 1_500
        assert store.replay(Selection(queue="outbox")) == 1_500

    def test_ids_of_deleted_events_can_be_reused(self, store: ObjectStore, clock: ManualClock) -> None:
        own = EventId(uuid4())
        settle(store, PUBLISHED, event_id=own)
        with pytest.raises(InvalidEvent, match="already exists"):
            emit(store, event_id=own)
        clock.advance(61)
        settle(store, PUBLISHED, 1_000)
        assert store.history(own) == []
        assert emit(store, event_id=own) == [own]

    def test_repeated_settle_is_recognised_for_one_minute(self, store: ObjectStore) -> None:
        emit(store)
        held = claim(store)
        store.settle(held.lease, all_to(PUBLISHED, held))
        settle(store, PUBLISHED, 3_000)
        assert store.settle(held.lease, all_to(PUBLISHED, held)).already_settled == set(seqs(held))

    def test_new_broker_deletes_earliest_settled_events_first(self, store: ObjectStore, clock: ManualClock) -> None:
        """Retention follows the settlement time, which a new broker cannot infer from the order in the document."""
        (first, *others) = emit(store, 1_200)
        late = claim(store, 1)
        publish(store, claim(store, 1_199))
        clock.advance(30)
        publish(store, late)
        clock.advance(61)
        store.close()
        emit(store)
        kept = {one.event_id for one in records(store, Selection(states=frozenset({State.PUBLISHED})))}
        assert len(kept) == 1_000
        assert first in kept
        assert kept - {first} <= set(others)


class TestRefusals:
    def test_ordering_keys_are_refused(self, store: ObjectStore) -> None:
        with pytest.raises(
            NotSupported, match=r"does not support ordering keys, such as that of event type 'orders\.created'; use"
        ):
            store.append([event(), event(ordering_key="k")])
        with Outbox(store) as outbox, pytest.raises(NotSupported, match="ordering keys"):
            outbox.emit("orders.created", {}, ordering_key="k")
        assert records(store) == []

    def test_documents_of_another_format_are_refused(self, store: ObjectStore) -> None:
        before = store.bucket.load()
        assert before is not None
        for found, remedy in ((1, "another prefix, and run: penstock init"), (99, "upgrade Penstock")):
            written = before.data.replace(b'"penstock":2', b'"penstock":%d' % found)
            before = store.bucket.swap(written, before)
            for use in (emit, records, ObjectStore.initialise):
                with pytest.raises(StoreError, match=remedy) as refused:
                    use(store)
                assert "\n" not in str(refused.value)
            before = store.bucket.swap(written.replace(b'"penstock":%d' % found, b'"penstock":2'), before)


def test_server_is_imported_by_brokers_only(tmp_path: Path) -> None:
    script = """
import sys
from penstock.store.registry import open_store
from penstock.store.api import Selection
from penstock.model.event import Event
store = open_store(sys.argv[1])
store.initialise()
store.stats()
assert not {"uvicorn", "starlette"} & sys.modules.keys()
store.append([Event(event_type="a")])
assert "uvicorn" in sys.modules
store.close()
"""
    subprocess.run([sys.executable, "-c", script, f"objects+file://{tmp_path}/queue"], check=True)


def test_emit_in_database_transaction_is_refused(store: ObjectStore) -> None:
    assert not store.capabilities.transactional_emit
    with pytest.raises(NotSupported, match="emit after the commit"):
        store.append([event()], connection=object())


def test_queue_without_init_is_error(tmp_path: Path) -> None:
    verbs: list[Callable[[ObjectStore], object]] = [emit, records, claim]
    for verb in verbs:
        with closing(opened(f"objects+file://{tmp_path}/none")) as store, pytest.raises(NotInitialised, match="init"):
            verb(store)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("objects+ftp://x/y", "supported: "),
        ("objects+s3:///prefix", "expected a bucket"),
        ("objects+file://queue", "expected a folder"),
        ("objects+memory://x?broker=maybe", "one of auto, never"),
        ("objects+memory://x?broker_seconds=soon", "must be a number"),
        ("objects+memory://x?wait_seconds=0", "greater than 0"),
        ("objects+s3://bucket?nonsense=1", "invalid options for obstore"),
        ("objects+memory://x?listen=nowhere", "for listen; use HOST:PORT"),
    ],
)
def test_invalid_url_is_usage_error(url: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        use(url)


def use(url: str) -> None:
    with closing(opened(url)) as store:
        store.initialise()
        emit(store)


def test_secrets_are_not_shown() -> None:
    url = (
        "objects+s3://bucket/queue?access_key_id=AKIA&secret_access_key=hidden&token=hidden&endpoint=http://127.0.0.1:1"
    )
    with closing(opened(url)) as store:
        assert "hidden" not in store.url
    shown = mask_url("objects+az://c/q?account_key=hidden&azure_client_secret=hidden&aws_session_token=hidden")
    assert "hidden" not in shown


def test_worker_runs_on_object_store(tmp_path: Path) -> None:
    url = f"objects+file://{tmp_path}/queue"
    done: list[object] = []
    all_done = threading.Event()
    worker = Worker(url)

    @worker.handler("emails")
    def handle(event: Received) -> None:
        done.append(event.event_id)
        if len(done) == 20:
            all_done.set()

    def stop() -> None:
        assert all_done.wait(60)
        worker.stop()

    with closing(opened(url)) as store:
        store.initialise()
        emitted = emit(store, 20, queue="emails")
        threading.Thread(target=stop, daemon=True).start()
        worker.run()
        assert sorted(map(str, done)) == sorted(map(str, emitted))
        assert store.stats().total("published") == 20
