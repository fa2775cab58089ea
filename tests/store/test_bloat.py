"""Dead rows that vacuum may not remove, because an older snapshot could still see them: claims skip them, and
`maintain` leaves them to vacuum. Costs are counted in pages and rows, never in time."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import psycopg
import pytest
from plans import explaining, pages

from penstock.store.registry import open_store
from penstock.store.sql import claim_hints as hints
from penstock.store.sql.store import SqlStore
from penstock.testing.stores.scenario import ManualClock, claim, event, publish

DEAD = 1_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(postgres_url: str, clock: ManualClock) -> Iterator[SqlStore]:
    store = open_store(postgres_url, clock=clock)
    store.initialise()
    yield store
    store.close()


@contextmanager
def old_snapshot(url: str) -> Iterator[psycopg.Connection]:
    """Open a long transaction on another connection: its snapshot prevents the removal of dead rows."""
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM penstock_history")
        yield connection


def swell(store: SqlStore, clock: ManualClock, rounds: int) -> None:
    """Emit, claim and settle 5,000 events per round."""
    for _ in range(rounds):
        store.append([event() for _ in range(5_000)])
        clock.advance(1)
        publish(store, claim(store, 5_000))
    clock.advance(60)


def test_claims_skip_dead_rows_kept_by_old_snapshot(
    store: SqlStore, postgres_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "FULL_LOOK_SECONDS", 3_600)
    with old_snapshot(postgres_url):
        swell(store, clock, 11)
        claim(store)
        with explaining(monkeypatch) as probing:
            assert not store.ready("outbox")
        emitter = open_store(postgres_url, clock=clock)
        emitter.append([event() for _ in range(100)])
        with explaining(monkeypatch) as claiming:
            assert len(claim(store, 100)) == 100
        with explaining(monkeypatch) as looking:
            assert not emitter.ready("outbox")
        emitter.close()
    # A store without a scan floor reads all dead rows, which shows that there are enough of them.
    assert pages(looking) > 300
    assert pages(probing) < 30
    assert sum(plan.rows for plan in claiming) < 1_500
    assert pages(claiming) < 3_000


@pytest.mark.parametrize("keys", [0, 100])
def test_claim_reads_each_event_once_despite_wrong_statistics(
    store: SqlStore, postgres_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, keys: int
) -> None:
    """ANALYZE may find no live row in a table of many pages; a claim is then planned for a single event."""
    with old_snapshot(postgres_url):
        swell(store, clock, 1)
        with psycopg.connect(postgres_url) as connection:
            connection.execute("ANALYZE")
        store.append([event(ordering_key=f"k{number % keys}" if keys else None) for number in range(500)])
        with explaining(monkeypatch) as claiming:
            assert len(claim(store, 500)) == 500
    assert sum(plan.rows for plan in claiming) < 5_000


def test_claims_and_settles_skip_million_dead_rows(
    store: SqlStore, postgres_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older snapshot keeps the dead rows. Claims between full scans do not read them, and the snapshot still sees
    the events of its time."""
    monkeypatch.setattr(hints, "FULL_LOOK_SECONDS", 3_600)
    emitted = store.append([event() for _ in range(65)])
    with old_snapshot(postgres_url) as report:
        leave_dead_rows(postgres_url, DEAD, before=clock())
        clock.advance(60)
        publish(store, claim(store, 100))
        claim(store)  # sets the scan floor of the following claims
        store.append([event() for _ in range(100)])
        claim(store, 1)
        with explaining(monkeypatch) as claiming:
            held = claim(store, 99)
        assert len(held) == 99
        with explaining(monkeypatch) as settling:
            publish(store, held)
        store.maintain()
        pending = "SELECT event_id FROM penstock_outbox WHERE state = 'PENDING' ORDER BY seq"
        assert [one for (one,) in report.execute(pending)] == emitted
    assert sum(plan.rows for plan in claiming) < 1_500
    assert pages(claiming) < 3_000
    assert pages(settling) < 3_000


def leave_dead_rows(url: str, count: int, before: datetime) -> None:
    """Insert and delete rows of a queue, with times up to `before`."""
    with psycopg.connect(url) as connection:
        connection.execute(
            """
            INSERT INTO penstock_pending
            SELECT -n, 'outbox', NULL, 0, 0, 0, NULL, 0, 0, %s::timestamptz - n * interval '1 microsecond', NULL
            FROM generate_series(1, %s) n
            """,
            [before, count],
        )
        connection.execute("DELETE FROM penstock_pending WHERE seq < 0")
