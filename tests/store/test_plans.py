"""Cost of the verbs on PostgreSQL as a store grows, measured by plans and counts, never by time."""

import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from plans import explain, explaining, pages

from penstock.model.lease import Claim
from penstock.model.outcome import PUBLISHED, RELEASED, Dead, Outcome, Retry
from penstock.store.api import REAP_BATCH
from penstock.store.registry import open_store
from penstock.store.sql.claim_hints import ALWAYS
from penstock.store.sql.postgres import statements
from penstock.store.sql.store import SqlStore
from penstock.store.sql.transaction import Transaction
from penstock.testing.stores.scenario import ManualClock, claim, event, publish, seqs
from tests.support.servers import PostgresServer

PENDING = 1_000_000
SETTLED = 100_000
LEASES = 100
LEASE = "'00000000-0000-0000-0000-' || lpad(to_hex(n % 100), 12, '0')"
LOAD = f"""
INSERT INTO penstock_events (seq, event_id, event_type, payload, created_at)
SELECT n, lpad(to_hex(n), 32, '0')::uuid, 'type-' || n % 7, '', now()
FROM generate_series({PENDING - SETTLED}, {PENDING + 2 * SETTLED}) n;

INSERT INTO penstock_pending
SELECT n, 'queue-' || n % 2, CASE WHEN n % 10 = 0 THEN 'key-' || n % 500000 END, n % 3, 0, 0, NULL, 0, 0,
       now() - n * interval '1 millisecond', NULL
FROM generate_series(1, {PENDING}) n;

INSERT INTO penstock_keys
SELECT 'queue-0', 'key-' || n, now() + n * interval '1 second' FROM generate_series(0, 499990, 10) n;

INSERT INTO penstock_leases
SELECT ({LEASE})::uuid, 'queue-0', 'claimant', gen_random_uuid(), 0, false, 10, now() - interval '1 hour',
       now() + interval '1 hour', NULL
FROM generate_series(1, {LEASES}) n;

INSERT INTO penstock_claimed
SELECT n, 'queue-0', NULL, 0, 0, 1, NULL, 0, 0, now() - interval '2 hours', NULL, ({LEASE})::uuid
FROM generate_series({PENDING + 1}, {PENDING + SETTLED}) n;

INSERT INTO penstock_archive
SELECT n, 'queue-0', NULL, 0, 0, 1, NULL, 0, 0, now(), NULL, 'PUBLISHED', now(), ({LEASE})::uuid
FROM generate_series({PENDING + SETTLED + 1}, {PENDING + 2 * SETTLED}) n;
"""
INDEXES = (
    "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'penstock_pending' AND indexname NOT LIKE '%pkey'"
)
BIG = {"penstock_events", "penstock_pending", "penstock_claimed", "penstock_archive", "penstock_keys"}
MODES = ["force_custom_plan", "force_generic_plan"]
SOME_LEASE = UUID(int=7)
SOME_SEQS = [PENDING + 7 + LEASES * number for number in range(1, 500)]
WANTED = {
    "queue": "queue-0",
    "lease_id": SOME_LEASE,
    "types": ["type-1"],
    "limit": 1_000,
    "room": 1_000,
    "key_queue_limit": 100,
    "alone": True,
}


@pytest.fixture(scope="module")
def big(postgres_server: PostgresServer) -> Iterator[psycopg.Connection]:
    """A database with a million pending events."""
    url = postgres_server.create_database()
    store = open_store(url)
    store.initialise()
    store.close()
    with psycopg.connect(url, autocommit=True) as connection:
        indexes = connection.execute(INDEXES).fetchall()
        connection.execute("DROP INDEX " + ", ".join(name for name, _ in indexes))
        connection.execute(LOAD)
        for _, definition in indexes:
            connection.execute(definition)
        connection.execute("ANALYZE")
        yield connection
    postgres_server.drop_database(url)


@pytest.fixture(scope="module")
def shared_url(postgres_server: PostgresServer) -> Iterator[str]:
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.mark.parametrize("mode", MODES)
class TestPlans:
    @pytest.mark.parametrize("floor", [ALWAYS, datetime.now(UTC) - timedelta(seconds=5)])
    def test_claim_uses_index_without_sort(self, big: psycopg.Connection, mode: str, floor: datetime) -> None:
        plan = explain(big, mode, statements.TAKE_READY, **WANTED, floor=floor)
        assert plan.scans("Seq Scan") & BIG == set()
        assert "penstock_pending_ready" in plan.indexes
        assert "Tid Scan" in plan.kinds
        assert plan.sorted == set()
        assert not [kind for kind in plan.kinds if "Bitmap" in kind]

    def test_probe_uses_index(self, big: psycopg.Connection, mode: str) -> None:
        plan = explain(big, mode, statements.READY, queue="queue-0", floor=ALWAYS)
        assert plan.scans("Seq Scan") & BIG == set()
        assert {"penstock_pending_ready", "penstock_keys_ready"} <= plan.indexes
        assert plan.sorted == set()

    def test_check_for_remaining_events_uses_index(self, big: psycopg.Connection, mode: str) -> None:
        plan = explain(big, mode, statements.LEFT, queue="queue-0")
        assert plan.scans("Seq Scan") & BIG == set()
        assert plan.indexes == {"penstock_pending_ready"}
        assert plan.sorted == set()

    def test_claim_by_type_scans_no_full_table(self, big: psycopg.Connection, mode: str) -> None:
        plan = explain(big, mode, statements.TAKE_READY_TYPED, **WANTED, floor=ALWAYS)
        assert plan.scans("Seq Scan") & BIG == set()
        assert "penstock_pending_ready" in plan.indexes

    def test_claim_of_ordering_keys_scans_no_full_table(self, big: psycopg.Connection, mode: str) -> None:
        with big.transaction(force_rollback=True):
            big.execute("UPDATE penstock_keys SET lease_id = %s WHERE ordering_key LIKE '%%120'", [SOME_LEASE])
            plan = explain(big, mode, statements.TAKE_KEYED, **WANTED)
        assert plan.scans("Seq Scan") & BIG == set()
        assert {"penstock_pending_line", "penstock_keys_lease"} <= plan.indexes

    def test_publish_scans_no_full_table(self, big: psycopg.Connection, mode: str) -> None:
        plan = explain(big, mode, statements.PUBLISH, lease_id=SOME_LEASE, seqs=SOME_SEQS)
        assert plan.scans("Seq Scan") & BIG == set()

    def test_applying_outcomes_scans_no_full_table(self, big: psycopg.Connection, mode: str) -> None:
        count = len(SOME_SEQS)
        plan = explain(
            big,
            mode,
            statements.APPLY,
            lease_id=SOME_LEASE,
            seqs=SOME_SEQS,
            kinds=["RETRY"] * count,
            errors=["x"] * count,
            delays=[1.0] * count,
            max_attempts=10,
            skip=False,
        )
        assert plan.scans("Seq Scan") & BIG == set()

    def test_lookup_of_settled_events_scans_no_full_table(self, big: psycopg.Connection, mode: str) -> None:
        plan = explain(big, mode, statements.SETTLED_BEFORE, lease_id=SOME_LEASE, seqs=SOME_SEQS)
        assert plan.scans("Seq Scan") & BIG == set()


@pytest.mark.parametrize("statement", [statements.TAKE_READY, statements.TAKE_KEYED, statements.PUBLISH])
def test_plans_prepared_on_empty_tables_use_indexes(postgres_url: str, statement: str) -> None:
    """The server keeps the plan of a prepared statement while the tables grow."""
    given = {**WANTED, "floor": ALWAYS, "seqs": SOME_SEQS}
    with closing(open_store(postgres_url)) as store:
        store.initialise()
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
        with store.transaction() as connection:
            plan = explain(connection.connection.dbapi_connection, "force_generic_plan", statement, **given)
    assert plan.scans("Seq Scan") == set()


def test_claim_among_million_events_reads_few_rows(big: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the rows and pages of real executions: plain EXPLAIN does not show all of them."""
    store = open_store(f"postgresql://{big.info.user}@{big.info.host}:{big.info.port}/{big.info.dbname}")
    with explaining(monkeypatch) as probing:
        assert store.ready("queue-1")
    assert pages(probing) < 40
    for _ in range(2):
        with explaining(monkeypatch) as claiming:
            assert len(claim(store, 100, queue="queue-1")) == 100
        assert sum(plan.rows for plan in claiming) < 1_500
        assert pages(claiming) < 3_000
    with explaining(monkeypatch) as claiming:
        assert len(claim(store, 100, queue="queue-0")) == 100
    assert sum(plan.rows for plan in claiming) < 3_000
    store.close()


def test_claim_plan_depends_on_queue_and_lease_only() -> None:
    """If the generic plan looked costlier than a custom one, every claim among millions of rows would be planned again.
    So no value but the queue and the lease may be visible to the planner, also in later versions of the statement."""
    bare = re.sub(r"\(SELECT CAST\(:\w+ AS \w+\)\)", "", statements.TAKE_READY)
    assert set(re.findall(r"(?<!:):(\w+)", bare)) == {"queue", "lease_id"}


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Collect the statements that stores run in the block."""
    ran: list[str] = []
    execute = Transaction._execute

    def counted(tx: Transaction, cursor: object, statement: str, parameters: dict[str, object]) -> None:
        ran.append(statement)
        execute(tx, cursor, statement, parameters)

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "_execute", counted)
        yield ran


def mixed(held: Claim) -> dict[int, Outcome]:
    outcomes = (PUBLISHED, RELEASED, Dead("x"), Retry("x", 30), Retry("y", 0))
    return {seq: outcomes[place % 5] for place, seq in enumerate(seqs(held))}


def expire(store: SqlStore, clock: ManualClock, _: Claim) -> object:
    clock.expire_leases()
    return store.reap()


Verb = Callable[[SqlStore, ManualClock, Claim], object]
VERBS: dict[str, Verb] = {
    "publish": lambda store, _, held: publish(store, held),
    "settle": lambda store, _, held: store.settle(held.lease, mixed(held)),
    "release": lambda store, _, held: store.release(held.lease),
    "repeat": lambda store, _, held: claim(store, 5_000, lease_id=held.lease.lease_id),
    "lose": lambda store, _, held: claim(store, 5_000, claimant="another", lease_id=held.lease.lease_id),
    "reap": expire,
}


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("verb", VERBS)
def test_statement_count_is_independent_of_event_count(
    database: str,
    keyed: bool,
    verb: str,
    tmp_path: Path,
    clock: ManualClock,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = f"sqlite:///{tmp_path / 'penstock.db'}" if database == "sqlite" else request.getfixturevalue("shared_url")
    counts = []
    for size in (5, 5_000):
        store = open_store(url, clock=clock)
        store.initialise()
        store.append([event(ordering_key=f"k{number % 200}" if keyed else None) for number in range(size)])
        with counting(monkeypatch) as claiming:
            held = claim(store, 6_000)
        assert len(held) == size
        with counting(monkeypatch) as rest:
            VERBS[verb](store, clock, held)
        counts.append((len(claiming), len(rest)))
        clock.expire_leases()
        store.reap()
        drain(store, clock)
        store.close()
    (claiming_few, few), (claiming_many, many) = counts
    assert claiming_many == claiming_few < 12
    assert many <= few + 3  # freeing keys takes one more, returning suspects three more
    assert many < 16


def drain(store: SqlStore, clock: ManualClock) -> None:
    """Publish all events that are left, so that the next store starts empty."""
    for _ in range(100):
        clock.advance(60)
        store.reap()
        held = claim(store, 5_000)
        if not held and not store.stats().total("pending"):
            return
        if held:
            publish(store, held)
    raise AssertionError(store.stats())


def test_100_000_expired_events_are_reaped_in_batches(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(postgres_url)
    store.initialise()
    with psycopg.connect(postgres_url) as connection:
        connection.execute(
            f"""
            INSERT INTO penstock_events (seq, event_id, event_type, payload, created_at)
            SELECT n, lpad(to_hex(n), 32, '0')::uuid, 't', '', now() FROM generate_series(1, {SETTLED}) n;
            INSERT INTO penstock_leases
            SELECT ({LEASE})::uuid, 'outbox', 'dead', gen_random_uuid(), 0, false, 10, now() - interval '1 hour',
                   now() - interval '1 minute', NULL
            FROM generate_series(1, {LEASES}) n;
            INSERT INTO penstock_claimed
            SELECT n, 'outbox', NULL, 0, 0, 1, NULL, 0, 0, now() - interval '1 hour', NULL, ({LEASE})::uuid
            FROM generate_series(1, {SETTLED}) n;
            """
        )
    with explaining(monkeypatch) as reaping:
        reaped = [store.reap()]
    assert pages(reaping) < 100 * REAP_BATCH
    while count := store.reap():
        reaped.append(count)
    assert reaped == [REAP_BATCH] * (SETTLED // REAP_BATCH)
    assert store.stats().total("ready") == SETTLED
    assert store.stats().open_leases == 0
    store.close()


def test_leases_beyond_reap_limit_are_reaped_by_next_pass(postgres_url: str) -> None:
    store = open_store(postgres_url)
    store.initialise()
    emitted = store.append([event() for _ in range(2_500)])
    with psycopg.connect(postgres_url) as connection:
        connection.execute(
            """
            INSERT INTO penstock_leases
            SELECT lpad(seq::text, 32, '0')::uuid, queue, 'dead', gen_random_uuid(), 0, false, 10, now(), now(), NULL
            FROM penstock_pending;
            INSERT INTO penstock_claimed SELECT p.*, lpad(seq::text, 32, '0')::uuid FROM penstock_pending p;
            DELETE FROM penstock_pending;
            """
        )
    assert [store.reap() for _ in range(4)] == [1_000, 1_000, 500, 0]
    assert store.stats().total("ready") == len(emitted)
    store.close()
