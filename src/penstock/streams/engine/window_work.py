"""Handlers with windows: each window has its own state, and a timer that closes the window when the watermark passes
its end.

An event is compared with the watermark at its position in the order of events, so the division into batches has no
influence. Sessions that an event joins are merged. A key's list of open sessions is stored beside the state.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from penstock.model.errors import UsageError
from penstock.model.event import NAME_LIMIT, Event
from penstock.model.text import on_record
from penstock.streams.app import Stream
from penstock.streams.context import Context, KeyState
from penstock.streams.engine.timer_work import TimedWork
from penstock.streams.engine.windows import Session, Window, instant_of, micros, seconds_of, window_key, window_of
from penstock.streams.engine.work import SESSIONS, EventFailure, clean
from penstock.streams.event import END_HEADER, START_HEADER, StreamEvent
from penstock.streams.state.api import PartTransaction, Saved, Timer

WINDOW_TYPE = "stream.window"
CLOSE = "close"


@dataclass(slots=True)
class _Calls:
    """Pending effects of one event in all its windows: applied together, or discarded."""

    contexts: list[Context] = field(default_factory=list)
    touched: list[KeyState] = field(default_factory=list)
    joined: dict[Window, Sequence[Window]] = field(default_factory=dict)
    """Merged sessions of each window."""

    def undo(self) -> None:
        for state in self.touched:
            state.undo()


class WindowedWork(TimedWork):
    """Runs the handlers of one transaction, and closes windows."""

    failed_type = WINDOW_TYPE

    def __init__(self, stream: Stream, tx: PartTransaction, events: list[StreamEvent], now: float) -> None:
        assert stream.window is not None
        self._windows = stream.window
        self._open: dict[str, list[Window]] = {}
        super().__init__(stream, tx, events, now)
        self._load_sessions(event.key for event in events)

    def _keys(self, events: Sequence[StreamEvent]) -> set[str]:
        return {name for event in events for name in self._names_of(event)}

    def _names_of(self, event: StreamEvent) -> list[str]:
        """Return the names under which the states of the event's windows are stored. The list is empty for sessions:
        `_load_sessions` finds their names in the list of open sessions."""
        try:
            if self._stream.moved(event) and event.event_type == self.failed_type:
                return [self._timer_of(event).key]
            if isinstance(self._windows, Session):
                return []
            return [window_key(event.key, window) for window in self._windows.windows_of(self._time_of(event))]
        except Exception:
            return []  # the error is reported when the event is handled

    # -- events -----------------------------------------------------------------------------------------------------

    def _handle_at(self, event: StreamEvent, time: datetime) -> EventFailure | None:
        calls = _Calls()
        try:
            windows = self._windows.windows_of(time)
            late = [window for window in windows if self._is_closed(window)]
            for window in windows[len(late) :]:
                self._call(event, window, calls)
        except Exception as error:
            calls.undo()
            return EventFailure(on_record(error))
        self._keep_calls(event.key, calls)
        self._emitted += [self._late(event, window) for window in late]
        return None

    def _is_closed(self, window: Window) -> bool:
        return self._watermark is not None and seconds_of(window.end) <= self._watermark.reached

    def _call(self, event: StreamEvent, window: Window, calls: _Calls) -> None:
        whole = self._joined(event.key, window, calls) if isinstance(self._windows, Session) else window
        state = self._state_of(window_key(event.key, whole))
        calls.touched.append(state)
        context = Context(event.key, state, window=whole)
        calls.contexts.append(context)
        self._stream.handler(event, context)
        state.check()

    def _keep_calls(self, key: str, calls: _Calls) -> None:
        for state in calls.touched:
            state.settle()
        for context in calls.contexts:
            self._keep(context)
            self._set(window_key(key, context.window), CLOSE, seconds_of(context.window.end))
        for window, joined in calls.joined.items():
            self._replace_sessions(key, window, joined)

    def _late(self, event: StreamEvent, window: Window) -> Event:
        """Return a copy of a late event for the queue of late events, with the bounds of the closed window."""
        bounds = {START_HEADER: window.start.isoformat(), END_HEADER: window.end.isoformat()}
        ordering_key = clean(event.ordering_key or "")[:NAME_LIMIT] or None
        return self._copy(event, self._stream.late_to, bounds, ordering_key=ordering_key)

    # -- sessions ---------------------------------------------------------------------------------------------------

    def _load_sessions(self, keys: Iterable[str]) -> None:
        """Load the open sessions of these keys, and their states."""
        if not isinstance(self._windows, Session):
            return
        missing = {key for key in keys if key not in self._open}
        if not missing:
            return
        found = self._tx.load({SESSIONS + key for key in missing})
        self._open |= {key: _unpack(found.get(SESSIONS + key)) for key in missing}
        self._load({window_key(key, window) for key in missing for window in self._open[key]})

    def _joined(self, key: str, window: Window, calls: _Calls) -> Window:
        """Return the session that contains the event's own window. Open sessions that overlap with the window become
        part of the session."""
        joined = [one for one in self._open[key] if one.overlaps(window) and not self._is_closed(one)]
        together = [window, *joined]
        whole = Window(min(one.start for one in together), max(one.end for one in together))
        calls.joined[whole] = joined
        if joined and (len(joined) > 1 or joined[0].start != whole.start):
            self._merge(key, joined, whole, calls)
        return whole

    def _merge(self, key: str, joined: Sequence[Window], whole: Window, calls: _Calls) -> None:
        assert self._stream.merge is not None
        states = [self._state_of(window_key(key, one)) for one in joined]
        calls.touched += states
        values: dict[str, Any] = dict(states[0])
        for state in states[1:]:
            values = self._stream.merge(values, dict(state))
            if not isinstance(values, Mapping):
                raise UsageError(f"merge= must return a dict, got {type(values).__name__}")
        for state in states:
            state.become({})
        kept = self._state_of(window_key(key, whole))
        calls.touched.append(kept)
        kept.become(values)

    def _replace_sessions(self, key: str, whole: Window, joined: Sequence[Window]) -> None:
        for one in joined:
            if one.start != whole.start:
                self._set(window_key(key, one), CLOSE, None)
        self._note_open(key, sorted([*(one for one in self._open[key] if one not in joined), whole]))

    def _note_open(self, key: str, windows: list[Window]) -> None:
        self._open[key] = windows
        self._own[SESSIONS + key] = _pack(windows)

    # -- closing windows --------------------------------------------------------------------------------------------

    def _prepare(self, timers: Sequence[Timer]) -> None:
        self._load_sessions({_closed_by(timer)[0] for timer in timers})
        super()._prepare(timers)

    def _let_go(self, timer: Timer) -> None:
        super()._let_go(timer)
        key, window = _closed_by(timer)
        if key in self._open:
            self._note_open(key, [one for one in self._open[key] if one.start != window.start])

    def _run_timer(self, timer: Timer) -> EventFailure | None:
        """Close a window, and return the failure, if any. After a failure, the window keeps its state for the retry."""
        key, window = _closed_by(timer)
        state = self._state_of(timer.key)
        context = Context(key, state, window=window)
        try:
            if self._stream.on_close is not None:
                self._stream.on_close(window, context)
        except Exception as error:
            state.undo()
            return EventFailure(on_record(error))
        state.become({})
        self._keep(context)
        return None

    def _as_event(self, timer: Timer) -> StreamEvent:
        key, (start, end) = _closed_by(timer)
        return self._event_of(key, {"key": key, "start": start.isoformat(), "end": end.isoformat()})

    def _timer_of(self, event: StreamEvent) -> Timer:
        given = event.json()
        window = Window(datetime.fromisoformat(given["start"]), datetime.fromisoformat(given["end"]))
        return Timer(seconds_of(window.end), window_key(event.key, window), CLOSE)


def _closed_by(timer: Timer) -> tuple[str, Window]:
    """Return the key and the window that a timer closes."""
    found = window_of(timer.key)
    assert found is not None
    return found[0], Window(found[1], instant_of(timer.at))


def _pack(windows: Sequence[Window]) -> Saved | None:
    bounds = [[micros(start), micros(end)] for start, end in windows]
    return Saved(json.dumps(bounds).encode()) if bounds else None


def _unpack(saved: Saved | None) -> list[Window]:
    if saved is None:
        return []
    return [Window(instant_of(start / 1e6), instant_of(end / 1e6)) for start, end in json.loads(saved.data)]
