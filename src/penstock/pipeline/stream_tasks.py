"""A stream's work on the executors: which part a row belongs to, and the transaction of each part.

State stores and the outbox open once per worker process, lazily. What travels is the stream itself, a small value with
the user's functions.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_OID, UUID, uuid4, uuid5

from penstock.lifecycle import Dead, Outcome, Retry
from penstock.pipeline.stores import store_of
from penstock.store.base import Part as StagedPart
from penstock.streams.app import Stream
from penstock.streams.engine import Result, run_part
from penstock.streams.event import StreamEvent
from penstock.streams.state import open_state
from penstock.streams.state.base import Arrival, Part, Started, StateStore

if TYPE_CHECKING:
    from pyarrow import RecordBatch

ROWS = (
    "part INT, stream_key STRING, key_error STRING, seq BIGINT, event_id STRING, event_type STRING, payload BINARY, "
    "headers MAP<STRING, STRING>, partition_key STRING, ordering_key STRING, created_at TIMESTAMP, attempts INT, "
    "replays INT, lease STRING, token STRING"
)
OUTCOMES = (
    "seq BIGINT, lease STRING, token STRING, outcome STRING, error STRING, delay_seconds DOUBLE, "
    "part INT, event_id STRING, replays INT"
)
READ = (
    *("seq", "event_id", "event_type", "payload", "headers", "partition_key", "ordering_key", "created_at"),
    *("attempts", "replays", "lease", "token"),
)
NO_PART = -1

Batches = Iterator["RecordBatch"]


@dataclass(frozen=True, slots=True)
class Errand:
    """All that a task needs to know."""

    stream: Stream
    started: Started
    store: str
    state: str
    acknowledged: Mapping[int, Sequence[Arrival]] = field(default_factory=dict)
    """By part, what the source has the acknowledgement of: the inbox may forget it."""


def assign(errand: Errand) -> Callable[[Batches], Batches]:
    """Adds to each row its key and the part that belongs to. A key that can't be had fails its own event only."""

    def run(batches: Batches) -> Batches:
        import pyarrow as pa

        for batch in batches:
            columns = {name: batch.column(name) for name in READ}
            keys = [_keyed(errand, event) for event in _events(columns, batch.num_rows)]
            parts, names, errors = (list(column) for column in zip(*keys, strict=True)) if keys else ([], [], [])
            added: list[Any] = [
                pa.array(parts, pa.int32()),
                pa.array(names, pa.string()),
                pa.array(errors, pa.string()),
            ]
            yield pa.RecordBatch.from_arrays(
                [*added, *columns.values()], names=["part", "stream_key", "key_error", *columns]
            )

    return run


def _keyed(errand: Errand, event: StreamEvent) -> tuple[int, str | None, str | None]:
    try:
        key = str(errand.stream.key(event))
    except Exception as error:
        return NO_PART, None, f"its key can't be told: {type(error).__name__}: {error}"
    return errand.stream.part_of(key, errand.started.parts), key, None


def _events(columns: Mapping[str, Any], count: int) -> Iterator[StreamEvent]:
    lists = {name: column.to_pylist() for name, column in columns.items()}
    for row in range(count):
        yield StreamEvent(
            event_id=lists["event_id"][row],
            key="",
            payload=lists["payload"][row],
            event_type=lists["event_type"][row],
            headers=dict(lists["headers"][row] or ()),
            created_at=lists["created_at"][row],
            replays=lists["replays"][row],
            attempts=lists["attempts"][row],
            partition_key=lists["partition_key"][row],
            ordering_key=lists["ordering_key"][row],
        )


def process(errand: Errand) -> Callable[[Batches], Batches]:
    """Runs the transaction of each part among the rows, and tells what became of every event."""

    def run(batches: Batches) -> Batches:
        by_part: dict[int, list[_Row]] = {}
        for batch in batches:
            for row in _rows(batch):
                by_part.setdefault(row.part, []).append(row)
        for number, rows in sorted(by_part.items()):
            rows.sort(key=lambda row: row.seq)
            yield _told(number, _outcomes(errand, number, rows))

    return run


@dataclass(frozen=True, slots=True)
class _Row:
    part: int
    seq: int
    lease: str
    token: str
    event: StreamEvent
    key_error: str | None


def _rows(batch: "RecordBatch") -> Iterator[_Row]:
    own = ("part", "seq", "lease", "token", "stream_key", "key_error")
    lists: dict[str, list[Any]] = {name: batch.column(name).to_pylist() for name in own}
    events = _events({name: batch.column(name) for name in READ}, batch.num_rows)
    for at, event in enumerate(events):
        part, seq, lease, token, key, error = (lists[name][at] for name in own)
        yield _Row(part, seq, lease, token, replace(event, key=key or ""), error)


def _outcomes(errand: Errand, number: int, rows: list[_Row]) -> list[tuple[_Row, Outcome]]:
    if number == NO_PART:
        return [(row, _unkeyed(errand.stream, row)) for row in rows]
    part = _state(errand.state).open_part(errand.started, number)
    try:
        part.trim(errand.acknowledged.get(number, ()))
        results: list[Result] = run_part(part, errand.stream, [row.event for row in rows], time.time())
        _send(errand, number, part)
    finally:
        part.close()
    return [(row, result.outcome) for row, result in zip(rows, results, strict=True)]


def _unkeyed(stream: Stream, row: _Row) -> Outcome:
    error = row.key_error or "it has no key"
    return Dead(error) if row.event.attempts >= stream.max_retries else Retry(error, stream.retry_seconds)


def _send(errand: Errand, number: int, part: Part) -> None:
    """Put what was emitted into the outbox, which takes each numbered batch once, however often it comes."""
    write_id = uuid5(NAMESPACE_OID, f"{errand.started.identity}/{errand.stream.name}/{number}")
    store = store_of(errand.store)
    for outgoing in part.outgoing():
        staged = StagedPart(UUID(int=uuid4().int), write_id, outgoing.batch)
        store.stage(staged, outgoing.events)
        store.commit_staged(write_id, outgoing.batch, {staged.part_id: len(outgoing.events)}, once=True)
        part.sent(outgoing.batch)


def _told(number: int, outcomes: list[tuple[_Row, Outcome]]) -> "RecordBatch":
    import pyarrow as pa

    names = [type(outcome).__name__.upper() for _, outcome in outcomes]
    columns: dict[str, Any] = {
        "seq": pa.array([row.seq for row, _ in outcomes], pa.int64()),
        "lease": pa.array([row.lease for row, _ in outcomes], pa.string()),
        "token": pa.array([row.token for row, _ in outcomes], pa.string()),
        "outcome": pa.array(names, pa.string()),
        "error": pa.array([getattr(outcome, "error", None) for _, outcome in outcomes], pa.string()),
        "delay_seconds": pa.array([getattr(outcome, "delay_seconds", None) for _, outcome in outcomes], pa.float64()),
        "part": pa.array([number] * len(outcomes), pa.int32()),
        "event_id": pa.array([row.event.event_id for row, _ in outcomes], pa.string()),
        "replays": pa.array([row.event.replays for row, _ in outcomes], pa.int32()),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


_states: dict[str, StateStore] = {}


def _state(url: str) -> StateStore:
    if url not in _states:
        _states[url] = open_state(url)
    return _states[url]
