"""A stream's work on the executors: which part a row belongs to, and the transaction of each part.

State stores and the outbox open once per worker process, lazily. What travels is the stream itself, a small value with
the user's functions.
"""

import gc
import json
import threading
import time
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
from penstock.errors import PenstockError, StoreConflict, StoreError, StoreUnavailable, brief
from penstock.event import DEFAULT_QUEUE, NO_HEADERS
from penstock.lifecycle import Outcome
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
from penstock.streams.turns import USUAL, Firing, take_turn

if TYPE_CHECKING:
    from pyarrow import RecordBatch

# Between Spark and Python headers are JSON: Arrow's maps take so long to write that it grows with the square of their
# number where they are empty.
WIRE = {**COLUMNS, "headers": "STRING"}
KEYING = ("stream_key", "key_error")
ROWS = "part INT, stream_key STRING, key_error STRING, " + ", ".join(f"{name} {kind}" for name, kind in WIRE.items())
OUTCOMES = (
    "seq BIGINT, lease STRING, token STRING, outcome STRING, error STRING, delay_seconds DOUBLE, "
    "part INT, event_id STRING, replays INT, turn STRING"
)
# Beside the outcomes of its events, what a part of a stream with timers tells of its time.
TURN = "TURN"
# An event without a key has a part all the same: that it failed is kept there.
PART_WITHOUT_KEY = 0
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Batches = Iterator["RecordBatch"]
# So many more things than before, so many times, until the young, the older and the oldest are searched for garbage.
COLLECTING = (100_000, 20, 100)


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


def _events(batch: "RecordBatch", keys: Sequence[str]) -> list[StreamEvent]:
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


def _moments(batch: "RecordBatch", name: str) -> list[datetime | None]:
    """Times, made by hand: Arrow takes twenty times as long for each that has a time zone."""
    import pyarrow as pa

    micros: list[int | None] = batch.column(name).cast(pa.int64()).to_pylist()
    return [None if one is None else EPOCH + timedelta(microseconds=one) for one in micros]


def process(errand: Errand) -> Callable[[Batches], Batches]:
    """Runs the transaction of each part among the rows, and tells what became of every event."""

    def run(batches: Batches) -> Batches:
        with _rarely_collecting():
            for number, rows in sorted(_by_part(errand, batches).items()):
                rows.sort(key=_place)
                yield _told(number, _outcomes(errand, number, rows))

    return run


def tick(errand: Errand) -> Callable[[Batches], Batches]:
    """Gives a turn, without events, to those of the parts in the rows that the errand is about."""

    def run(batches: Batches) -> Batches:
        for batch in batches:
            for number in _values(batch, "part"):
                if errand.parts is None or number in errand.parts:
                    yield _told(number, _outcomes(errand, number, []))

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


def _by_part(errand: Errand, batches: Batches) -> dict[int, list["_Row"]]:
    by_part: dict[int, list[_Row]] = {}
    for batch in (_chosen(errand, rows) for rows in batches):
        for number, row in zip(_values(batch, "part"), _rows(errand, batch), strict=True):
            by_part.setdefault(number, []).append(row)
    return by_part


def _chosen(errand: Errand, rows: "RecordBatch") -> "RecordBatch":
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


def _rows(errand: Errand, batch: "RecordBatch") -> Iterator[_Row]:
    columns = {name: _values(batch, name) for name in (*KEYING, "line", "offset", "seq", "lease", "token")}
    events = _events(batch, [key or "" for key in columns["stream_key"]])
    errors, seqs = columns["key_error"], columns["seq"]
    if None in columns["stream_key"]:  # why, Spark doesn't say
        errors = [None if event.key else _keyed(errand, event)[2] for event in events]
    lines, offsets = [line or "" for line in columns["line"]], [offset or 0 for offset in columns["offset"]]
    places = zip(lines, offsets, seqs, strict=True)
    return map(_new_row, zip(places, errors, seqs, columns["lease"], columns["token"], events, strict=True))


def _values(batch: "RecordBatch", name: str) -> list[Any]:
    return batch.column(name).to_pylist()


# What is made for each event is made without a call of Python's.
_new_event: Callable[[tuple[Any, ...]], StreamEvent] = partial(tuple.__new__, StreamEvent)
_new_position: Callable[[tuple[Any, ...]], Position] = partial(tuple.__new__, Position)
_new_row: Callable[[tuple[Any, ...]], _Row] = partial(tuple.__new__, _Row)
_place = itemgetter(0)


def _outcomes(errand: Errand, number: int, rows: list[_Row]) -> list[_Told]:
    try:
        with _held(errand, rows):
            return _process_part(errand, number, rows)
    except Superseded as error:
        return [_Told(Trouble.SUPERSEDED, str(error))]
    except (Fenced, StoreConflict, StoreUnavailable) as error:
        return [_Told(Trouble.WAITING, brief(error))]
    except PenstockError as error:
        return [_Told(Trouble.BROKEN, brief(error))]


def _process_part(errand: Errand, number: int, rows: list[_Row]) -> list[_Told]:
    unkeyed = {row.event.arrival: Verdict(row.key_error) for row in rows if row.key_error is not None}
    part = _state(errand.state).open_part(errand.started, number)
    try:
        part.trim(errand.acknowledged.get(number, ()))
        events = [row.event for row in rows]
        firing = replace(errand.firing, lull=errand.lulls.get(number))
        condemned = {**unkeyed, **errand.condemned}
        results, turn = take_turn(part, errand.stream, events, time.time(), condemned, firing)
        _send(errand, number, part)
    finally:
        part.close()
    outcomes = zip(rows, results, strict=True)
    told = [_tell(row, result.outcome) for row, result in outcomes if errand.tells or row.lease is not None]
    return told if turn is None else [*told, _Told(TURN, None, turn=turn.text())]


def _tell(row: _Row, outcome: Outcome) -> _Told:
    error, delay = getattr(outcome, "error", None), getattr(outcome, "delay_seconds", None)
    return _Told(type(outcome).__name__.upper(), error, row, delay)


@contextmanager
def _held(errand: Errand, rows: list[_Row]) -> Iterator[None]:
    """Keep the leases of these rows for as long as their handlers take."""
    named = {(row.lease, row.token) for row in rows if row.lease is not None}
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


_states: dict[str, StateStore] = {}


def _state(url: str) -> StateStore:
    if url not in _states:
        _states[url] = open_state(url)
    return _states[url]
