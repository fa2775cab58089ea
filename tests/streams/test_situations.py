"""Situations in which a stream could lose an event or apply it twice, on each state store, without Spark."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from penstock import Streams
from penstock.model.outcome import Published, Retry
from penstock.streams.app import Stream
from penstock.streams.context import Context, KeyState
from penstock.streams.engine.partition import process_batch
from penstock.streams.engine.work import Result
from penstock.streams.event import StreamEvent
from penstock.streams.state.api import Fenced, StatePartition, StateStore, Superseded
from penstock.streams.state.registry import open_state
from penstock.testing.states.scenario import StateScenario
from penstock.testing.streams import CRASH, LOST_COMMIT, StreamHarness

Handler = Callable[[StreamEvent, Context], None]


@pytest.fixture(params=["sqlite", "rocksdb", "postgresql"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        found: str = request.getfixturevalue("postgres_url")
        return found
    return f"{request.param}:///{tmp_path / 'state'}"


@pytest.fixture
def store(state: str) -> Iterator[StateStore]:
    with closing(open_state(state)) as opened:
        yield opened


def add(event: StreamEvent, ctx: Context) -> None:
    if event.text().startswith("bad") and event.attempts < 2:
        raise ConnectionError("not yet")
    ctx.state["sum"] = ctx.state.get("sum", 0) + int(event.text().removeprefix("bad"))
    ctx.state.setdefault("order", []).append(event.event_id)
    ctx.emit("added", {"id": event.event_id})


def stream_of(handler: Handler = add) -> Stream:
    app = Streams("sqlite:///unused.db")
    app.stream("orders", key=lambda event: "a", name="total", parts=1)(handler)
    return app.streams["total"]


def numbered(*numbers: int) -> list[StreamEvent]:
    return [StreamEvent(f"{number}-0", "a", payload=b"%d" % number) for number in numbers]


def run(part: StatePartition, events: Sequence[StreamEvent], handler: Handler = add) -> list[Result]:
    return process_batch(part, stream_of(handler), events, 0.0)[0]


def total(store: StateStore) -> dict[str, object]:
    return dict(KeyState(dict(store.read("total", ["a"]))["a"]))


def emitted(part: StatePartition) -> list[bytes]:
    return [event.payload for outgoing in part.outgoing() for event in outgoing.events]


def test_older_of_two_tasks_is_fenced(store: StateStore, state: str) -> None:
    started = store.start("total", 1)
    events = numbered(1, 2, 3)
    with closing(store.open_part(started, 0)) as older, closing(open_state(state).open_part(started, 0)) as newer:
        run(newer, events)
        with pytest.raises(Fenced, match="another task"):
            run(older, events)
        assert total(store)["sum"] == 6
        assert len(emitted(newer)) == 3


def test_second_task_waits_for_commit_of_first(store: StateStore, state: str) -> None:
    """The second task opens the state partition while the first task is running its handlers."""
    started, events = store.start("total", 1), numbered(1, 2, 3)
    halfway, go_on = threading.Event(), threading.Event()

    def slowly(event: StreamEvent, ctx: Context) -> None:
        add(event, ctx)
        if event.event_id == "2-0":
            halfway.set()
            assert go_on.wait(60)

    def second() -> None:
        with closing(open_state(state).open_part(started, 0)) as newer:
            run(newer, events)

    with closing(store.open_part(started, 0)) as first:
        working = threading.Thread(target=run, args=(first, events, slowly))
        working.start()
        assert halfway.wait(60)
        late = threading.Thread(target=second)
        late.start()
        go_on.set()
        working.join()
        late.join()
        assert total(store) == {"sum": 6, "order": ["1-0", "2-0", "3-0"]}
        assert len(emitted(first)) == 3


def test_older_driver_is_superseded(store: StateStore, state: str) -> None:
    older = store.start("total", 1)
    part = store.open_part(older, 0)
    newer = open_state(state).start("total", 1)
    with pytest.raises(Superseded, match=r"another driver has started .*epoch"):
        run(part, numbered(1))
    part.close()
    with closing(store.open_part(newer, 0)) as taken:
        run(taken, numbered(1))
    assert total(store)["sum"] == 1


def test_failed_event_is_applied_after_later_event(store: StateStore) -> None:
    """A failed event is applied later, although the event after it succeeded. Progress stored as an offset would lose
    the failed event."""
    bad, good = StreamEvent("1-0", "a", payload=b"bad1"), StreamEvent("2-0", "a", payload=b"2")
    with closing(store.open_part(store.start("total", 1), 0)) as part:
        outcomes = [result.outcome for result in run(part, [bad, good])]
        assert isinstance(outcomes[0], Retry)
        assert isinstance(outcomes[1], Published)
        assert total(store) == {"sum": 2, "order": ["2-0"]}
        run(part, [bad._replace(attempts=1)])
        run(part, [bad._replace(attempts=2), good])
        assert total(store) == {"sum": 3, "order": ["2-0", "1-0"]}
        assert emitted(part) == [b'{"id":"2-0"}', b'{"id":"1-0"}']


@pytest.mark.parametrize("settles", [True, False])
def test_repeated_task_counts_failure_once(store: StateStore, settles: bool) -> None:
    """Repeats of one delivery count one failure. A task that died after its commit repeats its delivery, and these
    repeats must not make the event dead."""
    bad = StreamEvent("1-0", "a", payload=b"bad1", settles=settles)
    with closing(store.open_part(store.start("total", 1), 0)) as part:
        run(part, [bad])
        if not settles:
            (moved,) = [event for outgoing in part.outgoing() for event in outgoing.events]
            bad = StreamEvent(str(moved.event_id), "a", payload=moved.payload, headers=moved.headers)
        for attempts in (0, 1):
            outcomes = [run(part, [bad._replace(attempts=attempts)])[0].outcome for _ in range(9)]
            assert all(isinstance(outcome, Retry) for outcome in outcomes)
            assert len({outcome.delay_seconds for outcome in outcomes if isinstance(outcome, Retry)}) == 1
        run(part, [bad._replace(attempts=2)])
    assert total(store)["sum"] == 1


def test_older_entries_after_newer_ones_are_applied(store: StateStore) -> None:
    """Older entries are applied after newer ones, as when a consumer takes over the entries of a dead one."""
    with closing(store.open_part(store.start("total", 1), 0)) as part:
        for event in reversed(numbered(1, 2, 3, 4)):
            run(part, [event])
        run(part, numbered(1, 2, 3, 4))
    assert total(store) == {"sum": 10, "order": ["4-0", "3-0", "2-0", "1-0"]}


def test_inbox_does_not_depend_on_string_order_of_ids(store: StateStore) -> None:
    """The inbox does not order ids: 9-0 comes before 10-0 and 100-0, but sorts after them as a string."""
    with closing(store.open_part(store.start("total", 1), 0)) as part:
        for number in (9, 10, 100, 99, 101):
            run(part, numbered(number))
        run(part, numbered(9, 10, 99, 100, 101))
    assert total(store)["order"] == ["9-0", "10-0", "100-0", "99-0", "101-0"]
    assert total(store)["sum"] == 319


@pytest.mark.parametrize("crash", [CRASH, LOST_COMMIT])
def test_failing_events_do_not_block_later_events(state: str, crash: str) -> None:
    app = Streams("sqlite:///unused.db")

    @app.stream("orders", key=lambda event: "a", parts=1, name="total")
    def refuse(event: StreamEvent, ctx: Context) -> None:
        ctx.state["count"] = ctx.state.get("count", 0) + 1
        if event.text() == "never":
            raise ValueError("never")

    with closing(StreamHarness(app, "total", state)) as harness:
        report = harness.run(["never", "one", crash, "never", "two", crash, "three"], batch=2)
        assert harness.state("a") == {"count": 3}
        assert [event.text() for event, _ in report.dead] == ["never", "never"]


def test_inbox_entries_are_kept_until_acknowledgement(store: StateStore) -> None:
    """An inbox entry is kept until the acknowledgement: before that, the source may deliver the event again."""
    event = numbered(5)
    arrivals = [one.arrival for one in event]
    with closing(store.open_part(store.start("total", 1), 0)) as part:
        run(part, event)
        run(part, event)
        assert StateScenario.entered(part, arrivals) == set(arrivals)
        part.trim(arrivals)
        assert StateScenario.entered(part, arrivals) == set()
    assert total(store)["sum"] == 5
