"""Windows on each state store: each window closes once with the right state, despite late events, failures and
crashes."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from penstock import Streams
from penstock.model.errors import UsageError
from penstock.streams import Session, Sliding, Tumbling, Window, window_of
from penstock.streams.context import Context
from penstock.streams.engine.work import is_users
from penstock.streams.event import StreamEvent
from penstock.streams.state.registry import open_state
from penstock.testing.streams import CRASH, LOST_COMMIT, NOW, StreamHarness


def merge(older: dict[str, Any], newer: dict[str, Any]) -> dict[str, Any]:
    return {"seen": older["seen"] + newer["seen"]}


def application(window: Any, known_as: str = "total", **options: Any) -> Streams:
    app = Streams("sqlite:///unused.db")
    if isinstance(window, Session):
        options.setdefault("merge", merge)

    @app.stream("orders", key=lambda event: event.json()["key"], name=known_as, window=window, parts=1, **options)
    def total(event: StreamEvent, ctx: Context) -> None:
        given = event.json()
        assert ctx.window.start <= ctx.window.end
        ctx.state.setdefault("seen", []).append(given["amount"])
        ctx.emit("seen", {"amount": given["amount"], "start": seconds(ctx.window)[0]}, queue="seen")
        if given.get("fails_in") == seconds(ctx.window)[0]:
            raise ConnectionError("not in this one")

    @app.on_close(known_as)
    def close(window: Window, ctx: Context) -> None:
        assert window == ctx.window
        ctx.emit("closed", {"key": ctx.key, "window": seconds(window), **ctx.state}, queue="closed")
        if "bad" in ctx.state["seen"]:
            raise ValueError("never")

    return app


def seconds(window: Window) -> list[float]:
    return [(moment - NOW).total_seconds() for moment in window]


def at(moment: float, amount: Any = 1, key: str = "a", **given: Any) -> StreamEvent:
    payload = json.dumps({"key": key, "amount": amount, **given}).encode()
    created = NOW + timedelta(seconds=moment)
    return StreamEvent(f"{key}/{moment}/{amount}", key, payload, "order", created_at=created)


def closed(harness: StreamHarness) -> list[tuple[Any, ...]]:
    found = [event.payload for event in harness.report.emitted if event.queue == "closed"]
    return [(given["key"], *given["window"], given["seen"]) for given in map(json.loads, found)]


def late(harness: StreamHarness) -> list[tuple[Any, ...]]:
    found = [event for event in harness.report.emitted if event.queue == "total/late"]
    return [(json.loads(event.payload)["amount"], event.headers["penstock-window-start"]) for event in found]


@pytest.fixture
def tumbling(state: str) -> Iterator[StreamHarness]:
    made = StreamHarness(application(Tumbling(60)), "total", state)
    yield made
    made.close()


def test_window_closes_once_after_watermark_passes_end(tumbling: StreamHarness) -> None:
    tumbling.run([at(0, 1), at(59.999999, 2), at(30, 3, "b")])
    assert closed(tumbling) == []
    assert tumbling.state("a", NOW) == {"seen": [1, 2]}
    assert tumbling.windows("a") == [NOW]
    tumbling.run([at(60, 4)])
    assert closed(tumbling) == [("a", 0, 60, [1, 2]), ("b", 0, 60, [3])]
    assert tumbling.windows("a") == [NOW + timedelta(seconds=60)]
    assert tumbling.windows("b") == [], "its state is gone with it"
    tumbling.run([at(500, 5, "c")])
    assert closed(tumbling)[2:] == [("a", 60, 120, [4])]


def test_late_events_are_emitted_to_late_queue(tumbling: StreamHarness) -> None:
    event = at(10, 9)._replace(headers={"x": "y"}, partition_key="p")
    report = tumbling.run([at(0, 1), at(60, 2), event, at(70, 3)])
    (found,) = [event for event in report.emitted if event.queue == "total/late"]
    assert (found.event_type, found.payload, found.partition_key) == ("order", event.payload, "p")
    assert found.headers == {
        "x": "y",
        "penstock-stream": "total",
        "penstock-stream-key": "a",
        "penstock-stream-origin": "a/10/9",
        "penstock-window-start": NOW.isoformat(),
        "penstock-window-end": (NOW + timedelta(seconds=60)).isoformat(),
    }
    assert event in report.applied, "it is acknowledged"
    assert closed(tumbling) == [("a", 0, 60, [1])]
    assert tumbling.state("a", NOW + timedelta(seconds=60)) == {"seen": [2, 3]}


def test_unordered_events_within_lateness_are_in_time(state: str) -> None:
    harness = StreamHarness(application(Tumbling(60), lateness_seconds=30, late_queue="too late"), "total", state)
    report = harness.run([at(0, 1), at(89.9, 2), at(59, 3), at(1, 4), at(90, 5), at(59, 6)])
    assert closed(harness) == [("a", 0, 60, [1, 3, 4])]
    assert [event.payload for event in report.emitted if event.queue == "too late"] == [at(59, 6).payload]
    harness.close()


def test_event_is_applied_to_all_sliding_windows_or_none(state: str) -> None:
    harness = StreamHarness(application(Sliding(60, every=20), max_retries=1), "total", state)
    report = harness.run([at(50, 1), at(55, 2, fails_in=20), at(60, 3)])
    assert [event.json()["amount"] for event, _ in report.dead] == [2]
    assert closed(harness) == [("a", 0, 60, [1])]
    assert [harness.state("a", NOW + timedelta(seconds=start)) for start in (20, 40, 60)] == [
        {"seen": [1, 3]},
        {"seen": [1, 3]},
        {"seen": [3]},
    ]
    seen = [json.loads(event.payload) for event in harness.report.emitted if event.queue == "seen"]
    assert [one["start"] for one in seen if one["amount"] == 2] == []
    harness.run([at(75, 4), at(85, 5), at(70, 6)])
    assert late(harness) == [(6, (NOW + timedelta(seconds=20)).isoformat())], "for the one window that had closed"
    assert harness.state("a", NOW + timedelta(seconds=40)) == {"seen": [1, 3, 4, 5, 6]}
    harness.close()


def test_sessions_grow_and_merge(state: str) -> None:
    harness = StreamHarness(application(Session(30), lateness_seconds=100), "total", state)
    harness.run([at(50, 1), at(79.999, 2), at(110, 3)])
    assert [harness.state("a", NOW + timedelta(seconds=start)) for start in (50, 110)] == [
        {"seen": [1, 2]},
        {"seen": [3]},
    ]
    harness.run([at(40, 4), at(5, 5), at(85, 6), at(300, 7, "b")])
    assert closed(harness) == [("a", 5, 35, [5]), ("a", 40, 140, [1, 2, 4, 3, 6])]
    assert harness.windows("a") == []
    assert harness.report.dead == [], "what became part of another doesn't close"
    assert [name for name, _ in open_state(state).read("total") if name.startswith("\x01sessions/a")] == []
    harness.close()


def test_closed_session_accepts_no_events(state: str) -> None:
    """A closed session accepts no event, not even an event of the same batch that is in time on its own."""
    harness = StreamHarness(application(Session(30)), "total", state)
    harness.run([at(0, 1), at(31, 2, "b"), at(20, 3), at(99, 4, "b")])
    assert closed(harness) == [("a", 0, 30, [1]), ("a", 20, 50, [3]), ("b", 31, 61, [2])]
    harness.close()


def test_failed_merge_leaves_sessions_unchanged(state: str) -> None:
    def refuse(older: dict[str, Any], newer: dict[str, Any]) -> dict[str, Any]:
        older["seen"].append("spoilt")
        if "list" in older["seen"]:
            return []  # type: ignore[return-value]
        raise ArithmeticError("these two don't go together")

    harness = StreamHarness(application(Session(30), lateness_seconds=99, merge=refuse, max_retries=0), "total", state)
    report = harness.run([at(0, 1), at(40, 2), at(20, 3), at(80, "list", "b"), at(120, 2, "b"), at(105, 3, "b")])
    assert [error.splitlines()[0] for _, error in report.dead] == [
        "ArithmeticError: these two don't go together",
        "UsageError: merge= must return a dict, got list",
    ]
    harness.run([at(999, 9, "c")])
    assert closed(harness) == [
        ("a", 0, 30, [1]),
        ("a", 40, 70, [2]),
        ("b", 80, 110, ["list"]),
        ("b", 120, 150, [2]),
    ]
    harness.close()


@pytest.mark.parametrize("crash", [CRASH, LOST_COMMIT])
@pytest.mark.parametrize("window", [Tumbling(60), Sliding(60, every=30), Session(30)])
def test_windows_close_once_after_crash(state: str, window: Any, crash: str) -> None:
    events = [at(0, 1), at(20, 2, "b"), at(29, 3), at(61, 4), at(62, 5, "b"), at(200, 6), at(201, 7, "b")]
    plain = StreamHarness(application(window, "plain"), "plain", state)
    plain.run(events)
    expected = closed(plain)
    plain.close()
    harness = StreamHarness(application(window), "total", state)
    harness.run([item for event in events for item in (event, crash)], batch=3)
    harness.advance(0, crash=crash)
    assert sorted(closed(harness)) == sorted(expected)
    assert len(expected) >= 4
    harness.close()


def test_failed_close_keeps_state_until_replay(state: str) -> None:
    harness = StreamHarness(application(Tumbling(60), max_retries=1), "total", state)
    report = harness.run([at(0, "bad"), at(1, 1, "b"), at(60, 2)])
    assert closed(harness) == [("b", 0, 60, [1])]
    ((dead, error),) = report.dead
    assert dead.event_type == "stream.window"
    assert error.startswith("ValueError: never\n")
    assert dead.json()["start"] == NOW.isoformat()
    assert harness.state("a", NOW) == {"seen": ["bad"]}
    harness.run([at(2, 3)])
    assert late(harness) == [(3, NOW.isoformat())], "it is closed all the same"
    harness.close()
    app = Streams("sqlite:///unused.db")
    app.stream("orders", name="total", key=lambda event: "", parts=1, window=Tumbling(60))(lambda event, ctx: None)
    app.on_close("total")(lambda window, ctx: ctx.emit("sorry", dict(ctx.state), queue="sorry") and None)
    harness = StreamHarness(app, "total", state)
    for _ in range(2):
        harness.run([dead._replace(replays=1, attempts=0)])
    assert [event.payload for event in harness.report.emitted] == [b'{"seen":["bad"]}']
    assert harness.windows("a") == [NOW + timedelta(seconds=60)]
    harness.close()


def test_idle_stream_closes_windows_after_timeout(tumbling: StreamHarness) -> None:
    tumbling.run([at(30, 1), at(40, 2, "b")])
    for _ in range(79):
        tumbling.advance(1)
    assert closed(tumbling) == [], "40, and 19 seconds beyond the 60 that an event may take"
    tumbling.advance(1)
    assert closed(tumbling) == [("a", 0, 60, [1]), ("b", 0, 60, [2])]
    tumbling.advance(100)
    tumbling.run([at(45, 3), at(121, 4)])
    assert [amount for amount, _ in late(tumbling)] == [3]
    assert tumbling.windows("a") == [NOW + timedelta(seconds=120)]


def test_event_without_time_has_current_time(tumbling: StreamHarness) -> None:
    tumbling.run([at(0, 1)._replace(created_at=None)])
    tumbling.now += timedelta(seconds=60)
    tumbling.run([at(0, 2)._replace(created_at=None, event_id="other")])
    assert closed(tumbling) == [("a", 0, 60, [1])]


def test_moved_event_keeps_time(state: str) -> None:
    harness = StreamHarness(application(Tumbling(60), max_retries=1, lateness_seconds=60), "total", state)
    event = at(10, 1, fails_in=0)._replace(settles=False)
    report = harness.run([event, at(61, 2)])
    ((dead, _),) = report.dead
    assert dead.headers["penstock-stream-time"] == (NOW + timedelta(seconds=10)).isoformat()
    harness.close()


def test_window_state_names_are_distinguishable(tumbling: StreamHarness, state: str) -> None:
    tumbling.run([at(0, 1, "a\x02b")])
    names = [name for name, _ in open_state(state).read("total") if is_users(name)]
    assert list(map(window_of, names)) == [("a\x02b", NOW)]
    assert window_of("a") is None
    assert window_of("a\x02b") is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": Session(30)}, "merge="),
        ({"window": Tumbling(60), "merge": merge}, "merge="),
        ({"merge": merge}, "merge="),
        ({"window": 60}, "Tumbling, Sliding or Session"),
        ({"window": Tumbling(60), "ttl_seconds": 5}, "ttl_seconds"),
        ({"window": Tumbling(60), "late_queue": ""}, "late_queue"),
        ({"late_queue": "x"}, "late_queue"),
    ],
)
def test_invalid_window_options_are_usage_errors(options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Streams("sqlite:///unused.db").stream("orders", name="one", **options)(lambda event, ctx: None)


def test_timers_and_windows_are_mutually_exclusive() -> None:
    app = application(Tumbling(60))
    with pytest.raises(UsageError, match="on_timer and window= are mutually exclusive"):
        app.on_timer("total")(lambda timer, ctx: None)
    with pytest.raises(UsageError, match="already"):
        app.on_close("total")(lambda window, ctx: None)
    app.stream("returns", name="plain")(lambda event, ctx: None)
    with pytest.raises(UsageError, match="on_close needs a window"):
        app.on_close("plain")(lambda window, ctx: None)
