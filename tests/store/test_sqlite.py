"""The store on SQLite: the conformance suite, and behaviour specific to SQLite."""

import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from uuid import uuid4

import pytest
from databases import differences

import penstock
from penstock.model.errors import (
    InvalidEvent,
    NotInitialised,
    StoreConflict,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from penstock.model.lease import Claim
from penstock.model.lifecycle import State
from penstock.model.outcome import PUBLISHED, RELEASED, Dead, Outcome, Retry
from penstock.model.selection import Selection
from penstock.model.times import Clock
from penstock.store.api import StoreOptions
from penstock.store.registry import open_store
from penstock.store.sql.sqlite import dialect as sqlite
from penstock.store.sql.sqlite.dialect import BUSY_SECONDS
from penstock.store.sql.store import SqlStore
from penstock.testing.stores import OpenStore, SqlStoreConformance
from penstock.testing.stores.scenario import EVERYTHING, ManualClock, all_to, claim, event, ids, publish, records, seqs


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with empty tables, which each test copies."""
    path = tmp_path_factory.mktemp("template") / "penstock.db"
    store = open_store(f"sqlite:///{path}")
    store.initialise()
    store.close()
    return path


@pytest.fixture
def database(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(template, tmp_path))


class TestSqliteStore(SqlStoreConformance):
    @pytest.fixture
    def open_store(self, database: Path) -> OpenStore:
        def opened(options: StoreOptions | None = None, clock: Clock | None = None) -> SqlStore:
            return open_store(f"sqlite:///{database}", options, clock)

        return opened

    @pytest.fixture
    def connection(self, database: Path) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(database)
        yield connection
        connection.close()


@pytest.fixture
def store(database: Path) -> Iterator[SqlStore]:
    store = open_store(f"sqlite:///{database}")
    yield store
    store.close()


def test_transaction_takes_write_lock_at_begin(store: SqlStore, database: Path) -> None:
    assert not store.capabilities.concurrent_writers
    other = sqlite3.connect(database, timeout=0)
    with store.transaction(), pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("BEGIN IMMEDIATE")
    other.close()


@pytest.fixture
def writer(database: Path) -> Iterator[sqlite3.Connection]:
    """A connection as of another process, which may hold the write lock."""
    connection = sqlite3.connect(database, isolation_level=None, check_same_thread=False)
    yield connection
    connection.close()


def test_tables_match_code(store: SqlStore) -> None:
    assert differences(store) == {}


def test_missing_database_file_is_not_created(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'new.db'}")
    for verb in (store.stats, store.reap, lambda: store.append([event()])):
        with pytest.raises(NotInitialised, match="penstock init --store sqlite:///"):
            verb()
    assert list(tmp_path.iterdir()) == []


def test_error_for_file_without_tables_names_init(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    store = open_store(f"sqlite:///{path}")
    for verb in (store.stats, store.reap, lambda: store.append([event()]), lambda: claim(store)):
        with pytest.raises(NotInitialised, match="penstock init --store sqlite:///"):
            verb()
    store.close()


def test_missing_folder_is_named_in_error(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'missing' / 'penstock.db'}")
    with pytest.raises(StoreUnavailable, match=r"folder .*missing does not exist"):
        store.initialise()


def test_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("hello " * 1_000)
    (tmp_path / "folder.db").mkdir()
    for name, error in (("text.db", StoreError), ("folder.db", StoreUnavailable)):
        store = open_store(f"sqlite:///{tmp_path / name}")
        with pytest.raises(error, match=name):
            store.stats()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:"])
def test_in_memory_database_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="must be a file"):
        open_store(url)


def test_tables_of_newer_code_are_refused(store: SqlStore, writer: sqlite3.Connection) -> None:
    writer.execute("UPDATE penstock_version SET version_num = '9999'")
    with pytest.raises(NotInitialised, match="unknown table version '9999'; upgrade Penstock"):
        store.initialise()


def test_reads_do_not_wait_for_writer(store: SqlStore, writer: sqlite3.Connection) -> None:
    (emitted,) = store.append([event()])
    writer.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    assert store.ready("outbox")
    assert store.stats().total("pending") == 1
    assert [one.event_id for one in records(store)] == [emitted]
    assert store.history(emitted) == []
    assert store.replay(EVERYTHING, dry_run=True) == store.purge(EVERYTHING, dry_run=True) == 0
    assert not store.asked_to_stop(uuid4())
    assert time.monotonic() - began < BUSY_SECONDS / 2
    writer.execute("ROLLBACK")


def test_blocked_emit_waits_once_and_names_remedy(
    database: Path, writer: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, waits = sqlite._begin, []

    def counted(connection: object) -> None:
        waits.append(connection)
        begin(connection)

    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.2)
    monkeypatch.setattr(sqlite, "_begin", counted)
    with penstock.connect(f"sqlite:///{database}") as outbox:
        writer.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreConflict, match=r"in the open transaction with emit\(\.\.\., connection=\.\.\.\)"):
            outbox.emit("order.placed")
        assert len(waits) == 1
        outbox.emit("order.placed", connection=writer)
        writer.execute("COMMIT")
        assert len(records(outbox.store)) == 1


def test_claim_waits_for_writer(store: SqlStore, writer: sqlite3.Connection) -> None:
    emitted = store.append([event()])
    writer.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(1) as thread:
        claimed = thread.submit(claim, store)
        assert wait([claimed], timeout=0.3).not_done
        writer.execute("COMMIT")
        assert ids(claimed.result()) == emitted


@pytest.mark.parametrize("isolation_level", ["", None])
def test_failed_emit_leaves_no_open_transaction(store: SqlStore, database: Path, isolation_level: str | None) -> None:
    (first,) = store.append([event()])
    connection = sqlite3.connect(database, isolation_level=isolation_level)  # type: ignore[arg-type]
    with pytest.raises(InvalidEvent, match="already exists"):
        store.append([event(), event(event_id=first)], connection=connection)
    assert not connection.in_transaction
    (more,) = store.append([event()], connection=connection)
    connection.commit()
    connection.close()
    assert [one.event_id for one in records(store)] == [first, more]


def test_settle_in_transaction_takes_write_lock_first(store: SqlStore, database: Path) -> None:
    """The lease must not be taken over between its check and the write."""
    store.append([event()])
    held = claim(store)
    connection = sqlite3.connect(database)
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    assert store.settle_in(connection, held.lease, all_to(PUBLISHED, held)).applied == 1
    assert statements[0] == "BEGIN IMMEDIATE"
    assert connection.in_transaction
    connection.rollback()
    connection.close()
    publish(store, held)


def test_claim_cost_is_independent_of_key_backlog(store: SqlStore) -> None:
    costs = []
    for length in (200, 20_000):
        queue = f"queue-{length}"
        store.append([event(queue=queue, ordering_key="k") for _ in range(length)])
        steps = count_steps(store, lambda queue=queue: claim(store, 100, queue=queue))
        costs.append(steps)
    assert costs[1] < costs[0] * 1.5


def count_steps(store: SqlStore, work: Callable[[], object]) -> int:
    """Return the cost of `work` in hundreds of instructions of SQLite's virtual machine."""
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    with store.engine.connect() as connection:
        raw = connection.connection.dbapi_connection
        assert isinstance(raw, sqlite3.Connection)
        raw.set_progress_handler(count, 100)
    try:
        work()
    finally:
        raw.set_progress_handler(None, 0)
    assert steps > 0
    return steps


def mixed(held: Claim) -> dict[int, Outcome]:
    outcomes = (PUBLISHED, RELEASED, Dead("x"), Retry("x", 0))
    return {seq: outcomes[place % 4] for place, seq in enumerate(seqs(held))}


Verb = Callable[[SqlStore, Claim, ManualClock], object]
VERBS: dict[str, Verb] = {
    "publish": lambda store, held, _: publish(store, held),
    "settle": lambda store, held, _: store.settle(held.lease, mixed(held)),
    "settle what was settled": lambda store, held, _: (publish(store, held), store.settle(held.lease, mixed(held))),
    "release": lambda store, held, _: store.release(held.lease),
    "route": lambda store, held, _: store.route(held.lease, {seq: ["one", "two"] for seq in seqs(held)}),
    "repeat": lambda store, held, _: claim(store, 10_000, claimant="another", lease_id=held.lease.lease_id),
    "reap": lambda store, _, clock: (clock.expire_leases(), store.reap()),
    "replay": lambda store, held, _: (publish(store, held), store.replay(Selection(queue=held.lease.queue))),
    "cancel": lambda store, held, _: store.cancel(
        Selection(queue=held.lease.queue, states=frozenset({State.CLAIMED})), reason="x"
    ),
    "purge": lambda store, held, _: (publish(store, held), store.purge(Selection(queue=held.lease.queue))),
    "extend": lambda store, held, _: store.extend([claim(store, 1, queue="leases").lease for _ in held.events[:100]]),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("keyed", [False, True])
def test_cost_grows_linearly_with_events(database: Path, verb: str, keyed: bool) -> None:
    clock = ManualClock()
    store = open_store(f"sqlite:///{database}", clock=clock)
    store.append([event(queue="leases") for _ in range(200)])
    costs = []
    for size in (200, 2_000):
        queue = f"queue-{size}"
        store.append([event(queue=queue, ordering_key=f"k{n % 40}" if keyed else None) for n in range(size)])
        held = claim(store, size, queue=queue)
        assert len(held) == size
        costs.append(count_steps(store, lambda held=held: VERBS[verb](store, held, clock)))
    store.close()
    assert costs[1] < costs[0] * 15
