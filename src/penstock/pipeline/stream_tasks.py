"""A stream's work on the executors: which part a row belongs to, and the transaction of each part.

State stores and the outbox open once per worker process, lazily. What travels is the stream itself, a small value with
the user's functions.
"""

import gc
import json
import pickle
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import NAMESPACE_OID, UUID, uuid4, uuid5

from penstock import telemetry
from penstock.errors import PenstockError, PipelineError, StoreConflict, StoreError, StoreUnavailable, brief
from penstock.event import DEFAULT_QUEUE, NO_HEADERS
from penstock.lifecycle import PUBLISHED, Outcome
from penstock.pipeline.stores import store_of
from penstock.pipeline.stream_sources import COLUMNS
from penstock.store.base import Lease, LeaseId, Token
from penstock.store.base import Part as StagedPart
from penstock.streams.app import Stream
from penstock.streams.clocks import Lull
from penstock.streams.engine import Verdict
from penstock.streams.event import StreamEvent
from penstock.streams.state import open_state
from penstock.streams.state.base import Arrival, Fenced, Part, Position, Started, StateStore, Superseded
from penstock.streams.tables import HandlerFailed, in_order, is_plain, run_table
from penstock.streams.turns import USUAL, Firing, take_turn

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Table

# Between Spark and Python headers are JSON: Arrow's maps take so long to write that it grows with the square of their
# number where they are empty.
WIRE = {**COLUMNS, "headers": "STRING"}
KEYING = ("stream_key", "key_error")
ROWS = "part INT, stream_key STRING, key_error STRING, " + ", ".join(f"{name} {kind}" for name, kind in WIRE.items())
OUTCOMES = (
    "seq BIGINT, lease STRING, token STRING, outcome STRING, error STRING, delay_seconds DOUBLE, "
    "part INT, event_id STRING, replays INT, turn STRING"
)
PUBLISHED_WORD = type(PUBLISHED).__name__.upper()
# Beside the outcomes of its events, what a part of a stream with timers tells of its time.
TURN = "TURN"
# How many events are in the state of which nobody is told one by one.
UNTOLD = "UNTOLD"
# An event that is listed only; its line and offset stand where else a part tells of its time.
LISTED = "LISTED"
# An event without a key has a part all the same: that it failed is kept there.
PART_WITHOUT_KEY = 0
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Batches = Iterator["RecordBatch"]
# So many more things than before, so many times, until the young, the older and the oldest are searched for garbage.
COLLECTING = (100_000, 20, 100)


# What the errand of each job says anew; and the property of a job by which its tasks learn it.
ORDERED = ("started", "acknowledged", "parts", "only", "condemned", "firing", "topics", "listing")
ORDER = "penstock.order"


class Trouble(StrEnum):
    """What a task says of a part instead of outcomes."""

    SUPERSEDED = "SUPERSEDED"
    """Another driver has started the stream."""
    WAITING = "WAITING"
    """Its state or the outbox can't be reached, or another task has it: try it again."""
    BROKEN = "BROKEN"
    """Trying again won't help."""


@dataclass(frozen=True, slots=True)
class Errand:
    """All that a task needs to know."""

    stream: Stream
    started: Started
    store: str
    state: str
    tells: bool = False
    """Whether the source is to hear of events one by one, also without a lease."""
    acknowledged: Mapping[int, Sequence[Arrival]] = field(default_factory=dict)
    """By part, what the source has the acknowledgement of: the inbox may forget it."""
    parts: frozenset[int] | None = None
    """Only these parts; the others are done."""
    only: frozenset[Arrival] | None = None
    """Only these events."""
    condemned: Mapping[Arrival, Verdict] = field(default_factory=dict)
    firing: Firing = USUAL
    lulls: Mapping[int, Lull] = field(default_factory=dict)
    """Parts whose time moves on without events."""
    topics: Mapping[str, str] | None = None
    """By the names of topics, what their lines are called; None: as they came."""
    listing: bool = False
    """Nothing is done: which events there are is told."""

    def order(self) -> str:
        """What of it differs from job to job, as a text."""
        return b64encode(pickle.dumps({name: getattr(self, name) for name in ORDERED})).decode()

    def ordered(self, text: str) -> "Errand":
        """It, with what the order for a job says."""
        return replace(self, **pickle.loads(b64decode(text)))  # noqa: S301


def assign(errand: Errand) -> Callable[[Batches], Batches]:
    """Adds to each row its key and the part that belongs to. A key that can't be had fails its own event only."""

    def run(batches: Batches) -> Batches:
        import pyarrow as pa

        for batch in batches:
            keyed = [_keyed(errand, event) for event in _events(batch, [""] * batch.num_rows)]
            parts = pa.array([part for part, _, _ in keyed], pa.int32())
            keys = pa.array([key for _, key, _ in keyed], pa.string())
            errors = pa.array([error for _, _, error in keyed], pa.string())
            columns = [batch.column(name) for name in COLUMNS]
            yield pa.RecordBatch.from_arrays([parts, keys, errors, *columns], names=["part", *KEYING, *COLUMNS])

    return run


def _keyed(errand: Errand, event: StreamEvent) -> tuple[int, str, str | None]:
    try:
        key = errand.stream.key_of(event)
        key.encode()
        if "\x00" in key:
            raise ValueError("a key can't contain a NUL character")
    except Exception as error:
        return PART_WITHOUT_KEY, "", f"its key can't be told: {brief(error)}"
    return errand.stream.part_of(key, errand.started.parts), key, None


def key_error(errand: Errand, event: StreamEvent) -> str | None:
    """Why an event has no key."""
    return _keyed(errand, event)[2]


def _events(batch: "RecordBatch | Table", keys: Sequence[str]) -> list[StreamEvent]:
    columns = {name: _values(batch, name) for name in COLUMNS if name not in ("seq", "token", "created_at")}
    fields = zip(
        columns["event_id"],
        keys,
        columns["payload"],
        columns["event_type"],
        [json.loads(text) if text else NO_HEADERS for text in columns["headers"]],
        _moments(batch, "created_at"),
        columns["replays"],
        columns["attempts"],
        columns["partition_key"],
        columns["ordering_key"],
        _positions(columns["line"], columns["offset"]),
        [lease is not None for lease in columns["lease"]],
        strict=True,
    )
    return list(map(_new_event, fields))


def _positions(lines: list[str | None], offsets: list[int | None]) -> list[Position | None]:
    placed = map(_new_position, zip(lines, offsets, strict=True))
    return [None if one[0] is None else one for one in placed]


def _moments(batch: "RecordBatch | Table", name: str) -> list[datetime | None]:
    """Times, made by hand: Arrow takes twenty times as long for each that has a time zone."""
    import pyarrow as pa

    micros: list[int | None] = batch.column(name).cast(pa.int64()).to_pylist()
    return [None if one is None else EPOCH + timedelta(microseconds=one) for one in micros]


def process(errand: Errand) -> Callable[[Batches], Batches]:
    """Runs the transaction of each part among the rows, and tells what became of every event."""

    def run(batches: Batches) -> Batches:
        told = _ordered(errand)
        with _rarely_collecting():
            for number, rows in _by_part(told, batches):
                yield from [_listed(number, rows)] if told.listing else _outcomes(told, number, rows)

    return run


def _ordered(errand: Errand) -> Errand:
    """The errand with the order of this job, if it has one: it may have been planned before there was a batch."""
    from pyspark import TaskContext

    context = TaskContext.get()
    text = None if context is None else context.getLocalProperty(ORDER)
    return errand if text is None else errand.ordered(text)


def tick(errand: Errand) -> Callable[[Batches], Batches]:
    """Gives a turn, without events, to those of the parts in the rows that the errand is about."""

    def run(batches: Batches) -> Batches:
        for batch in batches:
            for number in _values(batch, "part"):
                if errand.parts is None or number in errand.parts:
                    yield from _outcomes(errand, number, None)

    return run


@contextmanager
def _rarely_collecting() -> Iterator[None]:
    """Let Python look for garbage less often: it does so whenever many small things were made, and rows are many small
    things of which not one is garbage. It would take a third of the time."""
    before = gc.get_threshold()
    gc.set_threshold(*COLLECTING)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _by_part(errand: Errand, batches: Batches) -> "Iterator[tuple[int, Table]]":
    import pyarrow as pa
    import pyarrow.compute as pc

    given = list(batches)
    if not given:
        return
    rows = _named(errand, _chosen(errand, pa.Table.from_batches(given)))
    numbers = sorted(rows.column("part").unique().to_pylist())
    for number in numbers:
        yield number, rows if len(numbers) == 1 else rows.filter(pc.equal(rows.column("part"), number))


def _named(errand: Errand, rows: "Table") -> "Table":
    """With the lines of topics called as they are known."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if errand.topics is None:
        return rows
    lines = rows.column("line").unique()
    called: list[str | None] = []
    for line in lines.to_pylist():
        topic, _, partition = ("", "", "") if line is None else line.partition("/")
        if line is not None and topic not in errand.topics:
            raise PipelineError(f"Kafka has no topic any more that records were read of: {topic}")
        called.append(None if line is None else f"{errand.topics[topic]}/{partition}")
    names = pa.array(called, pa.string()).take(pc.index_in(rows.column("line"), value_set=lines).combine_chunks())
    return rows.set_column(rows.schema.get_field_index("line"), "line", names)


def _chosen(errand: Errand, rows: "Table") -> "Table":
    import pyarrow as pa

    if errand.parts is None and errand.only is None:
        return rows
    parts, ids, replays = (_values(rows, name) for name in ("part", "event_id", "replays"))
    wanted = [
        (errand.parts is None or part in errand.parts) and (errand.only is None or arrival in errand.only)
        for part, arrival in zip(parts, map(Arrival, ids, replays), strict=True)
    ]
    return rows.filter(pa.array(wanted, pa.bool_()))


class _Row(NamedTuple):
    place: tuple[str, int, int]
    """Rows are processed in this order."""
    key_error: str | None
    seq: int
    lease: str | None
    token: str | None
    event: StreamEvent


class _Told(NamedTuple):
    """What the driver hears: of an event, or of a part that came to nothing."""

    outcome: str
    error: str | None
    row: _Row | None = None
    delay_seconds: float | None = None
    turn: str | None = None


def _rows(errand: Errand, table: "Table") -> list[_Row]:
    """In the order in which they are processed."""
    columns = {name: _values(table, name) for name in (*KEYING, "line", "offset", "seq", "lease", "token")}
    events = _events(table, [key or "" for key in columns["stream_key"]])
    errors, seqs = columns["key_error"], columns["seq"]
    if None in columns["stream_key"]:  # why, Spark doesn't say
        errors = [None if event.key else key_error(errand, event) for event in events]
    lines, offsets = [line or "" for line in columns["line"]], [offset or 0 for offset in columns["offset"]]
    places = zip(lines, offsets, seqs, strict=True)
    made = map(_new_row, zip(places, errors, seqs, columns["lease"], columns["token"], events, strict=True))
    return sorted(made, key=_place)


def _values(batch: "RecordBatch | Table", name: str) -> list[Any]:
    return batch.column(name).to_pylist()


# What is made for each event is made without a call of Python's.
_new_event: Callable[[tuple[Any, ...]], StreamEvent] = partial(tuple.__new__, StreamEvent)
_new_position: Callable[[tuple[Any, ...]], Position] = partial(tuple.__new__, Position)
_new_row: Callable[[tuple[Any, ...]], _Row] = partial(tuple.__new__, _Row)
_place = itemgetter(0)


def _outcomes(errand: Errand, number: int, rows: "Table | None") -> "list[RecordBatch]":
    try:
        with _held(errand, rows):
            return _process_part(errand, number, rows)
    except Superseded as error:
        told = _Told(Trouble.SUPERSEDED, str(error))
    except (Fenced, StoreConflict, StoreUnavailable) as error:
        told = _Told(Trouble.WAITING, brief(error))
    except PenstockError as error:
        told = _Told(Trouble.BROKEN, brief(error))
    return [_told(number, [told])]


def _process_part(errand: Errand, number: int, rows: "Table | None") -> "list[RecordBatch]":
    part = _state(errand.state).open_part(errand.started, number)
    try:
        part.trim(errand.acknowledged.get(number, ()))
        told = None if rows is None else _as_a_table(errand, number, part, rows)
        if told is None:
            told = [_told(number, _one_by_one(errand, number, part, [] if rows is None else _rows(errand, rows)))]
        _send(errand, number, part)
    finally:
        part.close()
    return told


def _as_a_table(errand: Errand, number: int, part: Part, rows: "Table") -> "list[RecordBatch] | None":
    """What became of the events of a batch handler; None if they have to be looked at one by one."""
    if errand.stream.batch is None or errand.condemned or not is_plain(rows):
        return None
    ordered = in_order(rows)
    try:
        with part.transaction() as tx:
            run_table(tx, errand.stream, ordered, time.time())
    except HandlerFailed:
        return None
    return _all_published(errand, number, ordered)


def _one_by_one(errand: Errand, number: int, part: Part, rows: list[_Row]) -> list[_Told]:
    unkeyed = {row.event.arrival: Verdict(row.key_error) for row in rows if row.key_error is not None}
    firing = replace(errand.firing, lull=errand.lulls.get(number))
    condemned = {**unkeyed, **errand.condemned}
    events = [row.event for row in rows]
    results, turn = take_turn(part, errand.stream, events, time.time(), condemned, firing)
    outcomes = zip(rows, results, strict=True)
    told = [_tell(row, result.outcome) for row, result in outcomes if errand.tells or row.lease is not None]
    if len(told) < len(rows):
        told.append(_Told(UNTOLD, str(len(rows) - len(told))))
    return told if turn is None else [*told, _Told(TURN, None, turn=turn.text())]


def _tell(row: _Row, outcome: Outcome) -> _Told:
    error, delay = getattr(outcome, "error", None), getattr(outcome, "delay_seconds", None)
    return _Told(type(outcome).__name__.upper(), error, row, delay)


@contextmanager
def _held(errand: Errand, rows: "Table | None") -> Iterator[None]:
    """Keep the leases of these rows for as long as their handlers take."""
    named: set[tuple[str, str]] = set()
    if rows is not None and rows.column("lease").null_count < rows.num_rows:
        pairs = zip(_values(rows, "lease"), _values(rows, "token"), strict=True)
        named = {(lease, token) for lease, token in pairs if lease is not None}
    seconds = errand.stream.lease_seconds
    leases = [Lease(LeaseId(UUID(lease)), Token(UUID(token)), DEFAULT_QUEUE, seconds) for lease, token in named]
    if not leases:
        yield
        return
    done = threading.Event()
    keeping = threading.Thread(target=_keep, args=(errand, leases, done), daemon=True)
    keeping.start()
    try:
        yield
    finally:
        done.set()
        keeping.join()


def _keep(errand: Errand, leases: list[Lease], done: threading.Event) -> None:
    while leases and not done.wait(errand.stream.lease_seconds / 3):
        try:
            leases = store_of(errand.store).extend(leases)
        except StoreError as error:
            telemetry.warn("leases can't be extended yet", stream=errand.stream.name, error=brief(error))


def _send(errand: Errand, number: int, part: Part) -> None:
    """Put what was emitted into the outbox, which takes each numbered batch once, however often it comes."""
    write_id = uuid5(NAMESPACE_OID, f"{errand.started.identity}/{errand.stream.name}/{number}")
    store = store_of(errand.store)
    for outgoing in part.outgoing():
        staged = StagedPart(UUID(int=uuid4().int), write_id, outgoing.batch)
        store.stage(staged, outgoing.events)
        store.commit_staged(write_id, outgoing.batch, {staged.part_id: len(outgoing.events)}, once=True)
        part.sent(outgoing.batch)


def _told(number: int, told: list[_Told]) -> "RecordBatch":
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


def _all_published(errand: Errand, number: int, rows: "Table") -> "list[RecordBatch]":
    """The same as `_told` for events that all succeeded."""
    import pyarrow as pa

    heard = rows if errand.tells else rows.filter(rows.column("lease").is_valid())
    untold = rows.num_rows - heard.num_rows
    told = [_told(number, [_Told(UNTOLD, str(untold))])] if untold else []
    if heard.num_rows:
        count, schema = heard.num_rows, _told(number, []).schema
        same = {"outcome": PUBLISHED_WORD, "part": number, "error": None, "delay_seconds": None, "turn": None}
        columns = [
            pa.repeat(pa.scalar(same[field.name], field.type), count)
            if field.name in same
            else heard.column(field.name).cast(field.type)
            for field in schema
        ]
        told += pa.table(columns, schema=schema).to_batches()
    return told


def _listed(number: int, rows: "Table") -> "RecordBatch":
    import pyarrow as pa

    columns = [_values(rows, name) for name in ("seq", "lease", "token", "event_id", "replays", "line", "offset")]
    events = [
        {"seq": seq, "lease": lease, "token": token, "event_id": event_id, "replays": replays, "part": number}
        | {"outcome": LISTED, "turn": json.dumps([line, offset])}
        for seq, lease, token, event_id, replays, line, offset in zip(*columns, strict=True)
    ]
    return pa.RecordBatch.from_pylist(events, schema=_told(number, []).schema)


_states: dict[str, StateStore] = {}


def _state(url: str) -> StateStore:
    if url not in _states:
        _states[url] = open_state(url)
    return _states[url]
