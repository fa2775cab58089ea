"""Lock waits and deadlocks on MariaDB: operations that wait for each other, operations that must not, and retries."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from threading import Event as Signal
from typing import Any

import pymysql
import pytest
from databases import MysqlConnection, connect_mysql

from penstock.model.errors import StoreConflict, UsageError
from penstock.model.event import EventId
from penstock.model.lifecycle import State
from penstock.model.outcome import PUBLISHED, RELEASED, Retry
from penstock.model.selection import Selection
from penstock.outbox import Outbox
from penstock.store.registry import open_store
from penstock.store.sql import claim_hints as hints
from penstock.store.sql.mysql import statements as mysql_statements
from penstock.store.sql.store import SqlStore
from penstock.store.sql.transaction import Transaction
from penstock.testing.stores.scenario import all_to, claim, event, ids, publish, seqs
from tests.support.processes import wait_until
from tests.support.servers import MariadbServer

LEVELS = ["READ COMMITTED", "REPEATABLE READ"]


@pytest.fixture
def store(mariadb_url: str) -> Iterator[SqlStore]:
    store = open_store(mariadb_url)
    store.initialise()
    yield store
    store.close()


def impatient(url: str, isolation: str = "READ COMMITTED") -> MysqlConnection:
    """Open a connection that waits only 1 s for a lock, then fails."""
    connection = connect_mysql(url, isolation)
    connection.execute("SET SESSION innodb_lock_wait_timeout = 1")
    return connection


@pytest.mark.parametrize("level", LEVELS)
class TestEmittersAndClaimers:
    def test_emits_and_claims_do_not_wait_for_each_other(self, store: SqlStore, mariadb_url: str, level: str) -> None:
        (first,) = store.append([event(ordering_key="k")])
        with impatient(mariadb_url, level) as emitting, impatient(mariadb_url) as claiming:
            store.append([event(ordering_key="k"), event(ordering_key="new")], connection=emitting)
            held = claim(store)
            assert ids(held) == [first]
            claiming.execute("SELECT * FROM penstock_keys WHERE queue = 'outbox' AND ordering_key = 'k' FOR UPDATE")
            store.append([event(ordering_key="k")], connection=emitting)
            store.append([event(ordering_key="k"), event(ordering_key="newer")], connection=emitting)
            claiming.rollback()
            settled = store.settle_in(claiming, held.lease, all_to(PUBLISHED, held))
            claiming.commit()
            assert settled.published == set(seqs(held))

    def test_uncommitted_emit_for_drained_key_is_delivered(self, store: SqlStore, mariadb_url: str, level: str) -> None:
        (first,) = store.append([event(ordering_key="k")])
        with connect_mysql(mariadb_url, level) as connection:
            (second,) = store.append([event(ordering_key="k")], connection=connection)
            held = claim(store)
            assert ids(held) == [first]
            publish(store, held)
            assert not claim(store)
            connection.commit()
        found: list[EventId] = []
        assert wait_until(lambda: found.extend(ids(claim(store))) or bool(found), 60)
        assert found == [second]

    def test_concurrent_emits_of_new_keys_do_not_deadlock(self, store: SqlStore, mariadb_url: str, level: str) -> None:
        """If a stricter transaction locked a missing row, it would lock the index gap of the other's key, too."""
        with impatient(mariadb_url, level) as one, impatient(mariadb_url, level) as other:
            emitted = [
                store.append([event(ordering_key=f"order-{number}")], connection=connection)[0]
                for number, connection in enumerate([one, other, other, one])
            ]
            one.commit()
            other.commit()
        assert sorted(ids(claim(store))) == sorted(emitted)

    def test_emit_waits_for_concurrent_creation_of_same_key(
        self, store: SqlStore, mariadb_url: str, level: str
    ) -> None:
        with ThreadPoolExecutor(1) as thread, closing(connect_mysql(mariadb_url, level)) as making:
            (first,) = store.append([event(ordering_key="k")], connection=making)
            second = thread.submit(store.append, [event(ordering_key="k")])
            assert wait_until(lambda: waits(mariadb_url), 60)
            making.commit()
            assert ids(claim(store)) == [first, *second.result(60)]

    def test_settle_in_old_snapshot_sees_latest_rows(self, store: SqlStore, mariadb_url: str, level: str) -> None:
        with connect_mysql(mariadb_url, level) as caller:
            caller.execute("SELECT * FROM penstock_pending, penstock_claimed, penstock_keys, penstock_leases")
            emitted = store.append([event(ordering_key="k") for _ in range(4)])
            held = claim(store, 3)
            first, second, third = seqs(held)
            assert store.settle_in(caller, held.lease, {first: PUBLISHED}).published == {first}
            caller.commit()
            assert not claim(store), "the key is still under its lease"
            caller.execute("SELECT * FROM penstock_pending, penstock_claimed, penstock_keys, penstock_leases")
            late = store.append([event(ordering_key="k")])
            assert store.settle_in(caller, held.lease, {second: Retry("x", 0), third: RELEASED}).applied == 2
            caller.commit()
        assert ids(claim(store)) == emitted[1:] + late

    def test_emit_in_old_snapshot_sees_latest_dedupe_window(
        self, store: SqlStore, mariadb_url: str, level: str
    ) -> None:
        with connect_mysql(mariadb_url, level) as caller:
            caller.execute("SELECT * FROM penstock_dedupe")
            first = store.append([event(dedupe_key="x")])
            assert store.append([event(dedupe_key="x")], connection=caller) == first
            caller.commit()
        assert ids(claim(store)) == first


def waits(url: str) -> bool:
    """Return whether a transaction waits for a lock.

    Read the server's status variable: InnoDB does not refresh the tables of information_schema for a reader that
    queries more often than every 0.1 s, so a polling test would see the result of its first query forever.
    """
    with connect_mysql(url) as connection:
        found = connection.execute("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'").fetchall()
    return [int(count) for _, count in found] != [0]


def deadlocks(server: MariadbServer) -> Any:
    return server.execute("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'")


def test_batches_with_keys_in_different_order_do_not_deadlock(store: SqlStore, mariadb_server: MariadbServer) -> None:
    def emit(turn: int) -> None:
        for number in range(30):
            keys = [f"{number}-{place}" for place in range(15)]
            store.append([event(ordering_key=key) for key in (keys if turn else reversed(keys))])

    before = deadlocks(mariadb_server)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(emit, range(2)))
    assert deadlocks(mariadb_server) == before
    assert len(claim(store, 1_000)) == 900


def test_deadlock_is_retried(store: SqlStore, mariadb_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another connection locks the claimed events, then waits for the lease. A release has locked the lease and waits
    for the claimed events: a real deadlock."""
    store.append([event() for _ in range(3)])
    held = claim(store)
    stranger = connect_mysql(mariadb_url)
    # The server rolls back the transaction that has changed fewer rows.
    stranger.execute("CREATE TABLE weight (number int)")
    stranger.execute("INSERT INTO weight SELECT seq FROM seq_1_to_1000")
    stranger.execute("SELECT * FROM penstock_claimed FOR UPDATE")
    locked, tries = Signal(), 0
    run = Transaction.run

    def counted(tx: Transaction, statement: str, **given: Any) -> int:
        nonlocal tries
        if statement == mysql_statements.RELEASE[0]:
            tries += 1
        if statement == mysql_statements.RELEASE[-1] and tries == 1:
            locked.set()
        return run(tx, statement, **given)

    monkeypatch.setattr(Transaction, "run", counted)
    with ThreadPoolExecutor(1) as thread:
        released = thread.submit(store.release, held.lease)
        assert locked.wait(60)
        stranger.execute("SELECT * FROM penstock_leases FOR UPDATE")
        assert tries == 1
        stranger.rollback()
        assert released.result(30) == 3
    assert tries == 2
    stranger.close()
    assert len(claim(store)) == 3


def test_lock_timeout_is_store_conflict(store: SqlStore, mariadb_url: str) -> None:
    store.append([event()])
    held = claim(store)
    with connect_mysql(mariadb_url) as stranger, impatient(mariadb_url) as caller:
        stranger.execute("SELECT * FROM penstock_leases FOR UPDATE")
        with pytest.raises(StoreConflict, match="try again"):
            store.settle_in(caller, held.lease, all_to(PUBLISHED, held))
        stranger.rollback()
        caller.rollback()
    publish(store, held)


class TestCallersConnections:
    def test_emit_on_autocommit_connection_is_atomic(self, store: SqlStore, mariadb_url: str) -> None:
        with connect_mysql(mariadb_url) as connection:
            connection.autocommit(True)
            kept = store.append([event(ordering_key="k"), event()], connection=connection)
            with pytest.raises(Exception, match="event_id"):
                store.append([event(), event(event_id=kept[0])], connection=connection)
            connection.begin()
            store.append([event()], connection=connection)
            connection.rollback()
        assert sorted(ids(claim(store))) == sorted(kept)

    def test_connection_may_use_any_cursor_class(self, store: SqlStore, mariadb_url: str) -> None:
        with connect_mysql(mariadb_url) as connection:
            connection.cursorclass = pymysql.cursors.DictCursor
            fields = {"payload": b"\xff\x00'\\", "headers": {"ü": "🚰"}, "ordering_key": "k", "dedupe_key": "d"}
            emitted = store.append([event(**fields)], connection=connection)
            connection.commit()
        held = claim(store)
        assert ids(held) == emitted
        assert held.events[0].payload == fields["payload"]
        assert dict(held.events[0].headers) == fields["headers"]

    def test_sqlalchemy_session_commits_event_and_row_together(self, store: SqlStore, mariadb_url: str) -> None:
        from sqlalchemy import create_engine, text
        from sqlalchemy.orm import Session

        engine = create_engine(mariadb_url.replace("mysql:", "mariadb+pymysql:"))
        outbox = Outbox(store)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE orders (id int)"))
        for give_up in (True, False):
            with Session(engine) as session:
                session.execute(text("INSERT INTO orders VALUES (1)"))
                outbox.emit("orders.created", {"id": 1}, connection=session)
                session.rollback() if give_up else session.commit()
        with engine.connect() as connection:
            assert connection.execute(text("SELECT count(*) FROM orders")).scalar() == 1
        assert len(claim(store)) == 1
        engine.dispose()

    def test_connection_of_another_database_is_refused(self, store: SqlStore) -> None:
        import sqlite3

        with closing(sqlite3.connect(":memory:")) as connection, pytest.raises(UsageError, match="store is on mysql"):
            store.append([event()], connection=connection)


def test_concurrent_cancel_and_claim_take_different_events(store: SqlStore, mariadb_server: MariadbServer) -> None:
    before = deadlocks(mariadb_server)
    for keys in (5, None):
        store.append([event(ordering_key=f"k{n % keys}" if keys else None) for n in range(600)])
        with ThreadPoolExecutor(3) as threads:
            cancelled = threads.submit(store.cancel, Selection(queue="outbox"))
            claimed = list(threads.map(lambda _: len(claim(store, 200)), range(2)))
            counted = cancelled.result(60)
        states = store.stats().queues[0]
        assert (states.claimed, states.dead, states.pending) == (sum(claimed), counted, 600 - sum(claimed) - counted)
        found = store.find(Selection(everything=True), limit=10_000).records
        assert len({record.seq for record in found}) == len(found) == 600
        with store.transaction() as connection:
            for table in ("events", "pending", "claimed", "archive", "keys", "holds", "leases", "history"):
                connection.exec_driver_sql(f"DELETE FROM penstock_{table}")
        assert {record.state for record in found} <= set(State)
    assert deadlocks(mariadb_server) == before, "they lock in the same order"


def test_concurrent_claims_respect_queue_limit(store: SqlStore, mariadb_url: str) -> None:
    store.append([event(ordering_key=f"k{number}" if number % 3 else None) for number in range(120)])
    store.limit("outbox", 5)
    seen: list[int] = []

    def work(_: int) -> int:
        done = 0
        with closing(open_store(mariadb_url)) as own, closing(connect_mysql(mariadb_url, "READ COMMITTED")) as looking:
            while sum(queue.pending + queue.claimed for queue in own.stats().queues):
                held = claim(own, 3)
                seen.append(looking.execute("SELECT count(*) FROM penstock_claimed").fetchone()[0])
                done += own.settle(held.lease, all_to(PUBLISHED, held)).applied
        return done

    with ThreadPoolExecutor(6) as threads:
        assert sum(threads.map(work, range(6))) == 120
    assert 3 < max(seen) <= 5


def test_probe_finds_events_below_scan_floor(
    store: SqlStore, mariadb_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim scans from its floor, near the present, where new events are; every FULL_LOOK_SECONDS it scans all."""
    monkeypatch.setattr(hints, "FULL_LOOK_SECONDS", 0.2)
    store.append([event()])
    assert claim(store)
    assert not store.ready("outbox")
    with closing(open_store(mariadb_url)) as other:
        old = other.append([event(available_at=datetime.now(UTC) - timedelta(hours=1))])
    assert wait_until(lambda: store.ready("outbox"), 60)
    assert ids(claim(store)) == old


def test_oldest_snapshot_is_shown_with_privilege_only(
    store: SqlStore, mariadb_url: str, mariadb_server: MariadbServer
) -> None:
    with connect_mysql(mariadb_url) as connection:
        connection.execute("SELECT count(*) FROM penstock_events")
        shown = store.stats().oldest_snapshot_seconds
        assert shown is not None
        assert 0 <= shown < 60
    # InnoDB returns the same result again to queries less than 0.1 s apart.
    assert wait_until(lambda: Signal().wait(0.2) or store.stats().oldest_snapshot_seconds is None, 60)
    name = store.engine.url.database
    mariadb_server.execute(f"CREATE USER {name[:30]}@'127.0.0.1' IDENTIFIED BY 'word'")
    mariadb_server.execute(f"GRANT ALL ON `{name}`.* TO {name[:30]}@'127.0.0.1'")
    with closing(open_store(mariadb_server.url(name, user=name[:30], password="word"))) as confined:
        confined.append([event()])
        assert confined.stats().oldest_snapshot_seconds is None
        assert len(claim(confined)) == 1
    mariadb_server.execute(f"DROP USER {name[:30]}@'127.0.0.1'")


def test_server_clock_is_used_by_default(store: SqlStore, mariadb_url: str) -> None:
    store.append([event(), event(ordering_key="k")])
    assert len(claim(store)) == 2
    with connect_mysql(mariadb_url) as connection:
        found = connection.execute(
            "SELECT count(*) FROM penstock_outbox WHERE claimed_at >= created_at AND claimed_at <= UTC_TIMESTAMP(6) "
            "AND created_at > UTC_TIMESTAMP(6) - INTERVAL 1 MINUTE"
        )
        assert found.fetchone() == (2,)
    assert abs(store.now() - datetime.now(UTC)) < timedelta(minutes=1)


def test_view_shows_event_id_as_uuid_text(store: SqlStore, mariadb_url: str) -> None:
    (emitted,) = store.append([event()])
    with connect_mysql(mariadb_url) as connection:
        assert connection.execute("SELECT event_id FROM penstock_outbox").fetchall() == ((str(emitted),),)
