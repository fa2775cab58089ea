"""Test harness for streams: runs the real commit protocol over a real state store, in the test's thread, without Spark.

The input can contain simulated crashes.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from penstock.model.event import Event, encode_payload
from penstock.model.outcome import Dead, Published
from penstock.streams.app import Stream, StreamSet, part_of
from penstock.streams.context import KeyState
from penstock.streams.engine.partition import Firing, process_batch
from penstock.streams.engine.watermarks import Clocks
from penstock.streams.engine.windows import Window, window_key, window_of
from penstock.streams.engine.work import Result, is_users
from penstock.streams.event import StreamEvent
from penstock.streams.state.api import PartTransaction, Started, StatePartition
from penstock.streams.state.registry import open_state

CRASH = "CRASH"
"""Input item: the process dies after it has committed the preceding events, and acknowledges none of them."""
LOST_COMMIT = "LOST_COMMIT"
"""Input item: the process dies before it has committed the preceding events."""

NOW = datetime(2026, 1, 1, tzinfo=UTC)
"""Initial time of a harness's clock."""


class SimulatedCrash(BaseException):
    """A crash requested by the test."""


@dataclass(slots=True)
class Report:
    """Applied, dead and emitted events of a harness."""

    applied: list[StreamEvent] = field(default_factory=list)
    dead: list[tuple[StreamEvent, str]] = field(default_factory=list)
    emitted: list[Event] = field(default_factory=list)


class StreamHarness:
    """Runs one stream of an application over lists of events.

        harness = StreamHarness(app, "total", f"sqlite:///{tmp_path}")
        harness.run([{"customer": "a", "amount": 1}, CRASH, {"customer": "a", "amount": 2}])
        assert harness.state("a") == {"sum": 3}

    An item is a payload or a `StreamEvent`. After a crash another driver starts, and unacknowledged events are
    delivered again, as by any source.
    """

    def __init__(self, app: StreamSet, stream: str, state: str) -> None:
        self.report = Report()
        self.now = NOW
        """The current time, which `advance` changes."""
        self._stream: Stream = app.streams[stream]
        self._state = open_state(state)
        self._numbers = count(1)
        self._moved: list[StreamEvent] = []
        self._started = self._start()

    def _start(self) -> Started:
        started = self._state.start(self._stream.name, self._stream.parts)
        seconds = self._stream.idle_close_seconds
        by_events = self._stream.by_events
        self._clocks = Clocks(started.parts, event_time=by_events, idle_close_seconds=seconds)
        return started

    @property
    def _seconds(self) -> float:
        return self.now.timestamp()

    def run(self, items: Sequence[Any], *, batch: int = 100) -> Report:
        """Process items in batches. Failed events are retried without a delay until they succeed or are dead."""
        waiting: list[StreamEvent] = []
        for item in items:
            if item in (CRASH, LOST_COMMIT):
                self._crash(waiting, committed=item == CRASH)
                continue
            waiting.append(self._event(item))
            if len(waiting) >= batch:
                waiting = self._attempt(waiting)
        self._finish(waiting)
        return self.report

    def advance(self, seconds: float, *, crash: str | None = None) -> Report:
        """Advance the clock without events and fire the timers that are due.

        `crash` simulates a crash while they fire.
        """
        self.now += timedelta(seconds=seconds)
        if crash is not None:
            with _dying(committed=crash == CRASH) as wrap:
                self._tick(wrap)
            self._started = self._start()
        self._finish([])
        return self.report

    def state(self, key: str, start: datetime | None = None) -> dict[str, Any]:
        """Return the committed state of a key, or of the key's window that starts at `start`."""
        name = key if start is None else window_key(key, Window(start, start))
        found = dict(self._state.read(self._stream.name, [name]))
        return dict(KeyState(found[name])) if name in found else {}

    def windows(self, key: str) -> list[datetime]:
        """Return the start times of the key's windows that have a state."""
        names = (name for name, _ in self._state.read(self._stream.name) if is_users(name))
        return sorted(start for found, start in filter(None, map(window_of, names)) if found == key)

    def close(self) -> None:
        self._state.close()

    def _event(self, item: Any) -> StreamEvent:
        if isinstance(item, StreamEvent):
            made = item
        else:
            made = StreamEvent(str(next(self._numbers)), "", payload=encode_payload(item)[0])
        return made._replace(key=made.key or self._stream.key_of(made))

    def _crash(self, waiting: list[StreamEvent], *, committed: bool) -> None:
        """Process the events and crash without acknowledging them: another driver will receive them again."""
        with _dying(committed=committed) as wrap:
            self._process(waiting, wrap)
        self._started = self._start()

    def _finish(self, waiting: list[StreamEvent]) -> None:
        """Process until no event is waiting and no timer is due."""
        while waiting or self._tick(_as_it_is) or self._moved:
            waiting = self._attempt(waiting)

    def _tick(self, wrap: Any) -> bool:
        """Process the state partitions that are due without events. Return whether a timer fired."""
        if not self._stream.has_timers:
            return False
        self._clocks.count_idle_from(self._seconds)
        idle_advances, before = self._clocks.idle_advances(self._seconds), self._clocks.fired
        for number in sorted(self._clocks.due(self._seconds)):
            self._process_part(number, [], wrap, Firing(idle_advances.get(number)))
        return self._clocks.fired > before

    def _attempt(self, events: list[StreamEvent]) -> list[StreamEvent]:
        """Process and acknowledge events. Return those to deliver again."""
        again: list[StreamEvent] = []
        for event, outcome in self._process(events, _as_it_is):
            match outcome:
                case Published():
                    self.report.applied.append(event)
                case Dead(error=error):
                    self.report.dead.append((event, error))
                case _:
                    again.append(event._replace(attempts=event.attempts + 1))
        moved, self._moved = self._moved, []
        return again + moved

    def _process(self, events: list[StreamEvent], wrap: Any) -> list[tuple[StreamEvent, Any]]:
        done: list[tuple[StreamEvent, Any]] = []
        by_part: dict[int, list[StreamEvent]] = {}
        for event in events:
            by_part.setdefault(part_of(event.key, self._started.parts), []).append(event)
        for number, mine in sorted(by_part.items()):
            results = self._process_part(number, mine, wrap, Firing())
            done += [(result.event, result.outcome) for result in results]
        return done

    def _process_part(self, number: int, events: list[StreamEvent], wrap: Any, firing: Firing) -> list[Result]:
        part = self._state.open_part(self._started, number)
        try:
            results, report = process_batch(wrap(part), self._stream, events, self._seconds, firing=firing)
            for outgoing in part.outgoing():
                self._sort(outgoing.events)
                part.sent(outgoing.batch)
        finally:
            part.close()
        if report is not None:
            self._clocks.note({number: report}, self._seconds)
        return results

    def _sort(self, events: Sequence[Event]) -> None:
        """Report the emitted events; keep those forwarded to the retry queue, to deliver them again."""
        for event in events:
            if event.queue == self._stream.own_queue:
                given = {name: getattr(event, name) for name in ("payload", "event_type", "headers", "partition_key")}
                self._moved.append(self._event(StreamEvent(str(event.event_id), "", **given)))
            else:
                self.report.emitted.append(event)


def _as_it_is(part: StatePartition) -> StatePartition:
    return part


@contextmanager
def _dying(*, committed: bool) -> Iterator[Any]:
    try:
        yield lambda part: _Doomed(part, committed)
    except SimulatedCrash:
        return


class _Doomed:
    """A state partition whose process dies at the first commit: before the commit, or after."""

    def __init__(self, part: StatePartition, committed: bool) -> None:
        self._part = part
        self._committed = committed

    @contextmanager
    def transaction(self) -> Iterator[PartTransaction]:
        with self._part.transaction() as tx:
            yield tx
            if not self._committed:
                raise SimulatedCrash
        raise SimulatedCrash
