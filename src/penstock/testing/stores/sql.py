"""Conformance tests for stores in a SQL database: the caller's transaction, and the outbox view for plain SQL."""

from collections.abc import Iterator
from typing import Any, Protocol

import pytest

from penstock.model.errors import NotSupported
from penstock.model.lease import Settlement
from penstock.model.lifecycle import State
from penstock.model.outcome import PUBLISHED, RELEASED, Dead, Outcome, Retry
from penstock.model.selection import Selection
from penstock.outbox import Outbox
from penstock.store.sql.store import SqlStore
from penstock.testing.stores.inspection import one_of_each
from penstock.testing.stores.scenario import (
    EVERYTHING,
    ManualClock,
    StoreScenario,
    all_to,
    claim,
    emit,
    event,
    ids,
    needs,
    publish,
    records,
    seqs,
    settle,
    states,
)

COUNTED = ("attempts", "deliveries", "max_attempts", "replays", "suspect", "last_error", "priority", "queue", "state")
PLAIN = "INSERT INTO penstock_outbox (event_type, payload) VALUES ('orders.created', 'plain')"
TABLES = ("events", "pending", "claimed", "archive", "keys", "leases", "dedupe", "history")


class DatabaseConnection(Protocol):
    """The methods of a driver's connection that the suite uses. The first statement begins a transaction."""

    def execute(self, statement: Any) -> Any: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...


class SqlScenario(StoreScenario):
    @pytest.fixture
    def connection(self) -> Iterator[DatabaseConnection]:
        """Override to return a connection of the database's own driver to the database of `open_store`."""
        raise NotImplementedError("override the fixture `connection`")


def rows(connection: DatabaseConnection, statement: str) -> list[Any]:
    found = connection.execute(statement).fetchall()
    connection.commit()
    return list(found)


def counts(connection: DatabaseConnection) -> dict[str, int]:
    """Return the number of rows of each table, without empty tables."""
    statements = {name: f"SELECT count(*) FROM penstock_{name}" for name in TABLES}  # noqa: S608
    found = {name: rows(connection, statement)[0][0] for name, statement in statements.items()}
    return {name: count for name, count in found.items() if count}


class CallersTransaction(SqlScenario):
    def test_emit_commits_and_rolls_back_with_caller(self, store: SqlStore, connection: DatabaseConnection) -> None:
        for batch, deduped in ((1, True), (1, False), (40, True), (40, False)):
            keys = [str(number) if deduped else None for number in range(batch)]
            emitted = store.append([event(ordering_key="k", dedupe_key=key) for key in keys], connection=connection)
            assert len(set(emitted)) == batch
            connection.rollback()
        assert counts(connection) == {}
        (kept,) = store.append([event(ordering_key="k")], connection=connection)
        connection.commit()
        assert ids(claim(store)) == [kept]

    @pytest.mark.parametrize("outcome", [PUBLISHED, Retry("x", 0), Dead("x"), RELEASED])
    def test_settle_commits_and_rolls_back_with_caller(
        self, store: SqlStore, connection: DatabaseConnection, outcome: Outcome
    ) -> None:
        emit(store, 2)
        emit(store, 2, ordering_key="k")
        held = claim(store)
        before = records(store)
        settlement = store.settle_in(connection, held.lease, all_to(outcome, held))
        assert settlement.applied == 4
        connection.rollback()
        assert records(store) == before
        assert store.settle_in(connection, held.lease, all_to(outcome, held)) == settlement
        connection.commit()
        assert State.CLAIMED not in states(store)
        assert store.settle(held.lease, all_to(outcome, held)) == Settlement(already_settled=frozenset(seqs(held)))

    def test_settle_in_transaction_is_fenced(self, store: SqlStore, connection: DatabaseConnection) -> None:
        emit(store, 2)
        stale = claim(store)
        held = claim(store, lease_id=stale.lease.lease_id)
        settlement = store.settle_in(connection, stale.lease, all_to(PUBLISHED, stale))
        connection.commit()
        assert settlement == Settlement(lost=frozenset(seqs(stale)))
        publish(store, held)

    def test_empty_settle_in_transaction_changes_nothing(self, store: SqlStore, connection: DatabaseConnection) -> None:
        emit(store)
        held = claim(store)
        assert store.settle_in(connection, held.lease, {}) == Settlement()
        connection.commit()
        publish(store, held)

    def test_event_released_in_transaction_is_claimed_again(
        self, store: SqlStore, connection: DatabaseConnection, clock: ManualClock
    ) -> None:
        emitted = emit(store)
        held = claim(store)
        clock.advance(30)
        settle(store, PUBLISHED, queue="outbox")
        store.settle_in(connection, held.lease, all_to(RELEASED, held))
        connection.commit()
        assert store.ready("outbox")
        assert ids(claim(store)) == emitted


class OutboxView(SqlScenario):
    def test_view_shows_each_event_as_one_row(self, store: SqlStore, connection: DatabaseConnection) -> None:
        one_of_each(store)
        expected = [tuple(getattr(one, name) for name in COUNTED) for one in records(store)]
        assert rows(connection, f"SELECT {', '.join(COUNTED)} FROM penstock_outbox ORDER BY seq") == expected  # noqa: S608

    def test_view_shows_claim_fields_only_while_claimed(self, store: SqlStore, connection: DatabaseConnection) -> None:
        one_of_each(store)
        shown = rows(
            connection,
            "SELECT state, claimed_at IS NOT NULL, claimed_by IS NOT NULL, lease_expires_at IS NOT NULL, "
            "published_at IS NOT NULL, settled_at IS NOT NULL FROM penstock_outbox",
        )
        assert {row[0]: tuple(map(bool, row[1:])) for row in shown} == {
            "PENDING": (False, False, False, False, False),
            "CLAIMED": (True, True, True, False, False),
            "PUBLISHED": (False, False, False, True, True),
            "DEAD": (False, False, False, False, True),
        }


class NoPlainSql(SqlScenario):
    """A database whose views accept no INSERT must raise an error, so that no event is lost unnoticed."""

    def test_unsupported_insert_into_view_is_refused(self, store: SqlStore, connection: DatabaseConnection) -> None:
        if store.capabilities.insert_into_view:
            return
        with pytest.raises(Exception, match=r"(?i)insert"):
            connection.execute(PLAIN)
        connection.rollback()
        assert counts(connection) == {}
        with pytest.raises(NotSupported, match="does not support INSERT into a view"):
            Outbox(store).insert(event())


@needs("insert_into_view")
class PlainSql(SqlScenario):
    """Emitting by an INSERT into the view."""

    def test_plain_sql_insert_emits_event(
        self, store: SqlStore, connection: DatabaseConnection, clock: ManualClock
    ) -> None:
        connection.execute(PLAIN)
        connection.rollback()
        assert records(store) == []
        connection.execute(PLAIN)
        connection.commit()
        (found,) = records(store)
        assert (found.event_type, found.queue, found.payload, found.headers) == (
            "orders.created",
            "outbox",
            b"plain",
            {},
        )
        clock.now = found.created_at
        (delivered,) = claim(store).events
        assert (delivered.event_id, delivered.payload) == (found.event_id, b"plain")

    def test_plain_sql_insert_emits_several_events(self, store: SqlStore, connection: DatabaseConnection) -> None:
        connection.execute(
            "INSERT INTO penstock_outbox (event_type, queue, dedupe_key) "
            "VALUES ('a', 'q', 'x'), ('b', 'q', NULL), ('c', 'q', 'x'), ('d', 'q', 'y')"
        )
        connection.commit()
        found = records(store)
        assert [(one.event_type, one.queue, one.payload) for one in found] == [
            (name, "q", b"") for name in ("a", "b", "d")
        ]
        assert len({one.event_id for one in found}) == 3

    def test_plain_sql_insert_can_set_all_fields(
        self, store: SqlStore, connection: DatabaseConnection, clock: ManualClock
    ) -> None:
        connection.execute(
            "INSERT INTO penstock_outbox (event_id, event_type, headers, partition_key, ordering_key, priority, "
            "max_attempts, delay_seconds) VALUES ('0190163D-8694-739B-AEA5-966C26F8AD91', 't', '{\"a\": \"b\"}', 'p', "
            "'k', 7, 3, 60)"
        )
        connection.commit()
        (found,) = records(store)
        assert str(found.event_id) == "0190163d-8694-739b-aea5-966c26f8ad91"
        assert (found.headers, found.partition_key, found.ordering_key) == ({"a": "b"}, "p", "k")
        assert (found.priority, found.max_attempts) == (7, 3)
        assert (found.available_at - found.created_at).total_seconds() == pytest.approx(60)
        assert [one.event_id for one in records(store)] == [found.event_id]
        clock.now = found.created_at
        assert not claim(store)
        clock.advance(61)
        assert [one.ordering_key for one in claim(store).events] == ["k"]


class SqlHousekeeping(SqlScenario):
    def test_published_event_leaves_no_working_rows(self, store: SqlStore, connection: DatabaseConnection) -> None:
        settle(store, PUBLISHED, 3, ordering_key="k")
        assert counts(connection) == {"events": 3, "archive": 3, "leases": 1}

    def test_maintenance_removes_expired_rows(
        self, store: SqlStore, connection: DatabaseConnection, clock: ManualClock
    ) -> None:
        settle(store, PUBLISHED, dedupe_key="x", dedupe_seconds=100)
        emit(store)
        claim(store)
        clock.advance(86_401)
        store.maintain()
        assert counts(connection) == {"events": 2, "archive": 1, "claimed": 1, "leases": 1}

    def test_maintenance_continues_until_all_batches_are_removed(
        self, store: SqlStore, connection: DatabaseConnection, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("penstock.store.sql.store.UPKEEP_BATCH", 2)
        for number in range(5):
            settle(store, PUBLISHED, dedupe_key=f"{number}", dedupe_seconds=1)
        clock.advance(86_401)
        store.maintain()
        assert counts(connection) == {"events": 5, "archive": 5}

    def test_purge_removes_all_rows_of_event(self, store: SqlStore, connection: DatabaseConnection) -> None:
        (gone,) = settle(store, Dead("x"), ordering_key="k")
        assert counts(connection)["history"] == 1
        assert store.purge(Selection(ids=frozenset({gone}))) == 1
        assert counts(connection) == {"leases": 1}

    def test_purge_and_replay_run_in_batches(self, store: SqlStore) -> None:
        settle(store, PUBLISHED, 5_100)
        done: list[int] = []
        assert store.replay(EVERYTHING, progress=done.append) == 5_100
        assert done == [5_000, 5_100, 5_100]
        publish(store, claim(store, 10_000))
        done.clear()
        assert store.purge(EVERYTHING, batch=2_000, progress=done.append) == 5_100
        assert done == [2_000, 4_000, 5_100, 5_100]

    def test_repeated_initialise_changes_nothing(self, store: SqlStore) -> None:
        emit(store)
        upgrade = store.initialise()
        assert (upgrade.before, list(upgrade.steps)) == (upgrade.after, [])
        assert len(claim(store)) == 1
