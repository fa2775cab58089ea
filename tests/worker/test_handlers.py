"""Handlers as users write them: their arguments, and the outcomes of their events."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel
from worker_watch import Watch, running

from penstock import AckPolicy, Outbox, Received, RetryPolicy, Worker
from penstock.model.errors import UsageError
from penstock.model.lifecycle import State
from penstock.model.records import Note
from penstock.model.selection import Selection
from penstock.store.sql.store import SqlStore

SOON = RetryPolicy.constant(0.01, max_attempts=3)


class Email(BaseModel):
    to: str
    retries: int = 0


@dataclass
class Order:
    id: int
    total: float


def test_handler_receives_events(worker: Worker, outbox: Outbox, watch: Watch) -> None:
    seen: list[Any] = []

    @worker.handler("emails")
    def send(event: Received) -> None:
        seen.append((event.event_id, event.json(), event.deliveries))

    emitted = [outbox.emit("email.due", {"to": name}, queue="emails") for name in "abc"]
    with running(worker):
        watch.until(published=3)
    assert sorted(seen, key=lambda one: one[1]["to"]) == [
        (event_id, {"to": name}, 1) for event_id, name in zip(emitted, "abc", strict=True)
    ]


def test_async_handler_runs_up_to_max_workers_at_once(worker: Worker, outbox: Outbox, watch: Watch) -> None:
    together = 0
    most = 0

    @worker.handler(max_workers=5)
    async def handle(event: Received) -> None:
        nonlocal together, most
        together += 1
        most = max(most, together)
        await asyncio.sleep(0.01)
        together -= 1

    outbox.emit_many([outbox.event("x") for _ in range(20)])
    with running(worker):
        watch.until(published=20)
    assert most == 5


def test_payload_is_decoded_by_annotation(worker: Worker, outbox: Outbox, watch: Watch) -> None:
    seen: dict[str, Any] = {}

    @worker.handler("model")
    async def model(email: Email) -> None:
        seen["model"] = email

    @worker.handler("dataclass")
    def data(order: Order, event: Received) -> None:
        seen["dataclass"] = (order, event.queue)

    @worker.handler("dict")
    def mapping(payload: dict[str, Any]) -> None:
        seen["dict"] = payload

    @worker.handler("bytes")
    def raw(payload: bytes) -> None:
        seen["bytes"] = payload

    @worker.handler("text")
    def text(payload: str) -> None:
        seen["text"] = payload

    outbox.emit("x", {"to": "a"}, queue="model")
    outbox.emit("x", {"id": 1, "total": 2.5}, queue="dataclass")
    outbox.emit("x", {"a": [1]}, queue="dict")
    outbox.emit("x", b"\x00\xff", queue="bytes")
    outbox.emit("x", "größe", queue="text")
    with running(worker):
        watch.until(published=5)
    assert seen == {
        "model": Email(to="a"),
        "dataclass": (Order(1, 2.5), "dataclass"),
        "dict": {"a": [1]},
        "bytes": b"\x00\xff",
        "text": "größe",
    }


def test_invalid_payload_becomes_dead_letter_at_once(
    worker: Worker, outbox: Outbox, watch: Watch, store: SqlStore
) -> None:
    handled: list[Email] = []

    @worker.handler(retry=SOON)
    def send(email: Email) -> None:
        handled.append(email)

    bad = outbox.emit("x", {"to": 1, "retries": "many"})
    outbox.emit("x", b"not json")
    outbox.emit("x", {"to": "a"})
    with running(worker):
        watch.until(published=1, dead=2)
    assert handled == [Email(to="a")]
    (record,) = store.find(Selection(ids=frozenset({bad}))).records
    assert record.attempts == 1
    assert record.last_error is not None
    assert "to: Input should be a valid string" in record.last_error
    assert "retries: Input should be a valid integer" in record.last_error


def test_handler_decides_outcome_with_ack_nack_and_reject(
    worker: Worker, outbox: Outbox, watch: Watch, store: SqlStore
) -> None:
    @worker.handler(retry=SOON)
    def handle(event: Received) -> None:
        match event.text():
            case "ack":
                event.ack({"sum": 3})
                raise RuntimeError("too late to matter")
            case "reject":
                event.reject("not for us")
            case "nack" if event.attempts == 0:
                event.nack(delay=0)

    ids = {word: outbox.emit("x", word) for word in ("ack", "reject", "nack")}
    with running(worker):
        watch.until(published=2, dead=1)
    records = {record.payload.decode(): record for record in store.find(Selection(everything=True)).records}
    assert store.notes([ids["ack"]]) == {ids["ack"]: Note(None, b'{"sum":3}')}
    assert (records["ack"].attempts, records["nack"].attempts) == (0, 1)
    assert records["nack"].last_error == "nack'ed by its handler"
    assert (records["reject"].state, records["reject"].last_error) == (State.DEAD, "not for us")


@pytest.mark.parametrize(
    ("policy", "good", "bad", "calls"),
    [
        (AckPolicy.ACK_FIRST, State.PUBLISHED, State.PUBLISHED, 1),
        (AckPolicy.ACK, State.PUBLISHED, State.PUBLISHED, 1),
        (AckPolicy.REJECT_ON_ERROR, State.PUBLISHED, State.DEAD, 1),
        (AckPolicy.NACK_ON_ERROR, State.PUBLISHED, State.DEAD, 3),
        (AckPolicy.MANUAL, State.CLAIMED, State.DEAD, 3),
    ],
)
@pytest.mark.parametrize("colour", ["plain", "async"])
def test_ack_policy_determines_outcome(
    worker: Worker,
    outbox: Outbox,
    watch: Watch,
    store: SqlStore,
    policy: AckPolicy,
    good: State,
    bad: State,
    calls: int,
    colour: str,
) -> None:
    called: list[str] = []

    def handle(event: Received) -> None:
        called.append(event.text())
        if event.text() == "bad":
            raise ValueError("no")

    async def handle_async(event: Received) -> None:
        handle(event)

    worker.handler(ack_policy=policy, retry=SOON)(handle if colour == "plain" else handle_async)
    outbox.emit("x", "good")
    outbox.emit("x", "bad")
    with running(worker):
        watch.that(lambda: called.count("bad") == calls and called.count("good") == 1)
        watch.that(lambda: _states(store) == {"good": good, "bad": bad})
    assert (called.count("good"), called.count("bad")) == (1, calls)


def _states(store: SqlStore) -> dict[str, State]:
    return {record.payload.decode(): record.state for record in store.find(Selection(everything=True)).records}


def test_ack_first_publishes_before_handler_runs(worker: Worker, outbox: Outbox, watch: Watch, store: SqlStore) -> None:
    seen: list[State] = []

    @worker.handler(ack_policy="ack_first")
    def handle(event: Received) -> None:
        seen.append(store.find(Selection(ids=frozenset({event.event_id}))).records[0].state)

    outbox.emit("x")
    with running(worker):
        watch.that(lambda: seen)
    assert seen == [State.PUBLISHED]


def test_manual_ack_may_follow_handler_return(worker: Worker, outbox: Outbox, watch: Watch, store: SqlStore) -> None:
    kept: list[Received] = []
    worker.handler(ack_policy=AckPolicy.MANUAL, release_stuck_timeout=3.0, release_stuck_interval=0.1)(kept.append)
    outbox.emit("x")
    with running(worker):
        watch.that(lambda: kept)
        lease = store.held([kept[0].lease.lease_id])
        until = store.now().timestamp() + 4.0
        watch.that(lambda: store.now().timestamp() > until)
        assert store.held([kept[0].lease.lease_id]) == lease, "heartbeats keep what is undecided"
        kept[0].ack()
        watch.until(published=1)
    assert len(kept) == 1


def test_settled_events_are_deleted_if_not_kept(worker: Worker, outbox: Outbox, watch: Watch) -> None:
    @worker.handler(keep_on_ack=False, keep_on_reject=False, retry=RetryPolicy.none())
    def handle(event: Received) -> None:
        if event.text() == "bad":
            raise ValueError("no")

    outbox.emit("x", "good")
    outbox.emit("x", "bad")
    outbox.emit("other", queue="other")
    with running(worker):
        watch.until(pending=1)


def test_handler_exception_is_recorded_with_traceback(
    worker: Worker, outbox: Outbox, watch: Watch, store: SqlStore
) -> None:
    @worker.handler(retry=RetryPolicy.none())
    def fails(event: Received) -> None:
        raise KeyError("missing")

    outbox.emit("x")
    with running(worker):
        watch.until(dead=1)
    error = store.find(Selection(everything=True)).records[0].last_error
    assert error is not None
    assert error.startswith("KeyError: 'missing'\n")
    assert "in fails" in error
    assert "handling.py" not in error


def test_middlewares_wrap_every_handler_call(worker: Worker, outbox: Outbox, watch: Watch) -> None:
    calls: list[str] = []

    @worker.middleware
    @contextmanager
    def outer(event: Received) -> Iterator[None]:
        calls.append(f"outer in {event.queue}")
        try:
            yield
        except LookupError:
            calls.append(f"outer forgives {event.queue}")

    @worker.middleware
    @contextmanager
    def inner(event: Received) -> Iterator[None]:
        calls.append(f"inner in {event.queue}")
        yield
        calls.append(f"inner out {event.queue}")

    @worker.handler("plain")
    def plain(event: Received) -> None:
        calls.append("plain")

    @worker.handler("async")
    async def asynchronous(event: Received) -> None:
        raise LookupError

    outbox.emit("x", queue="plain")
    with running(worker):
        watch.until(published=1)
        assert calls == ["outer in plain", "inner in plain", "plain", "inner out plain"]
        calls.clear()
        outbox.emit("x", queue="async")
        watch.until(published=2)
    assert calls == ["outer in async", "inner in async", "outer forgives async"]


def test_async_middleware_supports_only_async_handlers(worker: Worker, outbox: Outbox, watch: Watch) -> None:
    entered: list[str] = []

    @worker.middleware
    @asynccontextmanager
    async def traced(event: Received) -> AsyncIterator[None]:
        entered.append(event.queue)
        yield

    @worker.handler("plain", retry=RetryPolicy.none())
    def plain(event: Received) -> None:
        raise AssertionError("not reached")

    @worker.handler("async")
    async def asynchronous(event: Received) -> None:
        assert entered == ["async"]

    outbox.emit("x", queue="async")
    outbox.emit("x", queue="plain")
    with running(worker):
        watch.until(published=1, dead=1)


@pytest.mark.parametrize("colour", ["plain", "async"])
def test_handler_exceeding_timeout_fails(
    worker: Worker, outbox: Outbox, watch: Watch, store: SqlStore, colour: str
) -> None:
    free = threading.Event()
    quick: list[str] = []
    options = {"timeout_seconds": 1, "max_workers": 1, "retry": RetryPolicy.none()}

    def plain(event: Received) -> None:
        if event.text() == "slow":
            free.wait(60)
        else:
            quick.append(event.text())

    async def asynchronous(event: Received) -> None:
        if event.text() == "slow":
            await asyncio.sleep(60)
        else:
            quick.append(event.text())

    worker.handler(**options)(plain if colour == "plain" else asynchronous)
    outbox.emit("x", "slow")
    outbox.emit("x", "quick")
    with running(worker):
        watch.until(published=1, dead=1)
        free.set()
    assert quick == ["quick"]
    (dead,) = store.find(Selection(states=frozenset({State.DEAD}))).records
    assert dead.last_error is not None
    assert "exceeded its time-out of 1 s" in dead.last_error


def test_batch_handler_receives_at_most_batch_size(worker: Worker, outbox: Outbox, watch: Watch) -> None:
    sizes: list[int] = []

    @worker.handler(batch_size=10, max_workers=1, retry=RetryPolicy.none())
    def handle(events: list[Received]) -> None:
        sizes.append(len(events))
        for event in events:
            if event.text() == "13":
                event.reject("unlucky")

    outbox.emit_many([outbox.event("x", str(number)) for number in range(25)])
    with running(worker):
        watch.until(published=24, dead=1)
    assert sum(sizes) == 25
    assert max(sizes) == 10


def test_failing_batch_of_payloads_is_retried_whole(worker: Worker, outbox: Outbox, watch: Watch) -> None:
    calls: list[list[Email]] = []

    @worker.handler(batch_size=10, max_workers=1, retry=SOON)
    async def handle(emails: list[Email]) -> None:
        calls.append(emails)
        if len(calls) == 1:
            raise ConnectionError("down")

    outbox.emit_many([outbox.event("x", {"to": name}) for name in "abc"])
    with running(worker):
        watch.until(published=3)
    assert [len(call) for call in calls] == [3, 3]


def test_handlers_share_queue_by_event_type(worker: Worker, outbox: Outbox, watch: Watch) -> None:
    seen: list[str] = []
    worker.handler(types=["a", "b"])(lambda event: seen.append(f"first {event.event_type}"))
    worker.handler(types=["c"])(lambda event: seen.append(f"second {event.event_type}"))
    for event_type in "abcd":
        outbox.emit(event_type)
    with running(worker):
        watch.until(published=3, pending=1)
    assert sorted(seen) == ["first a", "first b", "second c"]


def test_event_beyond_max_deliveries_becomes_dead_letter(
    worker: Worker, outbox: Outbox, watch: Watch, store: SqlStore
) -> None:
    called: list[int] = []

    @worker.handler(max_deliveries=2)
    def handle(event: Received) -> None:
        called.append(event.deliveries)
        event.nack(delay=0)

    outbox.emit("x")
    with running(worker):
        watch.until(dead=1)
    assert called == [1, 2]
    assert "times; the limit is 2" in str(store.find(Selection(everything=True)).records[0].last_error)


class TestInvalidHandlers:
    def test_unsupported_signature_is_refused(self) -> None:
        with pytest.raises(UsageError, match="must have only parameters for the event, its payload, or both"):
            Worker("sqlite:///x.db").handler()(lambda: None)
        with pytest.raises(UsageError, match="must have only parameters for the event"):
            Worker("sqlite:///x.db").handler()(lambda a, b, c: None)

    def test_batch_handler_without_list_is_refused(self) -> None:
        with pytest.raises(UsageError, match="annotate event as a list"):

            @Worker("sqlite:///x.db").handler(batch_size=5)
            def handle(event: Email) -> None: ...

    def test_two_handlers_for_same_events_are_refused(self) -> None:
        worker = Worker("sqlite:///x.db")
        worker.handler("a")(print)
        worker.handler("b", types=["x"])(print)
        with pytest.raises(UsageError, match="already has a handler for these events"):
            worker.handler("a", types=["y"])(print)
        with pytest.raises(UsageError, match="already has a handler for these events"):
            worker.handler("b", types=["y", "x"])(print)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"workers": 3}, "unknown option 'workers'"),
            ({"max_workers": 0}, "max_workers must be between 1 and 1,000,000, got 0"),
            ({"overfetch_factor": 0.5}, "overfetch_factor"),
            ({"release_stuck_timeout": 0}, "must be greater than 0"),
            ({"types": []}, "types must not be empty"),
            ({"types": "email"}, "a list of strings"),
            ({"batch_size": 0}, "batch_size must be at least 1"),
            ({"ack_policy": "maybe"}, "expected one of ack_first"),
        ],
    )
    def test_invalid_options_are_refused(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(UsageError, match=message):
            Worker("sqlite:///x.db").handler(**options)

    def test_worker_without_handlers_is_refused(self) -> None:
        with pytest.raises(UsageError, match="worker has no handlers"):
            Worker("sqlite:///x.db").start()

    def test_second_start_is_refused(self, worker: Worker) -> None:
        worker.handler()(print)
        with running(worker), pytest.raises(UsageError, match="already running"):
            worker.start()
