"""A handler that settles in its own transaction: its writes and the settlement commit together."""

from collections.abc import Callable

import psycopg
import pytest
from sqlalchemy import Connection, text
from worker_watch import Watch, running

from penstock import AckPolicy, Outbox, Received, RetryPolicy, Worker, connect
from penstock.model.lifecycle import State
from penstock.model.outcome import PUBLISHED
from penstock.store.sql.store import SqlStore

INSERT = text("INSERT INTO effects (number) VALUES (:number)")


@pytest.fixture
def effects(store: SqlStore) -> Callable[[], list[int]]:
    with store.transaction() as connection:
        connection.execute(text("CREATE TABLE effects (number integer)"))

    def read() -> list[int]:
        with store.transaction() as connection:
            return sorted(connection.execute(text("SELECT number FROM effects")).scalars())

    return read


def test_writes_and_settlement_commit_together(
    worker: Worker, outbox: Outbox, watch: Watch, effects: Callable[[], list[int]]
) -> None:
    @worker.handler(max_workers=3)
    def handle(event: Received) -> None:
        with event.transaction() as connection:
            connection.execute(INSERT, {"number": int(event.text())})
            outbox.emit("done", event.text(), queue="next", connection=connection)

    outbox.emit_many([outbox.event("x", str(number)) for number in range(10)])
    with running(worker):
        watch.until(published=10, pending=10)
        assert effects() == list(range(10))


def test_failed_handler_rolls_back_writes(
    worker: Worker, outbox: Outbox, watch: Watch, effects: Callable[[], list[int]]
) -> None:
    @worker.handler(retry=RetryPolicy.constant(0.01))
    def handle(event: Received) -> None:
        with event.transaction() as connection:
            connection.execute(INSERT, {"number": event.attempts})
            if event.attempts < 2:
                raise ConnectionError("not yet")

    outbox.emit("x", "1")
    with running(worker):
        watch.until(published=1)
    assert effects() == [2]
    assert watch.records()["1"].attempts == 2


def test_lost_lease_rolls_back_writes(
    worker: Worker, outbox: Outbox, watch: Watch, store: SqlStore, effects: Callable[[], list[int]]
) -> None:
    """Another claimant takes over the event while its handler runs."""
    raised: list[str] = []

    @worker.handler()
    def handle(event: Received) -> None:
        if event.attempts == 0:
            taken = store.claim(event.queue, limit=1, claimant="another", lease_id=event.lease.lease_id)
            assert len(taken) == 1
        try:
            with event.transaction() as connection:
                connection.execute(INSERT, {"number": event.attempts})
        except Exception as error:
            raised.append(str(error))
            store.settle(taken.lease, {event.seq: PUBLISHED})
            raise

    outbox.emit("x")
    with running(worker):
        watch.until(published=1)
    assert len(raised) == 1
    assert "no longer claimed by this worker" in raised[0]
    assert effects() == []


def test_decided_event_refuses_transaction(worker: Worker, outbox: Outbox, watch: Watch) -> None:
    @worker.handler(ack_policy=AckPolicy.REJECT_ON_ERROR)
    def handle(event: Received) -> None:
        event.ack()
        with event.transaction():
            raise AssertionError("not reached")

    outbox.emit("x", "1")
    with running(worker):
        watch.until(published=1)


def test_exception_after_commit_does_not_undo_transaction(
    worker: Worker, outbox: Outbox, watch: Watch, effects: Callable[[], list[int]]
) -> None:
    """An exception after the commit neither undoes the transaction nor causes a retry."""

    @worker.handler(retry=RetryPolicy.constant(0))
    def handle(event: Received) -> None:
        with event.transaction() as connection:
            connection.execute(INSERT, {"number": 1})
        raise RuntimeError("afterwards")

    outbox.emit("x")
    with running(worker):
        watch.until(published=1)
    assert effects() == [1]
    assert watch.states() == {State.PUBLISHED: 1}


class Cut:
    """Terminates the connection of the transaction, or locks its lease, at the first call."""

    def __init__(self, url: str, how: str) -> None:
        self.calls = 0
        self._url = url
        self._how = how
        self._locking: psycopg.Connection | None = None

    def __call__(self, connection: Connection) -> None:
        self.calls += 1
        if self.calls == 1 and self._how == "connection":
            pid = connection.execute(text("SELECT pg_backend_pid()")).scalar()
            with psycopg.connect(self._url) as other:
                other.execute("SELECT pg_terminate_backend(%s, 60000)", (pid,))
        elif self.calls == 1:
            connection.execute(text("SET LOCAL lock_timeout = 1"))
            self._locking = psycopg.connect(self._url)
            self._locking.execute("SELECT 1 FROM penstock_leases FOR UPDATE")

    def end(self) -> None:
        """Release the lock after the transaction has failed because of it."""
        if self._locking is not None:
            self._locking.close()


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("how", ["connection", "lock"])
def test_failed_settle_costs_no_attempt(
    worker: Worker, outbox: Outbox, watch: Watch, effects: Callable[[], list[int]], url: str, how: str
) -> None:
    cut = Cut(url, how)
    handled: list[str] = []

    @worker.handler(retry=RetryPolicy.none())
    def handle(event: Received) -> None:
        handled.append(event.text())
        try:
            with event.transaction() as connection:
                connection.execute(INSERT, {"number": int(event.text())})
                cut(connection)
        finally:
            cut.end()

    outbox.emit_many([outbox.event("x", str(number), ordering_key="k") for number in range(3)])
    with running(worker):
        watch.until(published=3)
    assert effects() == [0, 1, 2]
    assert handled == ["0", "0", "1", "2"]
    assert {record.attempts for record in watch.records().values()} == {0}


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_connection_lost_in_transaction_costs_no_attempt(
    worker: Worker, outbox: Outbox, watch: Watch, effects: Callable[[], list[int]], url: str
) -> None:
    cut = Cut(url, "connection")

    @worker.handler(retry=RetryPolicy.none())
    def handle(event: Received) -> None:
        with event.transaction() as connection:
            cut(connection)
            connection.execute(INSERT, {"number": cut.calls})

    outbox.emit("x")
    with running(worker):
        watch.until(published=1)
    assert effects() == [2]


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_lock_conflict_in_handler_statement_fails_event(
    worker: Worker, outbox: Outbox, watch: Watch, effects: Callable[[], list[int]], url: str
) -> None:
    @worker.handler(retry=RetryPolicy.none())
    def handle(event: Received) -> None:
        with event.transaction() as connection, psycopg.connect(url) as other:
            other.execute("LOCK TABLE effects")
            connection.execute(text("SET LOCAL lock_timeout = 1"))
            connection.execute(INSERT, {"number": 1})

    outbox.emit("x")
    with running(worker):
        watch.until(dead=1)
    assert effects() == []


def test_unreachable_second_store_in_handler_fails_event(
    worker: Worker, outbox: Outbox, watch: Watch, effects: Callable[[], list[int]]
) -> None:
    elsewhere = connect("postgresql://nobody@127.0.0.1:1/none")

    @worker.handler(retry=RetryPolicy.none())
    def handle(event: Received) -> None:
        with event.transaction() as connection:
            connection.execute(INSERT, {"number": 1})
            elsewhere.emit("x")

    outbox.emit("x")
    with running(worker):
        watch.until(dead=1)
    assert effects() == []
