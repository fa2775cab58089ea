"""Dead rows that vacuum may not remove, because an old snapshot could still see them: claims pass them by, and upkeep
gets rid of them. Counted in pages and rows, never in time."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from plans import explaining, pages

from penstock.store import SqlStore, hints, open_store, postgres
from penstock.testing.stores.scenario import ManualClock, claim, event, publish


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
def old_snapshot(url: str) -> Iterator[None]:
    """Another connection's long transaction, because of which no dead row may be removed."""
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM penstock_history")
        yield


def swell(store: SqlStore, clock: ManualClock, rounds: int) -> None:
    """Emit, claim and settle 5,000 events a round."""
    for _ in range(rounds):
        store.append([event() for _ in range(5_000)])
        clock.advance(1)
        publish(store, claim(store, 5_000))
    clock.advance(60)


def test_dead_rows_that_vacuum_may_not_remove_are_not_looked_at(
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
    # Without the floor, all that is dead is looked at: or this would show nothing.
    assert pages(looking) > 300
    assert pages(probing) < 30
    assert sum(plan.rows for plan in claiming) < 1_500
    assert pages(claiming) < 3_000


def test_upkeep_compacts_what_dead_rows_have_swollen(
    store: SqlStore, postgres_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "COMPACT_BYTES", 1_000_000)
    with old_snapshot(postgres_url):
        swell(store, clock, 6)
        emitted = store.append([event(ordering_key="k" if number % 2 else None) for number in range(50)])
        held = claim(store, 10)
        before = table_bytes(postgres_url)
        assert min(before.values()) > 1_000_000
        store.tend()
        after = table_bytes(postgres_url)
        assert max(after.values()) < 200_000
    assert store.stats().total("pending") == 40
    publish(store, held)
    left = claim(store, 100)
    assert len(left) == 40
    assert {one.event_id for one in (*held.events, *left.events)} == set(emitted)


def test_upkeep_leaves_a_table_alone_that_is_in_use_or_full(
    store: SqlStore, postgres_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "COMPACT_BYTES", 100_000)
    monkeypatch.setattr(postgres, "COMPACT_ROWS", 100)
    with old_snapshot(postgres_url):
        swell(store, clock, 1)
        with psycopg.connect(postgres_url) as connection:
            connection.execute("SELECT 1 FROM penstock_pending")
            before = table_bytes(postgres_url)
            store.tend()
            assert table_bytes(postgres_url)["penstock_pending"] == before["penstock_pending"]
        emitted = store.append([event() for _ in range(101)])
        store.tend()
        assert table_bytes(postgres_url)["penstock_pending"] >= before["penstock_pending"]
        assert len(claim(store, 200)) == len(emitted)


def table_bytes(url: str) -> dict[str, int]:
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT relname, pg_total_relation_size(oid) FROM pg_class "
            "WHERE relname IN ('penstock_pending', 'penstock_claimed')"
        )
        return dict(found.fetchall())
