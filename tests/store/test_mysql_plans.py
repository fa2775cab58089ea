"""Cost of the verbs on MariaDB as a store grows, measured by plans and by the number of rows read."""

from collections.abc import Callable, Iterator

import pytest
from databases import MysqlConnection, connect_mysql

from penstock.model.outcome import PUBLISHED
from penstock.store.registry import open_store
from penstock.store.sql.mysql import maintenance as upkeep
from penstock.store.sql.mysql import statements
from penstock.store.sql.store import SqlStore
from penstock.testing.stores.scenario import all_to, claim, event
from tests.support.servers import MariadbServer

PENDING = 100_000
CLAIM = 100
LONG = 5_000
# Half of the pending events are not available before tomorrow, at a priority above the others.
LOAD = (
    f"""
    INSERT INTO penstock_events (seq, event_id, event_type, payload, created_at)
    SELECT seq, UNHEX(MD5(seq)), 'orders.created', '', UTC_TIMESTAMP(6) FROM seq_1_to_{PENDING}
    """,
    f"""
    INSERT INTO penstock_pending
    SELECT seq, 'outbox', NULL, IF(seq % 2, 5, seq % 3), 0, 0, NULL, 0, 0,
           UTC_TIMESTAMP(6) + INTERVAL IF(seq % 2, 86400, -seq) SECOND, NULL
    FROM seq_1_to_{PENDING}
    """,
    f"""
    INSERT INTO penstock_archive
    SELECT {10 * PENDING} + seq, 'outbox', NULL, 0, 0, 1, NULL, 0, 0, UTC_TIMESTAMP(6), NULL, 'PUBLISHED',
           UTC_TIMESTAMP(6), NULL
    FROM seq_1_to_{PENDING}
    """,
    "ANALYZE TABLE penstock_pending, penstock_events, penstock_archive",
)


@pytest.fixture(scope="module")
def big_url(mariadb_server: MariadbServer) -> Iterator[str]:
    """A database with 100,000 pending and 100,000 settled events, one key with LONG events, and LONG short keys."""
    url = mariadb_server.create_database()
    store = open_store(url)
    store.initialise()
    with connect_mysql(url) as connection:
        for statement in LOAD:
            connection.execute(statement)
        connection.commit()
    for start in range(0, 2 * LONG, 1_000):
        keys = ["long" if start < LONG else f"short-{start + number}" for number in range(1_000)]
        store.append([event(queue="keyed", ordering_key=key) for key in keys])
    store.close()
    yield url
    mariadb_server.drop_database(url)


@pytest.fixture
def store(big_url: str) -> Iterator[SqlStore]:
    store = open_store(big_url)
    yield store
    store.close()


@pytest.fixture
def connection(big_url: str) -> Iterator[MysqlConnection]:
    with connect_mysql(big_url) as connection:
        yield connection


def rows_read(connection: MysqlConnection, verb: Callable[[], object]) -> int:
    """Return the number of rows that the whole server reads during `verb`, without the rows that counting reads."""

    def counted(work: Callable[[], object]) -> int:
        before = _reads(connection)
        work()
        return _reads(connection) - before

    idle = counted(lambda: None)
    return counted(verb) - idle


def _reads(connection: MysqlConnection) -> int:
    return sum(int(value) for _, value in connection.execute("SHOW GLOBAL STATUS LIKE 'Handler_read%'").fetchall())


def test_claim_uses_index_without_sort(store: SqlStore, connection: MysqlConnection) -> None:
    statement = statements.CHOOSE_READY.replace("{of_types}", "").replace("{now}", "UTC_TIMESTAMP(6)")
    values = {"queue": "'outbox'", "priority": "2", "room": "1000", "floor": "'0001-01-01'"}
    for name, value in values.items():
        statement = statement.replace(f":{name}", value)
    ((_, _, table, kind, _, key, length, _, _, extra),) = connection.execute(f"EXPLAIN {statement}").fetchall()
    assert (table, kind, key) == ("p", "range", "penstock_pending_ready")
    # Bytes of the key parts that bound the range: queue, ordering key, priority and time.
    assert int(length) == (255 * 4 + 2) + (255 * 4 + 2 + 1) + 2 + 8
    assert "filesort" not in extra


def test_rows_read_are_proportional_to_claim_size(store: SqlStore, connection: MysqlConnection) -> None:
    def turn() -> None:
        held = claim(store, CLAIM)
        assert len(held) == CLAIM
        store.settle(held.lease, all_to(PUBLISHED, held))

    # The claim chooses, moves, deletes and reads each event, in its table and in the events; the settle does so again.
    assert rows_read(connection, turn) < 20 * CLAIM


@pytest.mark.parametrize("size", [1, 5, 20])
@pytest.mark.parametrize("statement", [statements.LOCK_HELD, statements.OUTCOMES, upkeep.ROUTED, *statements.PUBLISH])
def test_settle_uses_primary_key_for_any_lease_size(mariadb_url: str, size: int, statement: str) -> None:
    """A settle through the index on leases would lock rows of the lease that are not settled."""
    store = open_store(mariadb_url)
    store.initialise()
    store.append([event() for _ in range(100)])
    held, *_ = [claim(store, size) for _ in range(100 // size)]
    store.close()
    values = {
        "seqs": f"'[{held.events[0].seq}]'",
        "rows": f'\'[[{held.events[0].seq}, "RETRY", "error", 0]]\'',
        "lease_id": f"x'{held.lease.lease_id.hex}'",
        "max_attempts": "10",
    }
    for name, value in values.items():
        statement = statement.replace(f":{name}", value)
    with connect_mysql(mariadb_url) as connection:
        plan = connection.execute("EXPLAIN " + statement.replace("{now}", "UTC_TIMESTAMP(6)")).fetchall()
    assert [(table, key) for _, _, table, _, _, key, *_ in plan if table == "c"] == [("c", "PRIMARY")]


def test_probe_reads_few_rows(store: SqlStore, connection: MysqlConnection) -> None:
    assert rows_read(connection, lambda: store.ready("outbox")) < 20
    assert rows_read(connection, lambda: store.ready("nothing")) < 20
    assert rows_read(connection, lambda: store.heads("out")) < 20


@pytest.mark.parametrize("limit", [10, 100])
def test_claim_reads_only_start_of_long_key(store: SqlStore, connection: MysqlConnection, limit: int) -> None:
    def turn() -> None:
        held = claim(store, limit, queue="keyed")
        assert len(held) == limit
        store.settle(held.lease, all_to(PUBLISHED, held))

    assert rows_read(connection, turn) < 40 * limit + 300
