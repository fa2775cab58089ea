"""Results of tasks: of the events that their source settles or acknowledges, and of failed state partitions."""

from enum import StrEnum
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import RecordBatch, Table

from penstock.model.outcome import PUBLISHED, Outcome
from penstock.pipeline.datasource.settle import fields_of
from penstock.pipeline.streams.rows import Row
from penstock.pipeline.streams.task_spec import StreamTaskSpec

OUTCOMES = (
    "seq BIGINT, lease STRING, token STRING, outcome STRING, error STRING, delay_seconds DOUBLE, "
    "part INT, event_id STRING, replays INT, clock STRING"
)
# Outcome of the row with a state partition's clock report; only streams with timers have one.
CLOCK_REPORT = "CLOCK_REPORT"
# Outcome of the row that counts the events without individual results. The column `error` contains the count.
APPLIED_COUNT = "APPLIED_COUNT"
# Outcome of an event that was only listed and not processed.
LISTED = "LISTED"


class TaskError(StrEnum):
    """Reason why a state partition has no outcomes."""

    SUPERSEDED = "SUPERSEDED"
    """Another driver has started the stream."""
    WAITING = "WAITING"
    """The state store or the outbox is unavailable, or another task has opened the state partition: retry."""
    BROKEN = "BROKEN"
    """Any other error: a retry would not help, so the stream ends."""


class TaskResult(NamedTuple):
    """Result of an event or of a state partition."""

    outcome: str
    error: str | None
    row: Row | None = None
    delay_seconds: float | None = None
    clock: str | None = None


def event_result(row: Row, outcome: Outcome) -> TaskResult:
    """Return the result of an event."""
    name, error, delay = fields_of(outcome)
    return TaskResult(name, error, row, delay)


def to_batch(number: int, results: list[TaskResult]) -> RecordBatch:
    """Return the results of a state partition as a record batch."""
    rows = [one.row for one in results]
    columns: dict[str, Any] = {
        "seq": pa.array([row and row.seq for row in rows], pa.int64()),
        "lease": pa.array([row and row.lease for row in rows], pa.string()),
        "token": pa.array([row and row.token for row in rows], pa.string()),
        "outcome": pa.array([one.outcome for one in results], pa.string()),
        "error": pa.array([one.error for one in results], pa.string()),
        "delay_seconds": pa.array([one.delay_seconds for one in results], pa.float64()),
        "part": pa.array([number] * len(results), pa.int32()),
        "event_id": pa.array([row and row.event.event_id for row in rows], pa.string()),
        "replays": pa.array([row and row.event.replays for row in rows], pa.int32()),
        "clock": pa.array([one.clock for one in results], pa.string()),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def all_published(spec: StreamTaskSpec, number: int, rows: Table) -> list[RecordBatch]:
    """Return the results of events that all succeeded. Events that need no individual result are only counted."""
    reported = rows if spec.wants_acknowledgements else rows.filter(rows.column("lease").is_valid())
    unreported = rows.num_rows - reported.num_rows
    results = [to_batch(number, [TaskResult(APPLIED_COUNT, str(unreported))])] if unreported else []
    return results + all_alike(number, reported, fields_of(PUBLISHED)[0])


def all_alike(number: int, rows: Table, outcome: str) -> list[RecordBatch]:
    """Return a result with this outcome for each row, in the order of the rows."""
    schema = to_batch(number, []).schema
    same = {"outcome": outcome, "part": number, "error": None, "delay_seconds": None, "clock": None}
    columns = [
        pa.repeat(pa.scalar(same[field.name], field.type), rows.num_rows)
        if field.name in same
        else rows.column(field.name).cast(field.type)
        for field in schema
    ]
    batches: list[RecordBatch] = pa.table(columns, schema=schema).to_batches()
    return batches
