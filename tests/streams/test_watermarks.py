"""Watermarks never decrease, and idle state partitions do not hold them back."""

import json
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Streams
from penstock.streams import Tumbling, Window
from penstock.streams.app import part_of
from penstock.streams.context import Context
from penstock.streams.engine.watermarks import ClockReport, Clocks, IdleAdvance, Watermark, seen
from penstock.streams.event import StreamEvent
from penstock.testing.streams import NOW, StreamHarness

TIMES = st.floats(-1e9, 1e10)
STEPS = st.lists(st.one_of(TIMES, st.builds(IdleAdvance, st.floats(0, 1e3), st.one_of(st.none(), TIMES))), max_size=20)


@settings(deadline=None)
@given(st.floats(0, 1e4), STEPS, st.lists(st.floats(0, 1e3), min_size=20, max_size=20))
def test_watermark_never_decreases(lateness: float, steps: list[float | IdleAdvance], passing: list[float]) -> None:
    now, mark, before = 1e9, None, float("-inf")
    for step, passed in zip(steps, passing, strict=False):
        now += passed
        if isinstance(step, IdleAdvance):
            mark = mark and mark.quiet(step, lateness, now)
        else:
            mark = seen(mark, step, lateness, now)
            assert mark.reached >= round(step - lateness, 6)
        if mark is not None:
            assert mark.reached >= before
            before = mark.reached
            assert Watermark.read(mark.saved()) == mark


@settings(deadline=None)
@given(st.floats(0, 100), st.floats(0, 100), st.floats(0, 1000), st.floats(1, 100))
def test_event_delayed_by_less_than_idle_timeout_is_in_time(lag: float, more: float, after: float, idle: float) -> None:
    """After any idle time, an event is not late if its delay exceeds the previous event's by less than the idle
    timeout."""
    mark = seen(None, 1000.0, 0, 1000.0 + lag)
    created = 1000.0 + lag + after
    arrives = created + lag + min(more, idle - 0.001)
    assert mark.quiet(IdleAdvance(idle), 0, arrives).reached <= created + 0.001


def clocks(**options: object) -> Clocks:
    return Clocks(3, **{"event_time": True, "idle_close_seconds": 10, **options})  # type: ignore[arg-type]


def test_state_partition_without_report_is_due() -> None:
    known = clocks()
    assert known.due(0.0) == {0, 1, 2}
    known.note(
        {0: ClockReport(), 1: ClockReport(next_at=5.0, watermark=4.9), 2: ClockReport(next_at=5.0, watermark=5.0)}, 0.0
    )
    assert known.due(0.0) == {2}
    known.doubt([0])
    assert known.due(0.0) == {0, 2}
    known.doubt()
    assert known.due(0.0) == {0, 1, 2}


def test_state_partition_is_due_at_time_of_first_timer() -> None:
    known = clocks(event_time=False)
    known.note({0: ClockReport(), 1: ClockReport(next_at=5.0), 2: ClockReport(next_at=6.0)}, 0.0)
    assert [known.due(now) for now in (4.9, 5.0, 100.0)] == [frozenset(), {1}, {1, 2}]
    assert known.idle_advances(100.0) == {}


def test_idle_state_partition_follows_active_ones() -> None:
    known = clocks()
    known.count_idle_from(0.0)
    known.note(
        {0: ClockReport(watermark=50.0, seen=True), 1: ClockReport(next_at=30.0, watermark=20.0, seen=True)}, 1.0
    )
    known.note({2: ClockReport()}, 1.0)
    assert known.idle_advances(9.9) == {}, "not before it has been there for so long itself"
    known.note({0: ClockReport(watermark=70.0, seen=True)}, 10.0)
    assert known.idle_advances(10.9) == {2: IdleAdvance(10, 20.0)}
    assert known.idle_advances(11.0) == {1: IdleAdvance(10, 70.0), 2: IdleAdvance(10, 70.0)}
    assert known.due(11.0) == {1}, "only there something waits"
    assert known.idle_advances(20.0) == dict.fromkeys(range(3), IdleAdvance(10))
    assert clocks(idle_close_seconds=None).idle_advances(1e9) == {}


def test_idle_time_starts_with_first_batch_or_drained_source() -> None:
    slow = clocks()
    slow.note({0: ClockReport(watermark=1.0), 1: ClockReport(), 2: ClockReport()}, 500.0)
    assert slow.idle_advances(1_000.0) == {}, "neither a batch nor an empty source was seen yet"
    slow.note({0: ClockReport(watermark=50.0, seen=True)}, 1_000.0)
    assert slow.idle_advances(1_009.9) == {}
    assert slow.idle_advances(1_010.0) == dict.fromkeys(range(3), IdleAdvance(10))
    empty = clocks()
    empty.count_idle_from(1_000.0)
    empty.count_idle_from(1_005.0)
    assert empty.idle_advances(1_009.9) == {}
    assert empty.idle_advances(1_010.0) == dict.fromkeys(range(3), IdleAdvance(10))


def test_clock_report_round_trips_as_text() -> None:
    report = ClockReport(3, 1.25, -0.1, True)
    assert ClockReport.read(report.text()) == report


def keys_of_two_parts() -> tuple[str, str]:
    found = {part_of(key, 2): key for key in "abcdef"}
    return found[0], found[1]


def test_windows_of_idle_key_close_while_others_are_active(state: str) -> None:
    app = Streams("sqlite:///unused.db")

    @app.stream("visits", key=lambda event: event.key, parts=2, window=Tumbling(60), idle_close_seconds=30)
    def visits(event: StreamEvent, ctx: Context) -> None:
        ctx.state["count"] = ctx.state.get("count", 0) + 1

    @app.on_close("visits")
    def close(window: Window, ctx: Context) -> None:
        ctx.emit("closed", {"key": ctx.key, "from": (window.start - NOW).total_seconds()})

    silent, busy = keys_of_two_parts()
    harness = StreamHarness(app, "visits", state)
    harness.run([StreamEvent("first", silent, created_at=NOW)])
    for seconds in range(0, 200, 10):
        harness.run([StreamEvent(str(seconds), busy, created_at=harness.now)])
        harness.advance(10)
    closed = [json.loads(event.payload) for event in harness.report.emitted]
    assert [one["from"] for one in closed if one["key"] == silent] == [0]
    assert [one["from"] for one in closed if one["key"] == busy] == [0, 60, 120]
    harness.run([StreamEvent("late", silent, created_at=NOW + timedelta(seconds=50))])
    assert harness.report.emitted[-1].queue == "visits/late"
    harness.close()
