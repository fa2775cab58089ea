"""`format("penstock")` as a sink: rows of a DataFrame become events. A write is atomic if the store supports staging.
Otherwise a batch write emits task by task, at least once, and a streaming write is refused.

Each task attempt stages its rows under a unique random id. The driver's commit moves the rows of the successful
attempts into the outbox, in one transaction. A stream's commit also records the batch in that transaction, so that a
batch that Spark runs again is recognised. Ids made from partitions and row numbers would not work: both change with the
number of cores.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.model.errors import InvalidEvent, UsageError
from penstock.model.event import DEFAULT_QUEUE, Event, EventId, encode_payload
from penstock.runtime.store_cache import store_of
from penstock.store.api import StagedPart, require_staging

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

_WHOLE = ("tinyint", "smallint", "int", "bigint")
_NUMBER = (*_WHOLE, "float", "double", "decimal")

# Columns of a DataFrame that is written, and the permitted Spark types of each.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "event_type": ("string",),
    "payload": ("binary", "string"),
    "queue": ("string",),
    "headers": ("map<string,string>",),
    "partition_key": ("string",),
    "ordering_key": ("string",),
    "priority": _WHOLE,
    "available_at": ("timestamp",),
    "delay_seconds": _NUMBER,
    "max_attempts": _WHOLE,
    "dedupe_key": ("string",),
    "dedupe_seconds": _NUMBER,
    "event_id": ("string",),
}


@dataclass(frozen=True, slots=True)
class Target:
    """Store of a write, and the queue and type of rows without a value for them."""

    store: str
    queue: str = DEFAULT_QUEUE
    event_type: str | None = None


@dataclass(frozen=True)
class StagedRows(WriterCommitMessage):
    """Commit message of a task to the driver: the write, the part that the task staged, and the part's row count."""

    write_id: UUID
    part_id: UUID
    count: int


def check(schema: "StructType", target: Target, *, overwrite: bool) -> None:
    """Raise UsageError, before any task runs, if rows of this schema cannot be written or `overwrite` is set."""
    if overwrite:
        raise UsageError('events cannot be overwritten; use mode("append"), or outputMode("append") for a stream')
    names = [field.name.lower() for field in schema.fields]
    unknown = [field.name for field in schema.fields if field.name.lower() not in COLUMNS]
    if unknown:
        raise UsageError(f"unknown columns: {', '.join(unknown)}; supported: {', '.join(COLUMNS)}")
    missing = {"payload", *(() if target.event_type else ("event_type",))} - set(names)
    if missing:
        hint = ' (or the option "event_type")' if "event_type" in missing else ""
        raise UsageError(f"missing columns: {', '.join(sorted(missing))}{hint}")
    if len(set(names)) < len(names):
        raise UsageError(f"columns must be unique, got {', '.join(names)}")
    for field in schema.fields:
        kind, kinds = field.dataType.simpleString(), COLUMNS[field.name.lower()]
        if kind.partition("(")[0] not in kinds:
            raise UsageError(f"column {field.name} must be {' or '.join(kinds)}, got {kind}")


def batch_writer(target: Target) -> DataSourceArrowWriter:
    """Return the writer of a batch: an atomic one if the store supports staging."""
    return BulkWriter(target) if store_of(target.store).capabilities.staging else AppendingWriter(target)


def stream_writer(target: Target) -> "StreamWriter":
    """Return the writer of a stream; raise `NotSupported` if the store does not support staging."""
    store = store_of(target.store)
    require_staging(store.url, store.capabilities)
    return StreamWriter(target)


class AppendingWriter(DataSourceArrowWriter):
    """Batch writer that emits at least once: each Arrow batch in a separate transaction, visible at once.

    A failed write keeps the events that it has emitted, and a task that Spark runs again emits its rows again.
    """

    def __init__(self, target: Target) -> None:
        self.target = target

    def write(self, iterator: Iterator["RecordBatch"]) -> WriterCommitMessage:  # type: ignore[override]
        store, place, count = store_of(self.target.store), _context().partitionId(), 0
        for batch in iterator:
            count += len(store.append(_events(batch, self.target, place, count)))
        return WriterCommitMessage()


class BulkWriter(DataSourceArrowWriter):
    """Batch writer that emits all rows of a DataFrame atomically."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._write_id = uuid4()

    def write(self, iterator: Iterator["RecordBatch"]) -> StagedRows:  # type: ignore[override]
        return _stage(self.target, StagedPart(uuid4(), self._write_id, place=_context().partitionId()), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        store_of(self.target.store).commit_staged(self._write_id, 0, _parts(messages), once=False)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        store_of(self.target.store).drop_staged(self._write_id)


class StreamWriter(DataSourceStreamArrowWriter):
    """Stream writer that emits each batch of a streaming query exactly once.

    The write is identified by the query id in the checkpoint. Spark makes this id known to the tasks but not to the
    driver's side of a writer, so the tasks' commit messages contain it.
    """

    def __init__(self, target: Target) -> None:
        self.target = target

    def write(self, iterator: Iterator["RecordBatch"]) -> StagedRows:  # type: ignore[override]
        context = _context()
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise UsageError("a stream can be written only in a streaming query; use df.write instead")
        return _stage(self.target, StagedPart(uuid4(), UUID(query), int(batch), context.partitionId()), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        for query in _writes(messages):
            store_of(self.target.store).commit_staged(query, batchId, _parts(messages), once=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Drop the rows staged by these attempts. The query's next commit drops the rows of all other attempts."""
        for query in _writes(messages):
            store_of(self.target.store).drop_staged(query, parts=_parts(messages))


def _stage(target: Target, part: StagedPart, batches: Iterable["RecordBatch"]) -> StagedRows:
    """Stage each Arrow batch in a separate transaction: none stays open while Spark computes the next batch."""
    store, count = store_of(target.store), 0
    for batch in batches:
        count = store.stage(part, _events(batch, target, part.place, count), start=count)
    return StagedRows(part.write_id, part.part_id, count)


def _events(batch: "RecordBatch", target: Target, place: int, start: int) -> list[Event]:
    names = [name.lower() for name in batch.schema.names]
    rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
    events: list[Event] = []
    for number, values in enumerate(rows, start):
        try:
            events.append(_event(dict(zip(names, values, strict=True)), target))
        except InvalidEvent as error:
            raise InvalidEvent(f"{error} (row {number} of partition {place})") from None
    return events


def _event(row: dict[str, Any], target: Target) -> Event:
    """Convert a row to an event. A NULL counts as a missing column; a NULL payload is an error."""
    defaults = {"event_type": target.event_type, "queue": target.queue}
    given: dict[str, Any] = {**defaults, **{name: value for name, value in row.items() if value is not None}}
    if "payload" not in given:
        raise InvalidEvent("payload must not be NULL; use an empty payload instead")
    given["payload"], given["headers"] = encode_payload(given["payload"], dict(given.get("headers", ())))
    for name, convert in (("delay_seconds", float), ("dedupe_seconds", float), ("event_id", _event_id)):
        if name in given:
            given[name] = convert(given[name])
    return Event(**given)


def _event_id(text: str) -> EventId:
    try:
        return EventId(UUID(text))
    except ValueError:
        raise InvalidEvent(f"invalid event id {text!r}; expected a UUID") from None


def _context() -> Any:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "not in a Spark task"
    return context


def _parts(messages: Iterable[WriterCommitMessage | None]) -> dict[UUID, int]:
    return {one.part_id: one.count for one in messages if isinstance(one, StagedRows)}


def _writes(messages: Iterable[WriterCommitMessage | None]) -> set[UUID]:
    """Return the id of the query that the messages come from; empty if no task has staged rows."""
    return {one.write_id for one in messages if isinstance(one, StagedRows)}
