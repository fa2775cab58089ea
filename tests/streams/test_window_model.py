"""Windows compared with a simple model, for random events, orders, batches and crashes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Streams
from penstock.model.errors import UsageError
from penstock.streams import Session, Sliding, Tumbling, Window, window_of
from penstock.streams.context import Context
from penstock.streams.engine.windows import instant_of, window_key
from penstock.streams.event import StreamEvent
from penstock.testing.streams import CRASH, LOST_COMMIT, NOW, StreamHarness

MOMENTS = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
LENGTHS = st.one_of(st.integers(1, 10_000), st.floats(0.001, 1e6, allow_nan=False))


# -- windows of a time -----------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(MOMENTS, LENGTHS)
def test_time_is_in_exactly_one_tumbling_window(moment: datetime, seconds: float) -> None:
    (window,) = Tumbling(seconds).windows_of(moment)
    assert window.start <= moment < window.end
    assert window.end - window.start == timedelta(microseconds=round(seconds * 1e6))
    for other in (window.start, window.end - timedelta(microseconds=1)):
        assert Tumbling(seconds).windows_of(other) == [window]
    assert Tumbling(seconds).windows_of(window.end)[0].start == window.end, "one ends where the next begins"


@settings(deadline=None)
@given(MOMENTS, st.integers(1, 500), st.integers(1, 20), st.integers(0, 99))
def test_time_is_in_all_sliding_windows_around_it(moment: datetime, every: int, times: int, more: int) -> None:
    seconds = every * times + more
    windows = Sliding(seconds, every=every).windows_of(moment)
    tick = timedelta(seconds=every)
    assert all(one.start <= moment < one.end and one.end - one.start == timedelta(seconds=seconds) for one in windows)
    assert all(later.start - one.start == tick for one, later in pairwise(windows))
    assert windows[0].end - tick <= moment, "the one before is over"
    assert windows[-1].start + tick > moment, "the one after has not begun"
    assert all((one.start - datetime(1970, 1, 1, tzinfo=UTC)) % tick == timedelta() for one in windows)


@settings(deadline=None)
@given(MOMENTS, st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")))
def test_window_state_name_contains_key_and_start(moment: datetime, key: str) -> None:
    assert window_of(window_key(key, Window(moment, moment))) == (key, moment)


@settings(deadline=None)
@given(MOMENTS)
def test_time_can_be_unix_seconds(moment: datetime) -> None:
    assert instant_of((moment - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(seconds=1)) == moment


@pytest.mark.parametrize(
    "make",
    [
        lambda: Tumbling(0),
        lambda: Tumbling(-1),
        lambda: Tumbling(float("nan")),
        lambda: Tumbling(1e-9),
        lambda: Sliding(60, every=0),
        lambda: Sliding(60, every=61),
        lambda: Sliding(60, every=0.001),
        lambda: Session(0),
        lambda: Session(float("inf")),
    ],
)
def test_invalid_windows_are_usage_errors(make: Any) -> None:
    with pytest.raises(UsageError):
        make()


# -- streams ---------------------------------------------------------------------------------------------------------

Numbers = tuple[int, int]


@dataclass
class Model:
    """Reference model of a stream with windows: handles one event after the other, in plain lists. Times are whole
    seconds."""

    window: Any
    lateness: int
    reached: int | None = None
    open: dict[tuple[str, Numbers], list[int]] = field(default_factory=dict)
    closed: list[tuple[str, Numbers, list[int]]] = field(default_factory=list)
    late: list[tuple[int, int]] = field(default_factory=list)

    def take(self, number: int, time: int, key: str) -> None:
        self.reached = max(time - self.lateness, time - self.lateness if self.reached is None else self.reached)
        self._close()
        for start, end in self._windows(time):
            if end <= self.reached:
                self.late.append((number, start))
            else:
                self._add(number, key, (start, end))

    def _windows(self, time: int) -> list[Numbers]:
        match self.window:
            case Tumbling(seconds):
                return [
                    (start, start + seconds)
                    for start in range(-100, 400)
                    if start % seconds == 0 and start <= time < start + seconds
                ]
            case Sliding(seconds, every):
                return [
                    (start, start + seconds)
                    for start in range(-100, 400)
                    if start % every == 0 and start <= time < start + seconds
                ]
        return [(time, time + self.window.gap_seconds)]

    def _add(self, number: int, key: str, own: Numbers) -> None:
        numbers = [number]
        if isinstance(self.window, Session):
            for known, other in sorted(self.open):
                if known == key and other[0] < own[1] and own[0] < other[1]:
                    numbers += self.open.pop((key, other))
                    own = min(own[0], other[0]), max(own[1], other[1])
        self.open.setdefault((key, own), []).extend(numbers)

    def _close(self) -> None:
        assert self.reached is not None
        for key, window in sorted(self.open, key=lambda one: (one[1][1], one[0])):
            if window[1] <= self.reached:
                self.closed.append((key, window, sorted(self.open.pop((key, window)))))


def application(window: Any, lateness: int) -> Streams:
    app = Streams("sqlite:///unused.db")
    merge = {"merge": both} if isinstance(window, Session) else {}

    @app.stream("x", key=lambda event: event.key, window=window, lateness_seconds=lateness, parts=1, **merge)
    def numbers(event: StreamEvent, ctx: Context) -> None:
        ctx.state.setdefault("numbers", []).append(int(event.event_id))

    @app.on_close("numbers")
    def close(window: Window, ctx: Context) -> None:
        ctx.emit("closed", [ctx.key, bounds(window), sorted(ctx.state["numbers"])], queue="closed")

    return app


def both(older: dict[str, Any], newer: dict[str, Any]) -> dict[str, Any]:
    return {"numbers": older["numbers"] + newer["numbers"]}


def bounds(window: Window) -> Numbers:
    start, end = ((moment - NOW) // timedelta(seconds=1) for moment in window)
    return start, end


def naive(window: Any) -> Any:
    """Check that a window suits the model. The model counts from NOW, so NOW must be a multiple of the window
    length."""
    length = getattr(window, "every", getattr(window, "seconds", 1))
    assert NOW.timestamp() % length == 0
    return window


WINDOWS = st.sampled_from(
    [naive(one) for one in (Tumbling(10), Sliding(20, every=5), Sliding(25, every=10), Session(7), Session(15))]
)
EVENTS = st.lists(st.tuples(st.integers(0, 90), st.sampled_from("ab")), min_size=1, max_size=14)
CRASHES = st.lists(st.tuples(st.integers(0, 14), st.sampled_from([CRASH, LOST_COMMIT])), max_size=3)


@settings(max_examples=100, deadline=None)
@given(WINDOWS, st.sampled_from([0, 3, 30]), EVENTS, st.integers(1, 6), CRASHES)
def test_stream_matches_model(
    window: Any, lateness: int, events: Sequence[tuple[int, str]], batch: int, crashes: Sequence[tuple[int, str]]
) -> None:
    model = Model(window, lateness)
    items: list[Any] = []
    for number, (time, key) in enumerate(events):
        model.take(number, time, key)
        items.append(StreamEvent(str(number), key, created_at=NOW + timedelta(seconds=time)))
    for place, crash in sorted(crashes, reverse=True):
        items.insert(place, crash)
    model._close()
    with TemporaryDirectory() as folder:
        harness = StreamHarness(application(window, lateness), "numbers", f"sqlite:///{Path(folder)}")
        harness.run(items, batch=batch)
        compare(harness, model)
        harness.close()


def compare(harness: StreamHarness, model: Model) -> None:
    queues: dict[str, list[Any]] = {"closed": [], "numbers/late": []}
    assert harness.report.dead == []
    for event in harness.report.emitted:
        queues[event.queue].append(event)
    closed = [json.loads(event.payload) for event in queues["closed"]]
    assert sorted((key, tuple(window), numbers) for key, window, numbers in closed) == sorted(model.closed)
    assert [window[1] for _, window, _ in closed] == sorted(window[1] for _, window, _ in closed), "in order"
    late = [
        (int(event.headers["penstock-stream-origin"]), event.headers["penstock-window-start"])
        for event in queues["numbers/late"]
    ]
    starts = [(number, (NOW + timedelta(seconds=start)).isoformat()) for number, start in model.late]
    assert sorted(late) == sorted(starts)
    for key in "ab":
        found = {start: harness.state(key, start) for start in harness.windows(key)}
        assert {start: sorted(state["numbers"]) for start, state in found.items()} == {
            NOW + timedelta(seconds=window[0]): sorted(numbers)
            for (known, window), numbers in model.open.items()
            if known == key
        }
