"""The commit protocol of one state partition, on each state store: effects are applied once, despite repetitions,
failures and crashes."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from penstock import Streams
from penstock.model.errors import UsageError
from penstock.model.outcome import Retry
from penstock.streams.context import Context
from penstock.streams.engine.partition import process_batch
from penstock.streams.event import ORIGIN_HEADER, StreamEvent
from penstock.streams.sources import Kafka, Queue, Source, Valkey
from penstock.streams.state.api import EPOCH, Position
from penstock.streams.state.registry import open_state
from penstock.testing.streams import CRASH, LOST_COMMIT, StreamHarness

NOW = 1_000_000.0


@pytest.fixture
def app() -> Streams:
    made = Streams("sqlite:///unused.db")

    @made.stream("orders", key=lambda event: event.json()["key"], parts=3)
    def total(event: StreamEvent, ctx: Context) -> None:
        order = event.json()
        ctx.state["sum"] = ctx.state.get("sum", 0) + order["amount"]
        ctx.state.setdefault("seen", []).append(order["amount"])
        ctx.emit("total.changed", {"sum": ctx.state["sum"]})
        if order.get("fails", 0) > event.attempts:
            raise ConnectionError("not yet")

    return made


@pytest.fixture
def harness(app: Streams, state: str) -> Iterator[StreamHarness]:
    made = StreamHarness(app, "total", state)
    yield made
    made.close()


def order(amount: int, key: str = "a", **fields: int) -> dict[str, object]:
    return {"key": key, "amount": amount, **fields}


def test_state_is_kept_by_key(harness: StreamHarness) -> None:
    report = harness.run([order(1), order(2, "b"), order(3)], batch=2)
    assert harness.state("a") == {"sum": 4, "seen": [1, 3]}
    assert harness.state("b") == {"sum": 2, "seen": [2]}
    assert harness.state("c") == {}
    assert sorted(event.payload for event in report.emitted) == [b'{"sum":1}', b'{"sum":2}', b'{"sum":4}']


@pytest.mark.parametrize("crash", [CRASH, LOST_COMMIT])
def test_events_are_applied_once_after_crash(harness: StreamHarness, crash: str) -> None:
    items = [order(1), order(2, "b"), crash, order(3), order(4, "b"), crash, crash, order(5)]
    report = harness.run(items)
    assert harness.state("a") == {"sum": 9, "seen": [1, 3, 5]}
    assert harness.state("b") == {"sum": 6, "seen": [2, 4]}
    assert len(report.emitted) == len({event.event_id for event in report.emitted}) == 5


def test_failed_event_has_no_effects_and_is_retried(harness: StreamHarness) -> None:
    report = harness.run([order(1, fails=2), order(2)])
    assert harness.state("a") == {"sum": 3, "seen": [2, 1]}, "what stood behind it went on"
    assert [event.payload for event in report.emitted] == [b'{"sum":2}', b'{"sum":3}']
    assert report.dead == []


def test_exhausted_event_is_dead_letter_and_blocks_no_others(harness: StreamHarness) -> None:
    report = harness.run([order(1, fails=99), order(2), CRASH, order(3)])
    assert harness.state("a") == {"sum": 5, "seen": [2, 3]}
    ((dead, error),) = report.dead
    assert (dead.json()["amount"], dead.attempts) == (1, 3)
    assert error.startswith("ConnectionError: not yet\n")
    assert "in total" in error


def test_source_without_retries_has_same_number_of_attempts(state: str) -> None:
    app, tries = Streams("sqlite:///unused.db"), list[int]()

    @app.stream("orders", key=lambda event: "a")
    def failing(event: StreamEvent, ctx: Context) -> None:
        tries.append(event.attempts)
        raise ConnectionError("not yet")

    harness = StreamHarness(app, "failing", state)
    for settles in (True, False):
        tries.clear()
        report = harness.run([StreamEvent(f"event-{settles}", "a", settles=settles)])
        assert len(tries) == 1 + app.streams["failing"].max_retries
    assert [event.headers.get(ORIGIN_HEADER, event.event_id) for event, _ in report.dead] == [
        "event-True",
        "event-False",
    ]
    harness.close()


def test_repeated_event_is_applied_once_and_replay_again(harness: StreamHarness) -> None:
    event = StreamEvent("9-0", "a", payload=b'{"key": "a", "amount": 1}')
    later = StreamEvent("10-0", "a", payload=b'{"key": "a", "amount": 10}')
    harness.run([later, event, event])
    harness.run([event, later])
    assert harness.state("a")["sum"] == 11
    harness.run([StreamEvent("9-0", "a", payload=event.payload, replays=1)])
    assert harness.state("a")["sum"] == 12


def test_events_at_older_positions_are_ignored(harness: StreamHarness) -> None:
    def at(offset: int, partition: str = "topic-0") -> StreamEvent:
        return StreamEvent("", "a", payload=b'{"key": "a", "amount": 1}', position=Position(partition, offset))

    harness.run([at(9), at(10), at(100)])
    harness.run([at(9), at(10), at(100), at(101), at(0, "topic-1")])
    assert harness.state("a")["sum"] == 5


def test_non_json_state_fails_only_its_event(state: str) -> None:
    app = Streams("sqlite:///unused.db")

    @app.stream("orders", key=lambda event: "a", max_retries=0)
    def keep(event: StreamEvent, ctx: Context) -> None:
        ctx.state.put("last", {1, 2} if event.text() == "set" else event.text())

    harness = StreamHarness(app, "keep", state)
    report = harness.run(["one", "set", "two"])
    assert harness.state("a") == {"last": "two"}
    assert "cannot encode state 'last' as JSON" in report.dead[0][1]
    harness.close()


def test_state_expires_after_ttl(state: str) -> None:
    app = Streams("sqlite:///unused.db")

    @app.stream("orders", key=lambda event: "a", ttl_seconds=5)
    def keep(event: StreamEvent, ctx: Context) -> None:
        ctx.state["count"] = ctx.state.get("count", 0) + 1
        if event.text() == "empty":
            ctx.state.delete("count")

    harness = StreamHarness(app, "keep", state)
    harness.run(["x", "y"])
    assert harness.state("a") == {"count": 2}
    harness.advance(4)
    harness.run(["x"])
    harness.advance(4)
    harness.run(["x"])
    assert harness.state("a") == {"count": 4}, "each event renews it"
    harness.advance(5)
    harness.run(["x"])
    assert harness.state("a") == {"count": 1}
    harness.run(["empty"])
    assert harness.state("a") == {}
    harness.close()


def test_invalid_stream_options_are_usage_errors() -> None:
    app = Streams("sqlite:///unused.db")
    app.stream("a", name="one")(lambda event, ctx: None)
    with pytest.raises(UsageError, match="'one' is already defined"):
        app.stream("b", name="one")(lambda event, ctx: None)
    with pytest.raises(UsageError, match="parts must be between 1 and 4096, got 0"):
        app.stream("a", name="two", parts=0)(lambda event, ctx: None)
    with pytest.raises(UsageError, match=r"invalid option for stream 'three': .*partitions"):
        app.stream("a", name="three", partitions=3)(lambda event, ctx: None)


def nothing(event: StreamEvent, ctx: Context) -> None:
    """Ignore an event."""


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("orders", "orders", "queue 'orders' is already read by stream 'one'; use a separate queue for each stream"),
        ("orders", Queue("orders"), "queue 'orders' is already read by stream 'one'"),
        (Kafka("broker:9092", "orders"), "streams/one", "queue 'streams/one' is already read by stream 'one'"),
        ("streams/two", Kafka("broker:9092", "orders"), "queue 'streams/two' is already read by stream 'one'"),
        (
            Valkey("valkey://user:secret@localhost/0", "orders,refunds"),
            Valkey("valkey://user:secret@localhost/0", "refunds"),
            r"'refunds' at valkey://\S*@localhost/0 in group 'penstock' is already read by .* a separate consumer",
        ),
    ],
)
def test_streams_cannot_share_single_reader_source(first: str | Source, second: str | Source, message: str) -> None:
    app = Streams("sqlite:///unused.db")
    app.stream(first, name="one")(nothing)
    with pytest.raises(UsageError, match=message) as refused:
        app.stream(second, name="two")(nothing)
    assert "secret" not in str(refused.value)
    assert list(app.streams) == ["one"]


def test_streams_can_read_separate_or_shareable_sources() -> None:
    app = Streams("sqlite:///unused.db")
    for number, source in enumerate(
        [
            "orders",
            "returns",
            Kafka("broker:9092", "orders"),
            Kafka("broker:9092", "orders"),
            Valkey("valkey://localhost/0", "orders", "one"),
            Valkey("valkey://localhost/0", "orders", "two"),
        ]
    ):
        app.stream(source, name=f"stream-{number}")(nothing)
    assert len(app.streams) == 6


def test_retry_delay_doubles_and_dead_event_has_none(state: str) -> None:
    app = Streams("sqlite:///unused.db")

    @app.stream("orders", key=lambda event: "a", parts=1, retry_seconds=7)
    def failing(event: StreamEvent, ctx: Context) -> None:
        raise ConnectionError("not yet")

    stream, opened = app.streams["failing"], open_state(state)
    part = opened.open_part(opened.start("failing", 1), 0)
    waits: list[float | None] = []
    for attempts in range(stream.max_retries):
        ((_, outcome),), _ = process_batch(part, stream, [StreamEvent("retried", "a", attempts=attempts)], NOW)
        assert isinstance(outcome, Retry)
        waits.append(outcome.delay_seconds)
    assert waits == [7, 14, 28]

    for retries, wait in ((3, 7), (0, 0)):
        stream = replace(stream, max_retries=retries)
        process_batch(part, stream, [StreamEvent(f"moved {retries}", "a", settles=False)], NOW)
        ((moved,),) = [outgoing.events for outgoing in part.outgoing()]
        assert moved.available_at == EPOCH + timedelta(seconds=NOW + wait)
        part.sent(next(iter(part.outgoing())).batch)
    part.close()
    opened.close()
