"""Handlers with timers: fires due timers in order of time, after the events and in their transaction.

A failed timer becomes an event of the retry queue. Like any other event, it is retried, becomes dead, and can be
replayed.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from heapq import heapify, heappop, heappush

from penstock.model.outcome import Outcome
from penstock.model.text import on_record
from penstock.streams.app import Stream
from penstock.streams.context import Context, KeyState
from penstock.streams.engine.watermarks import ClockReport, IdleAdvance, Watermark, seen
from penstock.streams.engine.windows import instant_of, seconds_of
from penstock.streams.engine.work import WATERMARK, EventFailure, Work, unexpired
from penstock.streams.event import TIME_HEADER, StreamEvent
from penstock.streams.state.api import PartTransaction, Timer

TIMER_TYPE = "stream.timer"
LIMIT = 1_000
"""Maximum number of timers fired in one transaction; the next transaction fires the rest."""
EVER = float("inf")
LAST = Timer(EVER, "", "")


class TimedWork(Work):
    """Runs the handlers and timers of one transaction."""

    failed_type = TIMER_TYPE

    def __init__(self, stream: Stream, tx: PartTransaction, events: list[StreamEvent], now: float) -> None:
        super().__init__(stream, tx, events, now)
        self._watermark = Watermark.read(tx.load([WATERMARK]).get(WATERMARK)) if stream.by_events else None
        self._before = self._watermark
        self._timers: dict[tuple[str, str], float | None] = {}
        self._waiting: list[Timer] = []
        self._until = -EVER
        self._last = LAST
        self._seen = False
        self._fired = 0

    # -- events -----------------------------------------------------------------------------------------------------

    def _handle(self, event: StreamEvent) -> Outcome | None:
        failure = self._attempt(event)
        if failure is not None:
            return self._failure(event, failure)
        self._forget(event)
        return None

    def _attempt(self, event: StreamEvent) -> EventFailure | None:
        """Handle an event, or rerun the failed timer that the event represents. Return the failure, if any."""
        if event.event_type == self.failed_type and self._stream.moved(event):
            try:
                timer = self._timer_of(event)
            except Exception as error:
                return EventFailure(f"invalid timer or window in the retry queue: {on_record(error)}", final=True)
            return self._run_timer(timer)
        try:
            time = self._see(event)
        except Exception as error:
            return EventFailure(f"cannot determine the time of the event: {on_record(error)}")
        return self._handle_at(event, time)

    def _see(self, event: StreamEvent) -> datetime:
        """Return the time of an event, and advance the watermark."""
        if not self._stream.by_events:
            return instant_of(self._now)
        time = self._time_of(event)
        self._watermark = seen(self._watermark, seconds_of(time), self._stream.lateness_seconds, self._now)
        self._seen = True
        return time

    def _time_of(self, event: StreamEvent) -> datetime:
        if self._stream.moved(event) and TIME_HEADER in event.headers:
            return datetime.fromisoformat(event.headers[TIME_HEADER])
        if self._stream.time is not None:
            return instant_of(self._stream.time(event))
        return instant_of(self._now if event.created_at is None else event.created_at)

    def _handle_at(self, event: StreamEvent, time: datetime) -> EventFailure | None:
        context = Context(event.key, self._state_of(event.key), now=seconds_of(time))
        return self._call_with(context, self._stream.handler, event)

    def _call_with(self, context: Context, function: Callable[..., None], given: object) -> EventFailure | None:
        """Call a function of the user. If the function fails, discard its effects and return the failure."""
        try:
            function(given, context)
            context.state.check()
        except Exception as error:
            context.state.undo()
            return EventFailure(on_record(error))
        self._keep(context)
        return None

    def _keep(self, context: Context) -> None:
        """Apply the effects of a successful call."""
        context.state.settle()
        self._emitted += context.emitted
        for name, at in context.timers.items():
            self._set(context.key, name, at)

    def _set(self, key: str, name: str, at: float | None) -> None:
        self._timers[key, name] = at
        if at is not None and at <= self._until and (timer := Timer(at, key, name)) <= self._last:
            heappush(self._waiting, timer)

    def _failure(self, event: StreamEvent, failure: EventFailure) -> Outcome | None:
        """Record a failure. A forwarded event keeps its time in a header: its copy has the creation time of the
        forwarding."""
        if self._stream.by_events and not event.settles and event.event_type != self.failed_type:
            with suppress(Exception):
                event = event._replace(headers={**event.headers, TIME_HEADER: self._time_of(event).isoformat()})
        return super()._failure(event, failure)

    # -- timers -----------------------------------------------------------------------------------------------------

    def fire(
        self, idle_advance: IdleAdvance | None = None, limit: int = LIMIT, failure: EventFailure | None = None
    ) -> None:
        """Fire due timers in order of time, including timers that other timers set. With `failure`, timers fail without
        a run."""
        self._until = self._due_until(idle_advance)
        self._write_timers()
        if self._until == -EVER:
            return
        self._waiting = list(self._tx.due(self._until, limit))
        self._last = self._waiting[-1] if len(self._waiting) == limit else LAST
        heapify(self._waiting)
        self._prepare(self._waiting)
        while self._waiting and self._fired < limit:
            timer = heappop(self._waiting)
            if self._timers.get((timer.key, timer.name), timer.at) == timer.at:
                self._fire(timer, failure)
        self._write_timers()

    def _due_until(self, idle_advance: IdleAdvance | None) -> float:
        if not self._stream.by_events:
            return self._now
        if self._watermark is None:
            return -EVER
        if idle_advance is not None:
            self._watermark = self._watermark.quiet(idle_advance, self._stream.lateness_seconds, self._now)
        return self._watermark.reached

    def _write_timers(self) -> None:
        if self._timers:
            self._tx.set_timers(self._timers)
            self._timers = {}

    def _prepare(self, timers: Sequence[Timer]) -> None:
        """Load the states of the timers' keys in one call."""
        self._load({timer.key for timer in timers})

    def _load(self, keys: set[str]) -> None:
        missing = keys - self._states.keys()
        if missing:
            found = self._tx.load(missing)
            self._states |= {key: KeyState(unexpired(saved, self._now)) for key, saved in found.items()}

    def _fire(self, timer: Timer, failure: EventFailure | None) -> None:
        self._fired += 1
        self._let_go(timer)
        found = failure or self._run_timer(timer)
        if found is not None:
            self._failure(self._as_event(timer), found)

    def _let_go(self, timer: Timer) -> None:
        """Delete a timer that has fired, even if its function fails."""
        self._timers[timer.key, timer.name] = None

    def _run_timer(self, timer: Timer) -> EventFailure | None:
        """Call the timer function, and return the failure, if any."""
        assert self._stream.on_timer is not None
        time = timer.at if self._stream.by_events else self._now
        return self._call_with(Context(timer.key, self._state_of(timer.key), now=time), self._stream.on_timer, timer)

    # -- timers that have failed ------------------------------------------------------------------------------------

    def _as_event(self, timer: Timer) -> StreamEvent:
        """Return the event that represents a failed timer in the retry queue."""
        return self._event_of(timer.key, {"name": timer.name, "key": timer.key, "at": timer.due_at.isoformat()})

    def _event_of(self, key: str, payload: Mapping[str, str]) -> StreamEvent:
        return StreamEvent(self.failed_type, key, json.dumps(payload).encode(), self.failed_type, settles=False)

    def _timer_of(self, event: StreamEvent) -> Timer:
        given = event.json()
        return Timer(seconds_of(datetime.fromisoformat(given["at"])), event.key, given["name"])

    # -- end of the transaction -------------------------------------------------------------------------------------

    def write(self, failed: dict[int, Outcome]) -> None:
        self._write_timers()
        if self._watermark is not None and self._watermark != self._before:
            self._own[WATERMARK] = self._watermark.saved()
        super().write(failed)

    def report(self) -> ClockReport:
        """Return the clock report of the state partition, after all writes."""
        first = self._tx.due(EVER, 1)
        reached = None if self._watermark is None else self._watermark.reached
        return ClockReport(self._fired, first[0].at if first else None, reached, self._seen)
