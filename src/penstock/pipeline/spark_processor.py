"""What `transformWithState` runs for each key of a micro-batch: a stream's handler, by the same protocol as elsewhere.

To the protocol a key is a part of its own, whose transaction is Spark's: all of a batch or nothing is in its state.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from penstock.event import NO_HEADERS, Event
from penstock.lifecycle import Outcome
from penstock.pipeline.spark_state import EMITTED
from penstock.pipeline.stream_errands import Errand, key_error
from penstock.pipeline.stream_rows import EPOCH
from penstock.streams.columns import values
from penstock.streams.engine import Verdict, is_users, run_part
from penstock.streams.event import StreamEvent, decode_json
from penstock.streams.state.base import Arrival, Lines, Outgoing, Position, Saved, Timer, states_in, text_of
from penstock.streams.state.packing import pack_event

if TYPE_CHECKING:
    from pyarrow import StringArray
    from pyspark.sql import Row

FIELDS = "seq", "lease", "token", "outcome", "error", "delay_seconds", "part", "event_id", "replays", "event"


class HandlerProcessor(StatefulProcessor):
    """Runs the handler of a stream. `remember_seconds` is for how long the ids of events are known."""

    def __init__(self, errand: Errand, remember_seconds: float) -> None:
        self._errand = errand
        self._remember_ms = int(remember_seconds * 1_000)

    def init(self, handle: StatefulProcessorHandle) -> None:
        ttl = self._errand.stream.ttl_seconds
        forget_ms = None if ttl is None else max(1, int(ttl * 1_000))
        self.state = handle.getValueState("state", "data BINARY, expires_at DOUBLE", forget_ms)
        self.inbox = handle.getMapState("inbox", "event_id STRING, replays INT", "at DOUBLE", self._remember_ms)
        self.failures = handle.getMapState("failures", "name STRING", "data BINARY", self._remember_ms)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> "Iterator[Row]":  # noqa: ARG002, N802, N803
        ordered = sorted(rows, key=lambda row: (row.line or "", row.offset or 0, row.seq))
        events = [_event(row, key[0]) for row in ordered]
        part = KeyPart(self, key[0])
        results = run_part(part, self._errand.stream, events, time.time(), self._verdicts(ordered, events))
        for row, result in zip(ordered, results, strict=True):
            if self._errand.tells or row.lease is not None:
                yield _told(row, result.outcome)
        for event in part.emitted:
            yield _row(outcome=EMITTED, event=pack_event(event))

    def close(self) -> None:
        """Nothing is open."""

    def _verdicts(self, rows: "Sequence[Row]", events: Sequence[StreamEvent]) -> dict[Arrival, Verdict]:
        """Events that have no key fail without their handler."""
        pairs = [(row, event) for row, event in zip(rows, events, strict=True) if not event.key]
        errors = {event.arrival: row.key_error or key_error(self._errand, event) for row, event in pairs}
        return {arrival: Verdict(error) for arrival, error in errors.items() if error is not None}


class KeyPart:
    """The state of one key, as the protocol wants it. What it emits is passed on, and not kept."""

    def __init__(self, processor: HandlerProcessor, key: str) -> None:
        self.emitted: Sequence[Event] = ()
        self._processor = processor
        self._key = key

    @contextmanager
    def transaction(self) -> "Iterator[KeyTransaction]":
        transaction = KeyTransaction(self._processor, self._key)
        yield transaction
        transaction.apply()
        self.emitted = transaction.emitted

    def holds(self, arrivals: Sequence[Arrival]) -> set[Arrival]:
        return {arrival for arrival in arrivals if self._processor.inbox.containsKey(tuple(arrival))}

    def trim(self, arrivals: Sequence[Arrival]) -> None:
        """Nothing: ids are forgotten by their age."""

    def outgoing(self) -> Iterator[Outgoing]:
        return iter(())

    def sent(self, batch: int) -> None:
        """Nothing is kept that could be sent."""

    def close(self) -> None:
        """Nothing is open."""


class KeyTransaction:
    """What a batch does to the state of one key."""

    def __init__(self, processor: HandlerProcessor, key: str) -> None:
        self.emitted: list[Event] = []
        self._processor = processor
        self._key = key
        self._entered: set[Arrival] = set()
        self._changed: dict[str, Saved | None] = {}

    def fresh(self, arrivals: Sequence[Arrival]) -> set[Arrival]:
        wanted = set(arrivals)
        inbox = self._processor.inbox
        known = {one for one in wanted if inbox.containsKey(tuple(one))} if wanted and inbox.exists() else set()
        self._entered |= wanted - known
        return wanted - known

    def refuse(self, arrivals: Sequence[Arrival]) -> None:
        self._entered -= set(arrivals)

    def reached(self, lines: Collection[str]) -> Mapping[str, int]:  # noqa: ARG002
        """Nothing: with the state, Spark's checkpoint holds how far its source is."""
        return {}

    def advance(self, offsets: Mapping[str, int]) -> None:
        """Nothing, for the same reason."""

    def load(self, keys: Collection[str]) -> Mapping[str, Saved]:
        found: dict[str, Saved] = {}
        for key in keys:
            if not is_users(key):
                failures = self._processor.failures.getValue((key,))
                if failures is not None:
                    found[key] = Saved(bytes(failures[0]))
            elif (state := self._processor.state.get()) is not None:
                found[key] = Saved(bytes(state[0]), state[1])
        return found

    def load_lines(self, keys: "StringArray", now: float) -> bytes:
        return text_of(keys, self.load(values(keys)), now)

    def save(self, changed: Mapping[str, Saved | None]) -> None:
        self._changed |= changed

    def due(self, until: float, limit: int) -> Sequence[Timer]:
        raise AssertionError(f"timers are refused with state in Spark: {until}, {limit}")

    def save_lines(self, lines: Lines, expires_at: float | None) -> None:
        self.save(states_in(lines, expires_at))

    def set_timers(self, timers: Mapping[tuple[str, str], float | None]) -> None:
        raise AssertionError(f"timers are refused with state in Spark: {timers}")

    def emit(self, events: Sequence[Event]) -> None:
        self.emitted += events

    def apply(self) -> None:
        """Hand it to Spark, which commits it with the batch."""
        state, failures, now = self._processor.state, self._processor.failures, time.time()
        for arrival in self._entered:
            self._processor.inbox.updateValue(tuple(arrival), (now,))
        for name, saved in self._changed.items():
            match is_users(name), saved:
                case True, None:
                    state.clear()
                case True, Saved(data, expires_at):
                    state.update((data, expires_at))
                case False, None:
                    failures.removeKey((name,))
                case False, Saved(data, _):
                    failures.updateValue((name,), (data,))


def _event(row: "Row", key: str) -> StreamEvent:
    return StreamEvent(
        event_id=row.event_id,
        key=key,
        payload=bytes(row.payload or b""),
        event_type=row.event_type,
        headers=decode_json(row.headers.encode()) if row.headers else NO_HEADERS,
        created_at=None if row.created_micros is None else EPOCH + timedelta(microseconds=row.created_micros),
        replays=row.replays,
        attempts=row.attempts,
        partition_key=row.partition_key,
        ordering_key=row.ordering_key,
        position=None if row.line is None else Position(row.line, row.offset),
        settles=row.lease is not None,
    )


def _told(row: "Row", outcome: Outcome) -> "Row":
    error, delay = getattr(outcome, "error", None), getattr(outcome, "delay_seconds", None)
    return _row(
        **{name: row[name] for name in ("seq", "lease", "token", "event_id", "replays")},
        outcome=type(outcome).__name__.upper(),
        error=error,
        delay_seconds=delay,
        part=0,
    )


def _row(**values: Any) -> "Row":
    from pyspark.sql import Row

    return Row(**{name: values.get(name) for name in FIELDS})
