"""The protocol, for one part: one transaction holds the inbox, the state and the emitted events.

    1  the part is ours, by the driver's epoch and the task's token
    2  the events that the inbox doesn't hold are entered
    3  their handlers run, in order; what a failed one did is dropped, and it is taken out of the inbox again
    4  changed state and emitted events are written
    5  commit

Only after that is anything acknowledged, and only what is in the inbox. No Spark here, and no source.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.errors import on_record
from penstock.lifecycle import Dead, Outcome, Published, Retry
from penstock.streams.app import Stream
from penstock.streams.context import Context, KeyState
from penstock.streams.event import StreamEvent
from penstock.streams.state.base import Part, PartTransaction, Saved

# Beside the state of keys stands how often an event has failed. Its source also counts when a process died with it,
# which is no failure of its own.
FAILED = "\x01failed/"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of an event: applied now or before (Published), to be tried again, or dead."""

    event: StreamEvent
    outcome: Outcome


def run_part(part: Part, stream: Stream, events: Sequence[StreamEvent], now: float) -> list[Result]:
    """Process a part's events, in one transaction. Events that were processed before are only acknowledged again."""
    with part.transaction() as tx:
        fresh = _fresh(tx, events)
        work = _Work(stream, tx, [event for event, is_new in zip(events, fresh, strict=True) if is_new], now)
        failed = work.run()
        work.write(failed)
    return [Result(event, failed.get(id(event), Published())) for event in events]


def _fresh(tx: PartTransaction, events: Sequence[StreamEvent]) -> list[bool]:
    """For each event whether it is new. Of one that comes twice in a batch, the first counts."""
    unknown = tx.fresh([event.arrival for event in events if event.position is None])
    lines = {event.position.line for event in events if event.position is not None}
    reached = dict(tx.reached(lines)) if lines else {}
    told: list[bool] = []
    for event in events:
        if event.position is None:
            told.append(event.arrival in unknown)
            unknown.discard(event.arrival)
        else:
            told.append(event.position.offset > reached.get(event.position.line, -1))
            reached[event.position.line] = max(event.position.offset, reached.get(event.position.line, -1))
    if lines:
        tx.advance({line: reached[line] for line in lines})
    return told


class _Work:
    """The handlers of one transaction, with the state of their keys."""

    def __init__(self, stream: Stream, tx: PartTransaction, events: list[StreamEvent], now: float) -> None:
        self._stream = stream
        self._tx = tx
        self._events = events
        self._now = now
        again = {FAILED + _name(event) for event in events if event.attempts}
        saved = tx.load({event.key for event in events} | again) if events else {}
        self._failures = {name: int(saved[name].data) for name in again & saved.keys()}
        self._forgotten: set[str] = set()
        self._states = {key: KeyState(_unexpired(one, now)) for key, one in saved.items() if not key.startswith(FAILED)}
        self._emitted: list[Context] = []

    def run(self) -> dict[int, Outcome]:
        """The outcomes of those that failed, by the event's identity."""
        failed: dict[int, Outcome] = {}
        handler, states, emitted = self._stream.handler, self._states, self._emitted
        for event in self._events:
            state = states.get(event.key)
            if state is None:
                state = states[event.key] = KeyState()
            context = Context(event.key, state)
            try:
                handler(event, context)
                state.check()
            except Exception as error:
                state.undo()
                failed[id(event)] = self._failure(event, error)
            else:
                state.settle()
                self._forget(event)
                if context.emitted:
                    emitted.append(context)
        return failed

    def _failure(self, event: StreamEvent, error: Exception) -> Outcome:
        told = on_record(error)
        before = self._failures.get(FAILED + _name(event), 0)
        if before >= self._stream.max_retries:
            self._forget(event)
            return Dead(told)
        self._failures[FAILED + _name(event)] = before + 1
        return Retry(told, self._stream.retry_seconds * 2**before)

    def _forget(self, event: StreamEvent) -> None:
        """It is done with, one way or the other: how often it failed matters no more."""
        if event.attempts and self._failures.pop(FAILED + _name(event), None) is not None:
            self._forgotten.add(FAILED + _name(event))

    def write(self, failed: dict[int, Outcome]) -> None:
        refused = [event.arrival for event in self._events if id(event) in failed and event.position is None]
        if refused:
            self._tx.refuse(refused)
        ttl = self._stream.ttl_seconds
        expires_at = None if ttl is None else self._now + ttl
        changed = {key: state.saved(expires_at) for key, state in self._states.items() if state.dirty}
        changed |= {name: Saved(str(count).encode()) for name, count in self._failures.items()}
        changed |= dict.fromkeys(self._forgotten)
        if changed:
            self._tx.save(changed)
        emitted = [event for context in self._emitted for event in context.emitted]
        if emitted:
            self._tx.emit(emitted)


def _name(event: StreamEvent) -> str:
    return f"{event.event_id}/{event.replays}"


def is_users(key: str) -> bool:
    """Whether a key of the state is a user's, and not one of the stream's own."""
    return not key.startswith(FAILED)


def _unexpired(saved: Saved, now: float) -> Saved | None:
    return None if saved.expires_at is not None and saved.expires_at <= now else saved
