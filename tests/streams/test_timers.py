"""Timers fire once and in order, with the guarantees of events, despite repetitions, failures and crashes."""

import json
import sqlite3
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import Streams
from penstock.model.errors import UsageError
from penstock.streams import Timer
from penstock.streams.context import Context, KeyState
from penstock.streams.engine.timer_work import LIMIT
from penstock.streams.event import StreamEvent
from penstock.streams.state.registry import open_state
from penstock.streams.state.sqlite import SqliteTransaction
from penstock.testing.streams import CRASH, LOST_COMMIT, NOW, StreamHarness

ORIGIN = NOW.timestamp()


def application(**options: Any) -> Streams:
    """Return a stream with timers set by its events. A fired timer is appended to the state and emitted."""
    app = Streams("sqlite:///unused.db")

    @app.stream("orders", key=lambda event: event.json()["key"], parts=2, **options)
    def orders(event: StreamEvent, ctx: Context) -> None:
        given = event.json()
        for name, seconds in given.get("set", {}).items():
            ctx.set_timer(name, delay_seconds=seconds)
        for name, seconds in given.get("set_at", {}).items():
            ctx.set_timer(name, NOW + timedelta(seconds=seconds))
        for name in given.get("cancel", []):
            ctx.cancel_timer(name)
        ctx.state["events"] = ctx.state.get("events", 0) + 1
        if given.get("fails"):
            raise ConnectionError("not this one")

    @app.on_timer("orders")
    def fire(timer: Timer, ctx: Context) -> None:
        assert timer.key == ctx.key
        ctx.state.setdefault("fired", []).append([timer.name, timer.at - ORIGIN])
        ctx.emit("fired", {"name": timer.name})
        if timer.name.startswith("chain"):
            ctx.set_timer("then", delay_seconds=1)
        if timer.name == "first":
            ctx.cancel_timer("second")
            ctx.set_timer("third", NOW + timedelta(seconds=30))
            ctx.set_timer("then", NOW + timedelta(seconds=50))
        if timer.name.startswith("bad"):
            raise ValueError("never")

    return app


@pytest.fixture
def harness(state: str) -> Iterator[StreamHarness]:
    made = StreamHarness(application(), "orders", state)
    yield made
    made.close()


def order(key: str = "a", **given: Any) -> dict[str, Any]:
    return {"key": key, **given}


def fired(harness: StreamHarness, key: str = "a") -> list[list[Any]]:
    found: list[list[Any]] = harness.state(key).get("fired", [])
    return found


def names(harness: StreamHarness) -> list[str]:
    return [json.loads(event.payload)["name"] for event in harness.report.emitted]


def test_timers_fire_once_in_order(harness: StreamHarness) -> None:
    harness.run([order(set={"late": 20, "soon": 10, "at once": 0}), order("b", set={"soon": 10})])
    assert fired(harness) == [["at once", 0]]
    harness.advance(9.5)
    assert fired(harness) == [["at once", 0]]
    harness.advance(0.5)
    assert fired(harness) == [["at once", 0], ["soon", 10]]
    harness.advance(100)
    harness.advance(100)
    assert fired(harness) == [["at once", 0], ["soon", 10], ["late", 20]]
    assert fired(harness, "b") == [["soon", 10]]
    assert sorted(names(harness)) == ["at once", "late", "soon", "soon"]


def test_timers_can_be_moved_and_cancelled(harness: StreamHarness) -> None:
    harness.run([order(set={"x": 10, "y": 10, "z": 10}), order("b", set={"x": 10})])
    harness.run([order(set={"x": 30}, cancel=["y", "unknown"]), order(set={"z": 5})])
    harness.advance(10)
    assert fired(harness) == [["z", 5]]
    harness.run([order(cancel=["x"]), order(set_at={"x": 12})])
    harness.advance(40)
    assert fired(harness) == [["z", 5], ["x", 12]]
    assert fired(harness, "b") == [["x", 10]]


def test_failed_event_does_not_change_timers(harness: StreamHarness) -> None:
    harness.run([order(set={"x": 10})])
    report = harness.run([order(set={"y": 5}, cancel=["x"], fails=True)])
    harness.advance(20)
    assert len(report.dead) == 1
    assert harness.state("a") == {"events": 1, "fired": [["x", 10]]}


def test_due_timers_fire_after_events_of_transaction(harness: StreamHarness) -> None:
    harness.run([order(set={"x": 10})])
    harness.now += timedelta(seconds=10)
    harness.run([order(cancel=["x"])])
    assert fired(harness) == [], "the event came first"


def test_timer_can_set_other_timers(state: str) -> None:
    harness = StreamHarness(application(), "orders", state)
    harness.run([order(set={"chain": 10, "x": 10.5, "y": 12})])
    harness.advance(10)
    harness.advance(1)
    harness.advance(10)
    assert fired(harness) == [["chain", 10], ["x", 10.5], ["then", 11], ["y", 12]]
    harness.close()


def test_chained_timers_fire_in_order_in_event_time(state: str) -> None:
    harness = StreamHarness(application(event_time=True), "orders", state)
    first = StreamEvent("1", "a", json.dumps(order(set={"chain": 10, "x": 10.5, "y": 12})).encode(), created_at=NOW)
    later = StreamEvent("2", "a", json.dumps(order()).encode(), created_at=NOW + timedelta(seconds=100))
    harness.run([first, later])
    assert fired(harness) == [["chain", 10], ["x", 10.5], ["then", 11], ["y", 12]]
    harness.close()


@pytest.mark.parametrize("crash", [CRASH, LOST_COMMIT])
def test_timers_fire_once_after_crash(harness: StreamHarness, crash: str) -> None:
    harness.run([order(set={"x": 10}), order("b", set={"x": 10}), crash, order("c", set={"x": 10}), crash])
    harness.advance(10, crash=crash)
    harness.advance(0, crash=crash)
    harness.advance(100, crash=crash)
    for key in "abc":
        assert harness.state(key) == {"events": 1, "fired": [["x", 10]]}
    assert names(harness) == ["x"] * 3


def test_timer_can_cancel_and_move_due_timers(harness: StreamHarness) -> None:
    harness.run([order(set={"first": 10, "second": 20, "third": 20, "fourth": 25})])
    harness.advance(100)
    assert fired(harness) == [["first", 10], ["fourth", 25], ["third", 30], ["then", 50]]


def test_timer_set_by_timer_fires_after_earlier_timers(harness: StreamHarness) -> None:
    """A timer set by another timer fires after all earlier ones, even if one transaction cannot fire all of them."""
    many = {f"{number:05}": 40 for number in range(LIMIT + 10)}
    harness.run([order(set={"first": 10, "second": 20, "third": 20, **many})])
    harness.advance(100)
    assert fired(harness) == [["first", 10], ["third", 30], *([name, 40] for name in many), ["then", 50]]


def test_timers_beyond_transaction_limit_fire_in_order(harness: StreamHarness) -> None:
    many = {f"{number:05}": 10 + number // 100 for number in range(2 * LIMIT + 10)}
    harness.run([order(set=many)])
    harness.advance(100)
    assert fired(harness) == [[name, seconds] for name, seconds in many.items()]
    assert names(harness) == list(many)


def test_failing_timer_is_dead_letter_and_can_be_replayed(state: str) -> None:
    harness = StreamHarness(application(max_retries=2), "orders", state)
    harness.run([order(set={"bad": 10, "good": 11})])
    report = harness.advance(20)
    assert harness.state("a") == {"events": 1, "fired": [["good", 11]]}, "it left nothing, and blocked nobody"
    ((dead, error),) = report.dead
    assert dead.event_type == "stream.timer"
    assert dead.json() == {"name": "bad", "key": "a", "at": (NOW + timedelta(seconds=10)).isoformat()}
    assert (dead.key, dead.attempts) == ("a", 1), "tried three times, the first time as a timer"
    assert error.startswith("ValueError: never\n")
    harness.close()
    harness = StreamHarness(forgiving(), "orders", state)
    for _ in range(2):
        harness.run([dead._replace(replays=1, attempts=0)])
    assert fired(harness) == [["good", 11], ["bad", 10]]
    assert [event.event_type for event in harness.report.emitted] == ["forgiven"]
    harness.close()


def forgiving() -> Streams:
    app = Streams("sqlite:///unused.db")

    @app.stream("orders", key=lambda event: event.json()["key"], parts=2)
    def orders(event: StreamEvent, ctx: Context) -> None:
        raise AssertionError("a timer is no event")

    @app.on_timer("orders")
    def fire(timer: Timer, ctx: Context) -> None:
        ctx.state["fired"] += [[timer.name, timer.at - ORIGIN]]
        ctx.emit("forgiven")

    return app


def test_failing_timer_without_retries_is_dead_immediately(state: str) -> None:
    harness = StreamHarness(application(max_retries=0), "orders", state)
    harness.run([order(set={"bad": 10})])
    report = harness.advance(10)
    ((dead, error),) = report.dead
    assert dead.attempts == 0
    assert error.startswith("ValueError: never\n")
    assert fired(harness) == []
    harness.close()


@pytest.mark.parametrize("crash", [CRASH, LOST_COMMIT])
def test_failing_timer_is_dead_letter_once_after_crash(state: str, crash: str) -> None:
    harness = StreamHarness(application(max_retries=1), "orders", state)
    harness.run([order(set={"bad": 10})])
    harness.advance(10, crash=crash)
    report = harness.advance(10, crash=crash)
    assert [dead.json()["name"] for dead, _ in report.dead] == ["bad"]
    harness.close()


def test_unreadable_timer_is_dead_letter(harness: StreamHarness) -> None:
    forged = {"penstock-stream": "orders", "penstock-stream-key": "a"}
    report = harness.run([StreamEvent("1", "a", b"{}", "stream.timer", forged)])
    assert report.dead[0][1].startswith("invalid timer or window in the retry queue: KeyError")
    others = {**forged, "penstock-stream": "others"}
    harness.run([StreamEvent("2", "a", b'{"key": "a"}', "stream.timer", others)])
    assert harness.state("a") == {"events": 1}, "another stream's is an event like any other"


def test_event_time_timers_follow_watermark(state: str) -> None:
    def at(seconds: float, **given: Any) -> StreamEvent:
        moment = NOW + timedelta(seconds=seconds)
        return StreamEvent(str(seconds), "a", json.dumps(order(**given)).encode(), created_at=moment)

    harness = StreamHarness(application(event_time=True, lateness_seconds=5), "orders", state)
    harness.run([at(0, set={"x": 10})])
    harness.run([at(14.999), at(3)])
    assert fired(harness) == []
    harness.run([at(15), at(7)])
    assert fired(harness) == [["x", 10]]
    harness.run([at(8, set_at={"gone by": 1})])
    assert fired(harness) == [["x", 10], ["gone by", 1]], "the watermark is past it, and never goes back"
    harness.close()


def test_event_time_can_be_computed_by_function(state: str) -> None:
    def time(event: StreamEvent) -> datetime | float:
        moment = event.json()["at"]
        return datetime.fromisoformat(moment) if isinstance(moment, str) else float(moment)

    harness = StreamHarness(application(event_time=True, time=time, max_retries=0), "orders", state)
    iso = (NOW + timedelta(seconds=10)).isoformat()
    report = harness.run([order(at=ORIGIN, set={"x": 10}), order(at=iso), order(at="2026-01-01T00:00"), order()])
    assert fired(harness) == [["x", 10]]
    (naive, missing) = [error for _, error in report.dead]
    assert naive.startswith("cannot determine the time of the event: UsageError: time 2026-01-01 00:00:00 has no")
    assert missing.startswith("cannot determine the time of the event: KeyError")
    harness.close()


def test_timer_tables_are_added_to_older_state(state: str) -> None:
    """Starting a stream creates the tables for timers in a state store that was created without them."""
    open_state(state).start("orders", 2)
    drop_timers(state)
    harness = StreamHarness(application(), "orders", state)
    harness.run([order(set={"x": 1})])
    harness.advance(1)
    assert fired(harness) == [["x", 1]]
    harness.close()


def drop_timers(state: str) -> None:
    import psycopg

    if state.startswith("postgresql"):
        with psycopg.connect(state.replace("+psycopg", "")) as connection:
            connection.execute("DROP TABLE penstock_stream_timers")
    if state.startswith("sqlite"):
        for part in Path(state.removeprefix("sqlite:///")).glob("orders/part-*.db"):
            with sqlite3.connect(part) as database:
                database.execute("DROP TABLE timers")


def test_invalid_timer_definitions_are_usage_errors() -> None:
    app = application()
    with pytest.raises(UsageError, match="already"):
        app.on_timer("orders")(lambda timer, ctx: None)
    with pytest.raises(UsageError, match="define its handler first"):
        app.on_timer("others")(lambda timer, ctx: None)
    for options in ({"lateness_seconds": -1}, {"idle_close_seconds": 0}, {"time": lambda event: 0.0}):
        with pytest.raises(UsageError):
            application(**options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ctx: ctx.set_timer("x"), "exactly one of at and delay_seconds"),
        (lambda ctx: ctx.set_timer("x", NOW, delay_seconds=1), "exactly one of at and delay_seconds"),
        (lambda ctx: ctx.set_timer("", NOW), "invalid timer name ''"),
        (lambda ctx: ctx.set_timer("x" * 300, NOW), "invalid timer name"),
        (lambda ctx: ctx.cancel_timer("\x00"), "invalid timer name"),
        (lambda ctx: ctx.set_timer("x", NOW.replace(tzinfo=None)), "time zone"),
        (lambda ctx: ctx.set_timer("x", "tomorrow"), "got str"),
        (lambda ctx: ctx.set_timer("x", float("nan")), "invalid time nan"),
        (lambda ctx: ctx.set_timer("x", delay_seconds=1e300), "invalid time"),
        (lambda ctx: ctx.window, "no windows"),
    ],
)
def test_invalid_timer_calls_are_usage_errors(call: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call(Context("a", KeyState(), now=0.0))
    with pytest.raises(UsageError, match="timer function"):
        Context("a", KeyState()).set_timer("x", NOW)


def test_stream_without_timers_does_not_query_timers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Streams("sqlite:///unused.db")

    @app.stream("orders", key=lambda event: "a", event_time=True)
    def orders(event: StreamEvent, ctx: Context) -> None:
        ctx.state["events"] = ctx.state.get("events", 0) + 1

    for name in ("due", "set_timers"):
        monkeypatch.delattr(SqliteTransaction, name)
    harness = StreamHarness(app, "orders", f"sqlite:///{tmp_path}")
    harness.run([{}, CRASH, {}])
    harness.advance(100)
    assert harness.state("a") == {"events": 2}
    assert [name for name, _ in open_state(f"sqlite:///{tmp_path}").read("orders")] == ["a"], "nor is its time kept"
    harness.close()
