"""The in-process worker for users' tests handles events as the real worker would."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.model.errors import InvalidPayload, UsageError
from penstock.model.lifecycle import State
from penstock.model.outcome import PUBLISHED, Dead, Published, Retry
from penstock.model.records import Record
from penstock.model.retry import RetryPolicy
from penstock.model.selection import Selection
from penstock.outbox import connect
from penstock.testing.workers import HandledEvent, InProcessWorker
from penstock.worker import AckPolicy, Received, Worker

DAY = 86_400.0
TWICE = RetryPolicy.constant(60.0, max_attempts=2)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'events.db'}"


@pytest.fixture
def worker(url: str) -> Worker:
    return Worker(url)


@contextmanager
def working(worker: Worker) -> Iterator[InProcessWorker]:
    with InProcessWorker(worker, worker.url) as it:
        yield it


def record(working: InProcessWorker, handled: HandledEvent) -> Record:
    (found,) = working.store.find(Selection(ids=frozenset({handled.event.event_id}))).records
    return found


def texts(handled: list[HandledEvent]) -> list[str]:
    return [one.event.text() for one in handled]


def test_drain_handles_events_in_calling_thread(worker: Worker) -> None:
    threads: list[threading.Thread] = []
    worker.handler("emails")(lambda event: threads.append(threading.current_thread()))
    before = threading.active_count()
    with working(worker) as it, connect(worker.url) as outbox:
        outbox.emit("order.paid", "1", queue="emails")
        outbox.emit("order.paid", "2", queue="emails")
        outbox.emit("order.paid", "not for this worker", queue="labels")
        done = it.drain()
        assert texts(done) == ["1", "2"]
        assert {one.outcome for one in done} == {PUBLISHED}
        assert record(it, done[0]).state is State.PUBLISHED
        assert it.drain() == []
    assert threads == [threading.current_thread()] * 2
    assert threading.active_count() <= before  # threads of earlier tests may have ended


def test_drain_handles_events_emitted_by_handlers(worker: Worker) -> None:
    @worker.handler("orders")
    def order(event: Received) -> None:
        worker.outbox.emit("receipt", event.text(), queue="emails")

    @worker.handler("emails")
    async def email(event: Received) -> None:
        await asyncio.sleep(0)

    with working(worker) as it:
        it.outbox.emit("order.paid", "7", queue="orders")
        assert [(one.event.queue, one.event.text()) for one in it.drain()] == [("orders", "7"), ("emails", "7")]


def test_drain_applies_worker_arguments_and_middlewares(worker: Worker) -> None:
    @dataclass
    class Order:
        number: int

    seen: list[object] = []

    @worker.middleware
    @contextmanager
    def around(event: Received) -> Iterator[None]:
        seen.append("in")
        yield
        seen.append("out")

    @worker.handler("orders")
    def order(order: Order) -> None:
        seen.append(order.number)

    with working(worker) as it:
        it.outbox.emit("order.paid", {"number": 7}, queue="orders")
        it.outbox.emit("order.paid", {"number": "seven"}, queue="orders")
        good, bad = it.drain()
    assert seen == ["in", 7, "out"]
    assert good == HandledEvent(good.event, PUBLISHED)
    assert isinstance(bad.error, InvalidPayload)
    assert isinstance(bad.outcome, Dead)
    assert bad.outcome.error.startswith("invalid payload: number: ")


def test_async_middleware_wraps_async_handler(worker: Worker) -> None:
    seen: list[str] = []

    @worker.middleware
    @asynccontextmanager
    async def around(event: Received) -> Any:
        seen.append("in")
        yield
        seen.append("out")

    @worker.handler("orders")
    async def order(payload: bytes) -> None:
        await asyncio.sleep(0)
        seen.append(payload.decode())

    with working(worker) as it:
        it.outbox.emit("order.paid", b"7", queue="orders")
        it.drain()
    assert seen == ["in", "7", "out"]


def test_drain_runs_pending_retries_only_if_delayed(worker: Worker) -> None:
    @worker.handler("orders", retry=TWICE)
    def order(event: Received) -> None:
        raise ConnectionError("no route")

    with working(worker) as it:
        it.outbox.emit("order.paid", "7", queue="orders")
        (first,) = it.drain()
        assert isinstance(first.outcome, Retry)
        assert (type(first.error), first.outcome.delay_seconds) == (ConnectionError, 60.0)
        assert it.drain() == []
        (second,) = it.drain(delayed=True)
        assert isinstance(second.outcome, Dead)
        assert (record(it, second).state, record(it, second).attempts) == (State.DEAD, 2)


def test_delayed_drain_advances_clock_to_scheduled_events(worker: Worker) -> None:
    worker.handler("orders")(lambda event: None)
    with working(worker) as it:
        started = it.store.now()
        it.outbox.emit("order.paid", "in two days", queue="orders", delay=2 * DAY)
        it.outbox.emit("order.paid", "tomorrow", queue="orders", delay=DAY)
        it.outbox.emit("order.paid", "elsewhere", queue="labels", delay=9 * DAY)
        it.outbox.emit("order.paid", "now", queue="orders")
        assert texts(it.drain()) == ["now"]
        assert texts(it.drain(delayed=True)) == ["tomorrow", "in two days"]
        assert timedelta(days=2) <= it.store.now() - started < timedelta(days=3)


def test_drain_leaves_paused_queue(worker: Worker) -> None:
    worker.handler("orders")(lambda event: None)
    with working(worker) as it:
        it.outbox.emit("order.paid", "7", queue="orders", delay=60)
        it.store.pause("orders")
        assert it.drain(delayed=True) == []
        it.store.resume("orders")
        assert texts(it.drain()) == ["7"]


def test_drain_stops_at_maximum_number_of_events(worker: Worker) -> None:
    @worker.handler("orders")
    def order(event: Received) -> None:
        worker.outbox.emit("order.paid", event.text(), queue="orders", delay=60)

    with working(worker) as it:
        it.outbox.emit("order.paid", "again", queue="orders")
        assert len(it.drain(delayed=True, most=25)) == 25


@pytest.mark.parametrize("policy", list(AckPolicy))
def test_ack_policy_decides_state_after_handler(worker: Worker, policy: AckPolicy) -> None:
    @worker.handler("orders", ack_policy=policy, retry=TWICE)
    def order(event: Received) -> None:
        if event.text() == "bad":
            raise ValueError("bad")

    with working(worker) as it:
        it.outbox.emit("order.paid", "good", queue="orders")
        it.outbox.emit("order.paid", "bad", queue="orders")
        good, bad = it.drain()
        states = record(it, good).state, record(it, bad).state
    assert (good.error, type(bad.error)) == (None, ValueError)
    assert (
        states
        == {
            AckPolicy.ACK_FIRST: (State.PUBLISHED, State.PUBLISHED),
            AckPolicy.ACK: (State.PUBLISHED, State.PUBLISHED),
            AckPolicy.REJECT_ON_ERROR: (State.PUBLISHED, State.DEAD),
            AckPolicy.NACK_ON_ERROR: (State.PUBLISHED, State.PENDING),
            AckPolicy.MANUAL: (State.CLAIMED, State.PENDING),
        }[policy]
    )
    assert (good.outcome is None) == (policy is AckPolicy.MANUAL)


def test_event_can_be_acked_after_handler_returns(worker: Worker) -> None:
    held: list[Received] = []
    worker.handler("orders", ack_policy=AckPolicy.MANUAL)(held.append)
    worker.handler("reminders")(lambda event: None)
    with working(worker) as it:
        it.outbox.emit("order.paid", "7", queue="orders")
        it.outbox.emit("reminder", "later", queue="reminders", delay=300)
        (undecided, _) = it.drain(delayed=True)
        assert undecided.outcome is None
        assert record(it, undecided).state is State.CLAIMED
        held[0].ack({"receipt": 1})
        assert it.drain() == [HandledEvent(held[0], Published(b'{"receipt":1}'))]
        assert record(it, undecided).state is State.PUBLISHED


def test_event_over_max_deliveries_is_not_handled(worker: Worker) -> None:
    calls: list[Received] = []

    @worker.handler("orders", max_deliveries=1, retry=RetryPolicy.constant(0.0))
    def order(event: Received) -> None:
        calls.append(event)
        raise ValueError("bad")

    with working(worker) as it:
        it.outbox.emit("order.paid", "7", queue="orders")
        failed, refused = it.drain(delayed=True)
    assert len(calls) == 1
    assert isinstance(failed.error, ValueError)
    assert refused.error is None
    assert refused.outcome == Dead("delivered 2 times; the limit is 1")


def test_batches_keep_order_of_ordering_key(worker: Worker) -> None:
    batches: list[list[str]] = []

    @worker.handler("orders", batch_size=2)
    def orders(events: list[Received]) -> None:
        batches.append([event.text() for event in events])

    with working(worker) as it:
        for number in range(5):
            it.outbox.emit("order.paid", str(number), queue="orders", ordering_key="customer")
        assert texts(it.drain()) == ["0", "1", "2", "3", "4"]
    assert batches == [["0", "1"], ["2", "3"], ["4"]]


def test_handler_transaction_commits_with_event(worker: Worker) -> None:
    @worker.handler("orders")
    def order(event: Received) -> None:
        with event.transaction() as connection:
            connection.exec_driver_sql("CREATE TABLE receipts (number TEXT)")

    with working(worker) as it:
        it.outbox.emit("order.paid", "7", queue="orders")
        (handled,) = it.drain()
        assert handled.outcome == PUBLISHED
        with it.store.transaction() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM receipts").scalar() == 0


def test_drain_raises_handler_errors_on_request(worker: Worker) -> None:
    @worker.handler("orders", retry=RetryPolicy.none())
    def order(event: Received) -> None:
        if event.text() == "bad":
            raise ValueError("no such order")

    with working(worker) as it:
        for text in ("bad", "good"):
            it.outbox.emit("order.paid", text, queue="orders")
        with pytest.raises(ValueError, match="no such order"):
            it.drain(raise_errors=True)
        assert it.store.stats().total("dead") == 1
        (good,) = it.drain(raise_errors=True)
    assert (good.event.text(), good.event.deliveries) == ("good", 1)


def test_periodic_events_fire_on_request(worker: Worker) -> None:
    worker.periodic("0 3 * * *", "cleanup", {"days": 7}, queue="chores")
    worker.handler("chores")(lambda event: None)
    with working(worker) as it:
        assert it.drain(delayed=True) == []
        (first,) = it.fire_periodic()
        (handled,) = it.drain()
        assert (handled.event.event_id, handled.event.event_type, handled.event.json()) == (
            first,
            "cleanup",
            {"days": 7},
        )
        assert it.fire_periodic() != [first]
        assert len(it.drain()) == 1


def test_drain_handles_events_of_expired_lease(worker: Worker) -> None:
    worker.handler("orders")(lambda event: None)
    with working(worker) as it:
        it.outbox.emit("order.paid", "7", queue="orders")
        it.store.claim("orders", limit=10, claimant="dead", lease_seconds=0.000_001)
        assert texts(it.drain()) == ["7"]


def test_worker_can_not_start_inside_in_process_worker(worker: Worker) -> None:
    @worker.handler("orders")
    def order(event: Received) -> None:
        worker.start()

    with working(worker) as it:
        it.outbox.emit("order.paid", "7", queue="orders")
        with pytest.raises(UsageError, match="already running"):
            it.drain(raise_errors=True)
    with pytest.raises(UsageError, match="while the worker is running"):
        _ = worker.outbox


def test_drain_in_event_loop_is_usage_error(worker: Worker) -> None:
    @worker.handler("orders")
    async def order(event: Received) -> None: ...

    async def test() -> None:
        it.drain()

    with working(worker) as it, pytest.raises(UsageError, match="synchronous test"):
        asyncio.run(test())


def test_uninitialised_worker_store_is_error(worker: Worker) -> None:
    worker.handler("orders")(lambda event: None)
    with pytest.raises(Exception, match="penstock init"):
        InProcessWorker(worker)


def test_drain_works_on_postgresql(postgres_url: str) -> None:
    worker = Worker("sqlite:///elsewhere.db")

    @worker.handler("orders", retry=TWICE)
    async def order(payload: dict[str, int]) -> None:
        if payload["number"] == 1:
            raise ValueError("bad")

    with InProcessWorker(worker, postgres_url) as it, connect(postgres_url) as outbox:
        for number in range(3):
            outbox.emit("order.paid", {"number": number}, queue="orders", delay=DAY if number == 2 else None)
        assert [one.event.json()["number"] for one in it.drain()] == [0, 1]
        assert [one.event.json()["number"] for one in it.drain(delayed=True)] == [1, 2]
        assert it.store.stats().total("dead") == 1
