"""What tasks tell the driver: of each event that somebody waits to hear of, and of parts that came to nothing."""

from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.model.outcome import PUBLISHED, Outcome
from penstock.pipeline.streams.rows import Row
from penstock.pipeline.streams.task_spec import Errand
from penstock.streams.arrow_json import arrow

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Table

OUTCOMES = (
    "seq BIGINT, lease STRING, token STRING, outcome STRING, error STRING, delay_seconds DOUBLE, "
    "part INT, event_id STRING, replays INT, turn STRING"
)
PUBLISHED_WORD = type(PUBLISHED).__name__.upper()
# Beside the outcomes of its events, what a part of a stream with timers tells of its time.
TURN = "TURN"
# How many events are in the state of which nobody is told one by one.
UNTOLD = "UNTOLD"
# An event of which nothing has become yet.
LISTED = "LISTED"


class Trouble(StrEnum):
    """What a task says of a part instead of outcomes."""

    SUPERSEDED = "SUPERSEDED"
    """Another driver has started the stream."""
    WAITING = "WAITING"
    """Its state or the outbox can't be reached, or another task has it: try it again."""
    BROKEN = "BROKEN"
    """Trying again won't help."""


class Told(NamedTuple):
    """What the driver hears: of an event, or of a part that came to nothing."""

    outcome: str
    error: str | None
    row: Row | None = None
    delay_seconds: float | None = None
    turn: str | None = None


def tell(row: Row, outcome: Outcome) -> Told:
    """Of an event."""
    error, delay = getattr(outcome, "error", None), getattr(outcome, "delay_seconds", None)
    return Told(type(outcome).__name__.upper(), error, row, delay)


def told_of(number: int, told: list[Told]) -> "RecordBatch":
    """What there is to tell of a part."""
    import pyarrow as pa

    rows = [one.row for one in told]
    columns: dict[str, Any] = {
        "seq": pa.array([row and row.seq for row in rows], pa.int64()),
        "lease": pa.array([row and row.lease for row in rows], pa.string()),
        "token": pa.array([row and row.token for row in rows], pa.string()),
        "outcome": pa.array([one.outcome for one in told], pa.string()),
        "error": pa.array([one.error for one in told], pa.string()),
        "delay_seconds": pa.array([one.delay_seconds for one in told], pa.float64()),
        "part": pa.array([number] * len(told), pa.int32()),
        "event_id": pa.array([row and row.event.event_id for row in rows], pa.string()),
        "replays": pa.array([row and row.event.replays for row in rows], pa.int32()),
        "turn": pa.array([one.turn for one in told], pa.string()),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def all_published(errand: Errand, number: int, rows: "Table") -> "list[RecordBatch]":
    """The same as `told_of` for events that all succeeded."""
    heard = rows if errand.tells else rows.filter(rows.column("lease").is_valid())
    untold = rows.num_rows - heard.num_rows
    told = [told_of(number, [Told(UNTOLD, str(untold))])] if untold else []
    return told + all_alike(number, heard, PUBLISHED_WORD)


def all_alike(number: int, rows: "Table", outcome: str) -> "list[RecordBatch]":
    """The same of each event, in the order of the rows."""
    pa, _ = arrow()

    schema = told_of(number, []).schema
    same = {"outcome": outcome, "part": number, "error": None, "delay_seconds": None, "turn": None}
    columns = [
        pa.repeat(pa.scalar(same[field.name], field.type), rows.num_rows)
        if field.name in same
        else rows.column(field.name).cast(field.type)
        for field in schema
    ]
    batches: list[RecordBatch] = pa.table(columns, schema=schema).to_batches()
    return batches
