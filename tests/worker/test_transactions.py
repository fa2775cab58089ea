"""A handler that settles in its own transaction: its writes and the settlement commit together."""

from collections.abc import Callable

import pytest
from sqlalchemy import text
from worker_watch import Watch, running

from penstock import AckPolicy, Outbox, Received, RetryPolicy, Worker
from penstock.lifecycle import PUBLISHED, State
from penstock.store import SqlStore

INSERT = text("INSERT INTO effects (number) VALUES (:number)")


@pytest.fixture
def effects(store: SqlStore) -> Callable[[], list[int]]:
    with store.transaction() as connection:
        connection.execute(text("CREATE TABLE effects (number integer)"))

    def read() -> list[int]:
        with store.transaction() as connection:
            return sorted(connection.execute(text("SELECT number FROM effects")).scalars())

    return read


def test_both_commit(worker: Worker, outbox: Outbox, watch: Watch, effects: Callable[[], list[int]]) -> None:
    @worker.handler(max_workers=3)
    def handle(event: Received) -> None:
        with event.transaction() as connection:
            connection.execute(INSERT, {"number": int(event.text())})
            outbox.emit("done", event.text(), queue="next", connection=connection)

    outbox.emit_many([outbox.event("x", str(number)) for number in range(10)])
    with running(worker):
        watch.until(published=10, pending=10)
        assert effects() == list(range(10))


def test_neither_commits_when_the_handler_fails(
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


def test_a_lost_lease_rolls_back(
    worker: Worker, outbox: Outbox, watch: Watch, store: SqlStore, effects: Callable[[], list[int]]
) -> None:
    """Another claimant has taken the event over in the middle of its handler."""
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
    assert "no longer this worker's" in raised[0]
    assert effects() == []


def test_what_is_decided_has_no_transaction(worker: Worker, outbox: Outbox, watch: Watch) -> None:
    @worker.handler(ack_policy=AckPolicy.REJECT_ON_ERROR)
    def handle(event: Received) -> None:
        event.ack()
        with event.transaction():
            raise AssertionError("not reached")

    outbox.emit("x", "1")
    with running(worker):
        watch.until(published=1)


def test_a_transaction_that_is_done_stays_done(
    worker: Worker, outbox: Outbox, watch: Watch, effects: Callable[[], list[int]]
) -> None:
    """What happens after the commit can't undo it, and is not tried again."""

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
