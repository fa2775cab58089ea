"""What a queue's document holds and what it doesn't: it stays small, and says what it can't do."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.config import mask_url
from penstock.errors import NotInitialised, NotSupported, StoreError, UsageError
from penstock.lifecycle import PUBLISHED, Published
from penstock.store import open_store
from penstock.store.objects import ObjectStore
from penstock.store.objects.emitting import PAYLOAD_LIMIT
from penstock.store.objects.model import Model
from penstock.testing.stores.scenario import EVERYTHING, all_to, claim, emit, event, publish, records, seqs, settle
from penstock.worker import Worker
from penstock.worker.received import Received

LARGE = b"\xff" * (PAYLOAD_LIMIT + 1)


def opened(url: str) -> ObjectStore:
    store = open_store(url)
    assert isinstance(store, ObjectStore)
    return store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    store = opened(f"objects+file://{tmp_path}/queue")
    store.initialise()
    yield store
    store.close()


class TestBounds:
    def test_the_document_stays_small_however_many_are_done(self, store: ObjectStore) -> None:
        for _ in range(12):
            settle(store, PUBLISHED, 250, payload=b"x" * 200)
        found = store.bucket.load()
        assert found is not None
        assert len(found.data) < 1_000_000
        assert len(Model.from_json(found.data).archived) <= 1_000
        assert store.stats().total("published") == len(records(store)) == 3_000
        assert store.bounds() == (1, 3_000)
        assert store.replay(EVERYTHING) == 3_000
        assert store.stats().total("pending") == 3_000

    def test_large_payloads_and_results_are_objects_of_their_own(self, store: ObjectStore) -> None:
        (emitted,) = emit(store, payload=LARGE)
        held = claim(store)
        store.note(held.lease, {seqs(held)[0]: LARGE})
        store.settle(held.lease, all_to(Published(result=LARGE), held))
        found = store.bucket.load()
        assert found is not None
        assert len(found.data) < len(LARGE)
        assert store.notes([emitted])[emitted].progress == store.notes([emitted])[emitted].result == LARGE

    def test_a_full_queue_says_so(self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
        emit(store)
        monkeypatch.setattr("penstock.store.objects.emitting.DOCUMENT_LIMIT", 10)
        with pytest.raises(StoreError, match="takes no more events"):
            emit(store)
        publish(store, claim(store))


def test_a_database_s_transaction_is_refused(store: ObjectStore) -> None:
    assert not store.capabilities.transactional_emit
    with pytest.raises(NotSupported, match="emit after it"):
        store.append([event()], connection=object())


def test_a_queue_is_made_by_init(tmp_path: Path) -> None:
    verbs: list[Callable[[ObjectStore], object]] = [emit, records, claim]
    for verb in verbs:
        with closing(opened(f"objects+file://{tmp_path}/none")) as store, pytest.raises(NotInitialised, match="init"):
            verb(store)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("objects+ftp://x/y", "known ones"),
        ("objects+s3:///prefix", "no bucket"),
        ("objects+file://queue", "no folder"),
        ("objects+memory://x?broker=maybe", "one of auto, never, always"),
        ("objects+memory://x?broker_seconds=soon", "is a number"),
        ("objects+memory://x?wait_seconds=0", "greater than 0"),
        ("objects+s3://bucket?nonsense=1", "obstore doesn't take"),
        ("objects+memory://x?listen=nowhere", "listen=host:port"),
    ],
)
def test_a_url_that_makes_no_sense_is_told(url: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
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


def test_a_worker_runs_on_it(tmp_path: Path) -> None:
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
