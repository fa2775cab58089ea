"""The commit protocol for one state partition: a transaction for the inbox, the state and the emitted events.

    1  check the driver's epoch and the task's token on the state partition
    2  insert new events into the inbox
    3  run their handlers in order; discard the effects of a failed event and remove the event from the inbox
    4  write changed state and emitted events
    5  commit

Only events in the inbox are acknowledged, and only after the commit. This module uses neither Spark nor a source.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import uuid_utils.compat as uuid7

from penstock.model.event import NAME_LIMIT, Event, EventId
from penstock.model.outcome import Dead, Outcome, Retry
from penstock.model.text import on_record
from penstock.streams.app import Stream
from penstock.streams.context import Context, KeyState
from penstock.streams.engine.batch_handlers import BatchContext, States, as_table, in_kind
from penstock.streams.event import KEY_HEADER, ORIGIN_HEADER, STREAM_HEADER, StreamEvent
from penstock.streams.state.api import EPOCH, Arrival, PartTransaction, Saved

# Prefix of failure counts, which are stored beside the states of keys. The source's own count includes deaths of the
# process that ran the event, which are not failures of the event.
FAILED = "\x01failed/"
# Watermark of a state partition, and the open sessions of a key: see `timer_work` and `window_work`.
WATERMARK = "\x01watermark"
SESSIONS = "\x01sessions/"
# Delivery number of a failure that occurred in the event's source, before the event was forwarded to the retry queue.
NO_DELIVERY = -1
MOVED_TYPE = "stream.event"


@dataclass(frozen=True, slots=True)
class EventFailure:
    """Failure of an event or timer. A final failure makes the event dead without a retry.

    A forced failure is recorded without a run of the handler. The reason is a failed key function or, for a final
    failure, an event that kills its process.
    """

    error: str
    final: bool = False


class Result(NamedTuple):
    """Outcome of an event: Published (applied now or before, or forwarded to the retry queue), Retry or Dead."""

    event: StreamEvent
    outcome: Outcome


def fresh_among(tx: PartTransaction, events: Sequence[StreamEvent]) -> list[StreamEvent]:
    """Insert the events into the inbox, and return the new ones. Of duplicates in a batch, the first counts. For events
    with a position, advance the stored offsets instead."""
    unknown = tx.fresh([event.arrival for event in events if event.position is None])
    partitions = {event.position.source_partition for event in events if event.position is not None}
    reached = dict(tx.reached(partitions)) if partitions else {}
    fresh: list[StreamEvent] = []
    for event in events:
        if event.position is None:
            if event.arrival in unknown:
                unknown.discard(event.arrival)
                fresh.append(event)
        else:
            partition, offset = event.position
            if offset > reached.get(partition, -1):
                reached[partition] = offset
                fresh.append(event)
    if partitions:
        tx.advance({name: reached[name] for name in partitions})
    return fresh


class Work:
    """Runs the handlers of one transaction on the states of their keys."""

    def __init__(self, stream: Stream, tx: PartTransaction, events: list[StreamEvent], now: float) -> None:
        self._stream = stream
        self._tx = tx
        self._events = events
        self._now = now
        again = {_failures_of(event) for event in events if event.attempts or (event.headers and event.moved)}
        self._again = bool(again)
        """True if one of the events may have failed before, which is rare."""
        saved = tx.load(self._keys(events) | again) if events else {}
        self._failures = {name: _Failures.read(saved[name].data) for name in again & saved.keys()}
        self._forgotten: set[str] = set()
        self._states = {key: KeyState(unexpired(one, now)) for key, one in saved.items() if is_users(key)}
        self._own: dict[str, Saved | None] = {}
        self._emitted: list[Event] = []

    def _keys(self, events: Sequence[StreamEvent]) -> set[str]:
        """Return the state keys of the events."""
        return {event.key for event in events}

    def run(self, forced_failures: Mapping[Arrival, EventFailure]) -> dict[int, Outcome]:
        """Run the handlers. Return the outcomes of the failed events, by `id(event)`."""
        failed: dict[int, Outcome] = {}
        together: list[StreamEvent] = []
        for event in self._events:
            failure = forced_failures.get(event.arrival) if forced_failures else None
            if failure is None and self._again:
                failure = self._past_failure(event)
            if failure is None and self._stream.batch is not None:
                together.append(event)
                continue
            outcome = self._handle(event) if failure is None else self._failure(event, failure)
            if outcome is not None:
                failed[id(event)] = outcome
        for event, failure in self._handle_together(together):
            outcome = self._failure(event, failure)
            if outcome is not None:
                failed[id(event)] = outcome
        return failed

    def _past_failure(self, event: StreamEvent) -> EventFailure | None:
        """Return the final failure that an event had before it was forwarded, else None. The event's source could not
        make the event dead, so the event becomes dead in the retry queue, without a run of the handler."""
        past = self._failures.get(_failures_of(event)) if event.moved else None
        return (
            EventFailure(past.error, final=True) if past is not None and past.count > self._stream.max_retries else None
        )

    def _handle(self, event: StreamEvent) -> Outcome | None:
        """Run the handler for one event. Return the outcome if the event failed and was not forwarded."""
        state = self._state_of(event.key)
        context = Context(event.key, state)
        try:
            self._stream.handler(event, context)
            state.check()
        except Exception as error:
            state.undo()
            return self._failure(event, EventFailure(on_record(error)))
        state.settle()
        self._forget(event)
        if context.emitted:
            self._emitted += context.emitted
        return None

    def _handle_together(self, events: Sequence[StreamEvent]) -> Iterator[tuple[StreamEvent, EventFailure]]:
        """Run a batch handler, and yield the failed events. If the call fails, discard its effects and run each half
        separately, the first half first. An event that fails alone is at fault."""
        if not events:
            return
        context = BatchContext(States(self._state_of, [event.key for event in events]))
        try:
            self._stream.handler(in_kind(as_table(events, self._stream.fields), self._stream.batch), context)
            for key in context.states:
                self._state_of(key).check()
        except Exception as error:
            for key in context.states:
                self._state_of(key).undo()
            if len(events) == 1:
                yield events[0], EventFailure(on_record(error))
                return
            middle = len(events) // 2
            yield from self._handle_together(events[:middle])
            yield from self._handle_together(events[middle:])
            return
        for key in context.states:
            self._state_of(key).settle()
        for event in events:
            self._forget(event)
        self._emitted += context.emitted

    def _state_of(self, key: str) -> KeyState:
        found = self._states.get(key)
        if found is None:
            found = self._states[key] = KeyState()
        return found

    def _failure(self, event: StreamEvent, failure: EventFailure) -> Outcome | None:
        before = self._failures_before(event)
        error, final = failure.error, failure.final or before >= self._stream.max_retries
        delay = self._stream.retry_seconds * 2**before
        if not event.settles:
            self._move(event, _Failures(self._stream.max_retries + 1, error) if final else _Failures(1), delay)
            return None
        if final:
            self._forget(event)
            return Dead(error)
        self._failures[_failures_of(event)] = _Failures(before + 1, delivery=event.attempts)
        return Retry(error, delay)

    def _failures_before(self, event: StreamEvent) -> int:
        """Return the number of failures in other deliveries. If a task dies after its commit, Spark repeats the task
        with the same delivery of the event, and the failure must not count twice."""
        past = self._failures.get(_failures_of(event))
        if past is None:
            return 0
        return past.count - 1 if past.delivery == event.attempts else past.count

    def _move(self, event: StreamEvent, failures: "_Failures", delay: float) -> None:
        """Forward a copy to the retry queue, where the event is retried or becomes dead. Its source has no
        settlement."""
        available_at = EPOCH + timedelta(seconds=self._now + (0 if failures.error else delay))
        origin = {ORIGIN_HEADER: event.event_id}
        moved = self._copy(event, self._stream.own_queue, origin, available_at=available_at)
        self._emitted.append(moved)
        self._failures[f"{FAILED}{moved.event_id}/0"] = failures

    def _copy(self, event: StreamEvent, queue: str, headers: Mapping[str, str], **fields: Any) -> Event:
        """Return a copy of an event for another queue, with these additional headers. Characters that no store accepts
        are removed: an event of any source can fail or be late."""
        given = {clean(name): clean(value) for name, value in event.headers.items()}
        own = {KEY_HEADER: event.key, STREAM_HEADER: self._stream.name}
        return Event(
            event_type=clean(event.event_type)[:NAME_LIMIT] or MOVED_TYPE,
            payload=event.payload,
            headers={ORIGIN_HEADER: event.event_id, **given, **own, **headers},
            queue=queue,
            partition_key=clean(event.partition_key or "")[:NAME_LIMIT] or None,
            event_id=EventId(uuid7.uuid7()),
            **fields,
        )

    def _forget(self, event: StreamEvent) -> None:
        """Delete the failure count of an event that is applied or dead."""
        if (
            self._again
            and (event.attempts or event.moved)
            and self._failures.pop(_failures_of(event), None) is not None
        ):
            self._forgotten.add(_failures_of(event))

    def write(self, failed: dict[int, Outcome]) -> None:
        """Write all changes into the transaction, and remove the failed events from the inbox."""
        refused = [event.arrival for event in self._events if id(event) in failed]
        if refused:
            self._tx.refuse(refused)
        ttl = self._stream.ttl_seconds
        expires_at = None if ttl is None else self._now + ttl
        changed = {key: state.saved(expires_at) for key, state in self._states.items() if state.dirty}
        changed |= {name: Saved(failures.data()) for name, failures in self._failures.items()}
        changed |= dict.fromkeys(self._forgotten)
        changed |= self._own
        if changed:
            self._tx.save(changed)
        if self._emitted:
            self._tx.emit(self._emitted)


@dataclass(frozen=True, slots=True)
class _Failures:
    """Failure count of an event, with the delivery number of the last failure. If the event becomes dead in the retry
    queue, `error` is the error of its last failure."""

    count: int
    error: str = ""
    delivery: int = NO_DELIVERY

    @classmethod
    def read(cls, data: bytes) -> "_Failures":
        counted, _, error = data.decode().partition(" ")
        count, _, delivery = counted.partition("/")
        return cls(int(count), error, int(delivery or NO_DELIVERY))

    def data(self) -> bytes:
        return f"{self.count}/{self.delivery} {self.error}".rstrip().encode()


def _failures_of(event: StreamEvent) -> str:
    return f"{FAILED}{event.event_id}/{event.replays}"


def clean(text: str) -> str:
    """Remove the characters that no store accepts."""
    return text.replace("\x00", "").encode(errors="replace").decode()


def is_users(key: str) -> bool:
    """Return True if a state key belongs to a user's key or window, and not to the stream itself. `window_of`
    recognises the names of windows."""
    return not key.startswith((FAILED, WATERMARK, SESSIONS))


def unexpired(saved: Saved, now: float) -> Saved | None:
    """Return the state, or None if the state has expired."""
    return None if saved.expired(now) else saved
