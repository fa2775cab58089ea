"""The store on PostgreSQL: the conformance suite, and behaviour specific to PostgreSQL."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from databases import differences, empty_postgres, logged_text

from penstock.model.errors import NotInitialised, StoreError, StoreUnavailable, UsageError
from penstock.model.event import Event, EventId
from penstock.model.times import Clock
from penstock.store.api import StoreOptions
from penstock.store.registry import open_store
from penstock.store.sql import claim_hints as hints
from penstock.store.sql.store import SqlStore
from penstock.testing.stores import OpenStore, SqlStoreConformance
from penstock.testing.stores.scenario import claim, event, ids, publish
from tests.support.processes import wait_until
from tests.support.servers import PostgresServer


@pytest.fixture(scope="module")
def shared_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A database with its tables, shared by all tests of the suite: emptying it is faster than creating another."""
    url = postgres_server.create_database()
    store = open_store(url)
    store.initialise()
    store.close()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def database(shared_url: str) -> str:
    empty_postgres(shared_url)
    return shared_url


class TestPostgresStore(SqlStoreConformance):
    @pytest.fixture
    def open_store(self, database: str) -> OpenStore:
        def opened(options: StoreOptions | None = None, clock: Clock | None = None) -> SqlStore:
            return open_store(database, options, clock)

        return opened

    @pytest.fixture
    def connection(self, database: str) -> Iterator[psycopg.Connection]:
        with psycopg.connect(database) as connection:
            yield connection


SECRET = "s3cr3t/pass:word"


@pytest.fixture
def store(database: str) -> Iterator[SqlStore]:
    store = open_store(database)
    yield store
    store.close()


def test_tables_match_code(store: SqlStore) -> None:
    assert differences(store) == {}


def test_error_for_database_without_tables_names_init(postgres_url: str) -> None:
    store = open_store(postgres_url)
    for verb in (store.stats, store.reap, lambda: store.append([event()]), lambda: claim(store)):
        with pytest.raises(NotInitialised, match="penstock init --store postgresql://"):
            verb()
    assert store.versions()[0] is None
    store.close()


def test_tables_of_newer_code_are_refused(postgres_url: str) -> None:
    store = open_store(postgres_url)
    store.initialise()
    with psycopg.connect(postgres_url) as connection:
        connection.execute("UPDATE penstock_version SET version_num = '9999'")
    with pytest.raises(NotInitialised, match="unknown table version '9999'; upgrade Penstock"):
        store.initialise()
    store.close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://someone:{secret}@127.0.0.1:1/nowhere",
        "postgres://someone:{secret}@127.0.0.1:1/nowhere?connect_timeout=2",
        "postgresql://someone@127.0.0.1:1/nowhere?password={secret}&application_name=x",
        "postgresql://someone:{secret}@127.0.0.1:1/nowhere?no_such_option=1",
        "postgresql://someone:{secret}@127.0.0.1:port/nowhere",
        "postgresql://someone:{secret}@[::1/nowhere",
        "postgresql:someone:{secret}@nowhere",
        "oracle://someone:{secret}@127.0.0.1/nowhere",
    ],
)
def test_errors_show_no_password(url: str) -> None:
    for secret in ("s3cr3t", SECRET):
        with pytest.raises((StoreError, UsageError)) as caught:
            open_store(url.format(secret=secret)).stats()
        assert "s3cr3t" not in logged_text(caught.value)
        assert "pass:word" not in logged_text(caught.value)


def test_errors_of_open_store_show_no_password(database: str) -> None:
    """The test server uses trust authentication, so it accepts the URL with a password."""
    store = open_store(database.replace("penstock@", "penstock:s3cr3t@"))
    assert "s3cr3t" not in store.url
    with psycopg.connect(database) as connection:
        connection.execute("ALTER TABLE penstock_leases RENAME TO hidden")
        connection.commit()
        try:
            with pytest.raises(NotInitialised) as caught:
                claim(store)
        finally:
            connection.execute("ALTER TABLE hidden RENAME TO penstock_leases")
    assert "s3cr3t" not in logged_text(caught.value)
    with pytest.raises(StoreError, match="rejected the statement") as refused, store.transaction() as inside:
        inside.exec_driver_sql("SELECT 1 / 0")
    assert "s3cr3t" not in logged_text(refused.value)
    store.close()


def test_unreachable_server_is_named_in_error() -> None:
    store = open_store("postgresql://someone@127.0.0.1:1/nowhere")
    with pytest.raises(StoreUnavailable, match=r"cannot reach postgresql://someone@127.0.0.1:1/nowhere: .*refused"):
        store.stats()


def test_store_uses_read_committed_despite_server_default(postgres_url: str) -> None:
    """A stricter isolation level would make ordinary lock waits end in errors."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_isolation TO serializable')
        connection.execute(f'ALTER DATABASE "{name}" SET timezone TO "Asia/Kathmandu"')
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SHOW transaction_isolation").fetchone() == ("serializable",)
    store = open_store(postgres_url)
    store.initialise()
    for _ in range(2):
        with store.transaction() as inside:
            assert inside.exec_driver_sql("SHOW transaction_isolation").scalar() == "read committed"
    emitted = store.append([event() for _ in range(30)])
    assert ids(claim(store)) == emitted
    store.close()


def test_lost_connection_is_error_once(database: str) -> None:
    store = open_store(database)
    store.append([event()])
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    with pytest.raises(StoreUnavailable, match="cannot reach"):
        claim(store)
    assert len(claim(store)) == 1
    store.close()


def test_lost_connection_replaces_all_pooled_connections(database: str) -> None:
    """Connections that are in use when the server is lost are also replaced at their next checkout. A connection left
    open would fail this test by its ResourceWarning."""
    store = open_store(database)
    pid = "SELECT pg_backend_pid()"
    with store.transaction() as in_hand:
        before = in_hand.exec_driver_sql(pid).scalar_one()
        with pytest.raises(StoreUnavailable), store.transaction() as connection:
            connection.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")
        assert in_hand.exec_driver_sql(pid).scalar_one() == before, "it goes on undisturbed"
    with store.transaction() as connection:
        assert connection.exec_driver_sql(pid).scalar_one() != before
    store.close()


def test_batches_with_keys_in_different_order_do_not_deadlock(store: SqlStore, database: str) -> None:
    def emit(turn: int) -> None:
        for number in range(30):
            keys = [f"{number}-{place}" for place in range(15)]
            store.append([event(ordering_key=key) for key in (keys if turn else reversed(keys))])

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(emit, range(2)))
    with psycopg.connect(database) as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")
        found = connection.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        assert found.fetchone() == (0,)


def test_batches_with_dedupe_keys_in_any_order_do_not_deadlock(store: SqlStore, database: str) -> None:
    keys = ["a", "m", "z"]
    orders = (keys, keys[::-1])
    emit_while_held_up(store, database, [[event(dedupe_key=key) for key in order] for order in orders])
    assert store.stats().queues[0].pending == 3


def test_emit_locks_dedupe_keys_before_ordering_keys(store: SqlStore, database: str) -> None:
    batch = [event(dedupe_key="m", ordering_key="k"), event(dedupe_key="d")]
    emit_while_held_up(store, database, [batch, [event(dedupe_key="d", ordering_key="k")]])
    assert store.stats().queues[0].pending == 2


def emit_while_held_up(store: SqlStore, database: str, batches: list[list[Event]]) -> None:
    """Emit batches concurrently, each in a transaction that has to wait for the dedupe key "m" or for another batch."""

    def emit(batch: list[Event]) -> int:
        with psycopg.connect(database) as connection:
            return len(store.append(batch, connection=connection))

    with psycopg.connect(database) as first, ThreadPoolExecutor() as pool:
        store.append([event(dedupe_key="m")], connection=first)
        emitters = []
        for number, batch in enumerate(batches, 1):
            emitters.append(pool.submit(emit, batch))
            assert wait_until(lambda number=number: waiting(database) == number, 60)
        first.commit()
        assert [emitter.result() for emitter in emitters] == [len(batch) for batch in batches]


def waiting(database: str) -> int:
    """Return the number of transactions that wait for a lock."""
    with psycopg.connect(database) as connection:
        found = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        ).fetchone()
    assert found is not None
    return int(found[0])


def test_uncommitted_emit_for_drained_key_is_delivered(store: SqlStore, database: str) -> None:
    (first,) = store.append([event(ordering_key="k")])
    with psycopg.connect(database) as connection:
        (second,) = store.append([event(ordering_key="k")], connection=connection)
        held = claim(store)
        assert ids(held) == [first]
        publish(store, held)
        assert not claim(store)
    found: list[EventId] = []
    assert wait_until(lambda: found.extend(ids(claim(store))) or bool(found), 60)
    assert found == [second]


def test_emits_and_claims_do_not_wait_for_each_other(store: SqlStore, database: str) -> None:
    (first,) = store.append([event(ordering_key="k")])
    with psycopg.connect(database) as emitting, psycopg.connect(database) as claiming:
        for connection in (emitting, claiming):
            connection.execute("SET lock_timeout = '2s'")
            connection.commit()
        store.append([event(ordering_key="k"), event(ordering_key="new")], connection=emitting)
        claiming.execute("UPDATE penstock_keys SET lease_id = gen_random_uuid() WHERE ordering_key = 'k'")
        store.append([event(ordering_key="k")], connection=emitting)
        store.append([event(ordering_key="k"), event(ordering_key="newer")], connection=emitting)
        claiming.rollback()
        assert ids(claim(store)) == [first]


def test_probe_finds_events_below_scan_floor(store: SqlStore, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim scans from its floor, near the present, where new events are; every FULL_LOOK_SECONDS it scans all."""
    monkeypatch.setattr(hints, "FULL_LOOK_SECONDS", 0.2)
    store.append([event()])
    assert claim(store)
    assert not store.ready("outbox")
    other = open_store(database)
    old = other.append([event(available_at=datetime.now(UTC) - timedelta(hours=1))])
    other.close()
    assert wait_until(lambda: store.ready("outbox"), 60)
    assert ids(claim(store)) == old


def test_stats_show_oldest_snapshot(store: SqlStore, database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT 1 FROM penstock_events")
        shown = store.stats().oldest_snapshot_seconds
        assert shown is not None
        assert shown >= 0
    assert store.stats().oldest_snapshot_seconds is None


def test_server_clock_is_used_by_default(store: SqlStore, database: str) -> None:
    store.append([event(), event(ordering_key="k")])
    assert len(claim(store)) == 2
    with psycopg.connect(database) as connection:
        found = connection.execute(
            "SELECT count(*) FROM penstock_outbox WHERE created_at BETWEEN now() - interval '1 minute' AND now() "
            "AND claimed_at BETWEEN created_at AND now()"
        )
        assert found.fetchone() == (2,)
    assert abs(store.now() - datetime.now(UTC)) < timedelta(minutes=1)


def test_claim_skips_manually_deleted_event(store: SqlStore, database: str) -> None:
    """The other events are delivered. The row of the deleted event stays claimed until its lease expires."""
    kept, deleted, last = store.append([event() for _ in range(3)])
    with psycopg.connect(database) as connection:
        connection.execute("DELETE FROM penstock_events WHERE event_id = %s", [deleted])
    assert ids(claim(store)) == [kept, last]
