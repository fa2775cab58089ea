"""The store on MariaDB: the conformance suite, and behaviour specific to MySQL and MariaDB."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from databases import MysqlConnection, connect_mysql, differences, empty_mysql, logged_text
from sqlalchemy import Connection as SqlConnection

from penstock.model.errors import InvalidEvent, NotInitialised, StoreError, StoreUnavailable, UsageError
from penstock.model.outcome import PUBLISHED, Dead, Retry
from penstock.model.selection import Selection
from penstock.model.times import Clock
from penstock.store.api import StoreOptions
from penstock.store.registry import open_store
from penstock.store.sql.store import SqlStore
from penstock.testing.stores import OpenStore, SqlStoreConformance
from penstock.testing.stores.scenario import all_to, claim, event, ids
from tests.support.servers import MariadbServer


@pytest.fixture(scope="module")
def shared_url(mariadb_server: MariadbServer) -> Iterator[str]:
    """A database with its tables, shared by all tests of the suite: emptying it is faster than creating another."""
    url = mariadb_server.create_database()
    store = open_store(url)
    store.initialise()
    store.close()
    yield url
    mariadb_server.drop_database(url)


@pytest.fixture
def database(shared_url: str) -> str:
    empty_mysql(shared_url)
    return shared_url


class TestMysqlStore(SqlStoreConformance):
    lacks = ("insert_into_view", "staging")

    @pytest.fixture
    def open_store(self, database: str) -> OpenStore:
        def opened(options: StoreOptions | None = None, clock: Clock | None = None) -> SqlStore:
            return open_store(database, options, clock)

        return opened

    @pytest.fixture
    def connection(self, database: str) -> Iterator[MysqlConnection]:
        """A connection in REPEATABLE READ, the server's default, which is stricter than the store's own level."""
        with connect_mysql(database) as connection:
            yield connection


@pytest.fixture
def store(database: str) -> Iterator[SqlStore]:
    store = open_store(database)
    yield store
    store.close()


SECRET = "s3cr3t/pass:word"


class TestTables:
    def test_tables_match_code(self, store: SqlStore) -> None:
        """The view does not support INSERT on MySQL, so it lacks the columns that exist only for an INSERT."""
        found = differences(store)
        assert found.keys() == {"penstock_outbox"}
        here, there = found["penstock_outbox"]
        assert [name for name, _ in here if (name, "") not in there] == [
            "dedupe_key",
            "dedupe_seconds",
            "delay_seconds",
        ]
        assert there == here[: len(there)]

    def test_interrupted_initialise_can_be_repeated(self, mariadb_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """MySQL commits each CREATE: an interrupted upgrade leaves tables behind without a recorded version. The test
        interrupts the upgrade after each of its statements."""
        store = open_store(mariadb_url)
        run = SqlConnection.exec_driver_sql
        done: list[str] = []
        for stop_after in range(1, 40):

            def interrupted(
                self: SqlConnection, statement: str, *rest: Any, stop: int = stop_after, **more: Any
            ) -> Any:
                if len(done) == stop:
                    raise KeyboardInterrupt
                done.append(statement)
                return run(self, statement, *rest, **more)

            done.clear()
            with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
                patched.setattr(SqlConnection, "exec_driver_sql", interrupted)
                store.initialise()
                break
        else:
            raise AssertionError("it never came to its end")
        assert stop_after > 3
        assert store.versions()[0] == store.versions()[1]
        assert store.append([event(ordering_key="k")]) == ids(claim(store))
        store.close()

    def test_error_for_database_without_tables_names_init(self, mariadb_url: str) -> None:
        store = open_store(mariadb_url)
        for verb in (store.stats, store.reap, lambda: store.append([event()]), lambda: claim(store)):
            with pytest.raises(NotInitialised, match=r"penstock init --store mysql://penstock:\*\*\*@"):
                verb()
        assert store.versions()[0] is None
        store.close()

    def test_tables_of_newer_code_are_refused(self, mariadb_url: str) -> None:
        store = open_store(mariadb_url)
        store.initialise()
        with store.transaction() as connection:
            connection.exec_driver_sql("UPDATE penstock_version SET version_num = '9999'")
        with pytest.raises(NotInitialised, match="unknown table version '9999'; upgrade Penstock"):
            store.initialise()
        store.close()

    def test_staging_tables_are_dropped(self, store: SqlStore, database: str) -> None:
        with connect_mysql(database) as connection:
            found = connection.execute("SHOW TABLES LIKE 'penstock_s%'").fetchall()
        assert list(found) == []


class TestConnecting:
    @pytest.mark.parametrize(
        "url",
        [
            "mysql://someone:{secret}@127.0.0.1:1/nowhere",
            "mariadb://someone:{secret}@127.0.0.1:1/nowhere?connect_timeout=2",
            "mysql+pymysql://someone@127.0.0.1:1/nowhere?password={secret}",
            "mysql://someone:{secret}@127.0.0.1:1/nowhere?no_such_option=1",
            "mysql://someone:{secret}@127.0.0.1:1/nowhere?connect_timeout=soon",
            "mysql://someone:{secret}@127.0.0.1:port/nowhere",
            "mysql:someone:{secret}@nowhere",
        ],
    )
    def test_errors_show_no_password(self, url: str) -> None:
        for secret in ("s3cr3t", SECRET):
            with pytest.raises((StoreError, UsageError)) as caught:
                open_store(url.format(secret=secret)).stats()
            assert "s3cr3t" not in logged_text(caught.value)
            assert "pass:word" not in logged_text(caught.value)
            assert "\n" not in str(caught.value)

    def test_wrong_password_is_named_in_error(self, mariadb_server: MariadbServer) -> None:
        store = open_store(mariadb_server.url(password="s3cr3t"))
        with pytest.raises(StoreUnavailable, match=r"cannot reach mysql://penstock:\*\*\*@.*: Access denied") as caught:
            store.stats()
        assert "s3cr3t" not in logged_text(caught.value)
        assert "\n" not in str(caught.value)

    def test_unreachable_server_is_named_in_error(self) -> None:
        store = open_store("mariadb://someone@127.0.0.1:1/nowhere")
        with pytest.raises(StoreUnavailable, match=r"cannot reach mariadb://someone@127.0.0.1:1/nowhere: .*refused"):
            store.stats()

    @pytest.mark.parametrize("scheme", ["mysql", "mariadb", "mysql+pymysql", "mariadb+pymysql", "mysql+mysqldb"])
    def test_every_mysql_url_scheme_is_accepted(self, database: str, scheme: str) -> None:
        store = open_store(database.replace("mysql:", f"{scheme}:", 1))
        assert store.append([event()])
        store.close()

    def test_lost_connection_is_error_once(self, store: SqlStore, mariadb_server: MariadbServer) -> None:
        store.append([event()])
        asked = "SELECT id FROM information_schema.processlist WHERE db = %s"
        for (number,) in mariadb_server.execute(asked, store.engine.url.database):
            mariadb_server.execute(f"KILL CONNECTION {number}")
        with pytest.raises(StoreUnavailable, match="cannot reach"):
            claim(store)
        assert len(claim(store)) == 1

    def test_session_settings_override_server_defaults(self, mariadb_server: MariadbServer) -> None:
        """The session must use READ COMMITTED, because stricter levels lock index gaps. It must refuse values that do
        not fit, and use UTC."""
        url = mariadb_server.create_database()
        preferred = {
            "tx_isolation": "SERIALIZABLE",
            "sql_mode": "ANSI,NO_BACKSLASH_ESCAPES",
            "time_zone": "+05:45",
            "character_set_server": "latin1",
        }
        before = {name: mariadb_server.execute(f"SELECT @@global.{name}")[0][0] for name in preferred}
        try:
            for name, value in preferred.items():
                mariadb_server.execute(f"SET GLOBAL {name} = %s", value)
            check_session_settings(url)
        finally:
            for name, value in before.items():
                mariadb_server.execute(f"SET GLOBAL {name} = %s", value)
            mariadb_server.drop_database(url)


def check_session_settings(url: str) -> None:
    store = open_store(url)
    store.initialise()
    for _ in range(2):
        with store.transaction() as inside:
            assert inside.exec_driver_sql("SELECT @@tx_isolation").scalar() == "READ-COMMITTED"
    fields = {"event_type": "größer\\'\"", "payload": b"\xff\x00\\'\n", "headers": {"Grüße": "水 🚰\\"}}
    emitted = store.append([event(**fields, queue="水 \\ ' 🚰") for _ in range(3)])
    held = claim(store, queue="水 \\ ' 🚰")
    assert ids(held) == emitted
    assert {name: getattr(held.events[0], name) for name in fields} == fields
    assert abs(held.events[0].created_at - datetime.now(UTC)) < timedelta(minutes=1)
    store.settle(held.lease, all_to(Retry("nö 🚰\\'\"\n", 0), held))
    assert store.find(Selection(everything=True)).records[0].last_error == "nö 🚰\\'\"\n"
    with pytest.raises(StoreError, match="rejected the statement: Data too long"), store.transaction() as inside:
        inside.exec_driver_sql(f"INSERT INTO penstock_queues (queue) VALUES ('{'q' * 300}')")
    store.close()


class TestNames:
    def test_names_are_compared_exactly(self, store: SqlStore) -> None:
        names = ["a", "a ", "A", "ä", "a\u0308", "a\t"]
        emitted = {
            name: store.append([event(queue=name, ordering_key=name, dedupe_key=name), event(queue=name)])
            for name in names
        }
        for name in names:
            assert sorted(ids(claim(store, queue=name))) == sorted(emitted[name])
        keys = store.append([event(ordering_key=name) for name in names])
        assert len({store.append([event(dedupe_key=name)])[0] for name in names}) == len(names)
        held = [claim(store, 2), claim(store, 20)]
        assert sum(one.ordering_key is not None for claimed in held for one in claimed.events) == len(keys)

    def test_longest_names_are_accepted(self, store: SqlStore) -> None:
        longest = "🚰" * 255
        fields = {"event_type": longest, "queue": longest, "ordering_key": longest, "partition_key": longest}
        emitted = store.append([event(**fields, dedupe_key=longest)])
        assert ids(claim(store, queue=longest)) == emitted

    def test_long_error_is_stored_whole(self, store: SqlStore) -> None:
        (one,) = store.append([event()])
        held = claim(store)
        store.settle(held.lease, all_to(Dead("x" * 100_000), held))
        (found,) = store.find(Selection(ids=frozenset({one}))).records
        assert found.last_error == "x" * 100_000


def test_emit_of_5_000_large_events_succeeds(store: SqlStore) -> None:
    emitted = store.append([event(payload=bytes([number % 256]) * 5_000) for number in range(5_000)])
    found = claim(store, 5_000)
    assert ids(found) == emitted
    assert [one.payload[:1] for one in found.events[:300]] == [bytes([number % 256]) for number in range(300)]


def test_payload_above_max_allowed_packet_names_setting(store: SqlStore) -> None:
    with pytest.raises(InvalidEvent, match=r"payload of 8,000,000 bytes.* raise max_allowed_packet"):
        store.append([event(payload=b"x" * 8_000_000)])
    store.append([event(payload=bytes(7_000_000), queue="large")] * 2)
    assert claim(store, 1, queue="large").events[0].payload == bytes(7_000_000)
    assert store.append([event()]) == ids(claim(store))


@pytest.mark.crash
@pytest.mark.usefixtures("mariadb_server")
def test_emitted_and_settled_events_survive_server_kill() -> None:
    with MariadbServer() as server:
        store = open_store(server.create_database())
        store.initialise()
        emitted = [one for _ in range(5) for one in store.append([event(ordering_key="k"), event()])]
        held = claim(store, 4)
        store.settle(held.lease, all_to(PUBLISHED, held))
        server.kill()
        with pytest.raises(StoreUnavailable, match="cannot reach"):
            store.append([event()])
        server.start()
        left = ids(claim(store))
        assert set(left) == set(emitted) - set(ids(held))
        assert len(left) == 6
        store.close()
