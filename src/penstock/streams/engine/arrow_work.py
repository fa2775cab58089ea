"""Batch handlers over Arrow tables, without an object for each event.

The commit protocol is the same as in `work`, but only for events on their first delivery. If anything fails, the
transaction is rolled back, and the caller processes the events through `work`, which isolates the failing events.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

from pyarrow import BinaryArray, StringArray, Table

from penstock.streams.app import Stream
from penstock.streams.arrow_json import EMPTY, arrow, from_lines, values, whole
from penstock.streams.context import KeyState
from penstock.streams.engine.batch_handlers import BatchContext, States, in_kind, with_fields
from penstock.streams.engine.work import unexpired
from penstock.streams.event import KEY_HEADER, decode_json
from penstock.streams.state.api import Arrival, PartTransaction, Saved, StateColumns

pa, pc = arrow()

# With more source partitions than this, sort the rows: handling one slice of a table takes longer than sorting a
# hundred rows.
MOST_PIECES = 100


class HandlerFailed(Exception):
    """A handler failed on a table. The transaction must be rolled back."""


def is_plain(rows: Table) -> bool:
    """Return True if all events have a key and none has failed before."""
    if rows.column("stream_key").null_count or rows.column("key_error").null_count < rows.num_rows:
        return False
    if pc.max(rows.column("attempts")).as_py():
        return False
    headers = rows.column("headers")
    return headers.null_count == rows.num_rows or not pc.any(pc.match_substring(headers, KEY_HEADER)).as_py()


def in_order(rows: Table) -> Table:
    """Return the rows sorted by source partition, offset and seq."""
    if (pieces := _partitions_of(rows)) is not None:
        ordered: Table = pa.concat_tables(pieces)
        return ordered
    partition, offset = pc.fill_null(rows.column("source_partition"), ""), pc.fill_null(rows.column("offset"), 0)
    places = pa.table({"source_partition": partition, "offset": offset, "seq": rows.column("seq")})
    return rows.take(pc.sort_indices(places, sort_keys=[(name, "ascending") for name in places.column_names]))


def _partitions_of(rows: Table) -> list[Table] | None:
    """Return the rows of each source partition as a slice, sorted by name; None if the rows must be sorted.

    Sources usually deliver each partition contiguous and in order. Reordering slices moves no data, while sorting rows
    moves all columns.
    """
    partition, offset, seq = (whole(rows.column(name)) for name in ("source_partition", "offset", "seq"))
    if partition.null_count:
        return None
    same = pc.equal(partition[1:], partition[:-1])
    level = pc.and_(pc.equal(offset[1:], offset[:-1]), pc.less(seq[1:], seq[:-1]))
    if pc.any(pc.and_(same, pc.or_(pc.less(offset[1:], offset[:-1]), level))).as_py():
        return None
    starts = [0, *(place + 1 for place in pc.indices_nonzero(pc.invert(same)).to_pylist())]
    if not rows.num_rows or len(starts) > MOST_PIECES:
        return None
    names = partition.take(pa.array(starts)).to_pylist()
    if len(set(names)) < len(starts):
        return None
    ends = [*starts[1:], rows.num_rows]
    return [rows.slice(start, end - start) for _, start, end in sorted(zip(names, starts, ends, strict=True))]


def run_table(tx: PartTransaction, stream: Stream, rows: Table, now: float) -> None:
    """Process events of a state partition in its transaction. The events must be plain and in order. Events that were
    applied before change nothing."""
    new = _fresh(tx, rows)
    fresh = rows if pc.all(new).as_py() else rows.filter(new)
    if not fresh.num_rows:
        return
    keys: Any = fresh.column("stream_key").unique()
    states = TableStates(keys, tx, now)
    context = BatchContext(states)
    try:
        stream.handler(_given(fresh, stream), context)
        states.check()
    except Exception as error:
        raise HandlerFailed from error
    states.save(None if stream.ttl_seconds is None else now + stream.ttl_seconds)
    if context.emitted:
        tx.emit(context.emitted)


class TableStates(States):
    """States of a batch's keys, loaded on first use, as columns or by key. A `KeyState` is created only for a key that
    is accessed on its own."""

    def __init__(self, keys: StringArray, tx: PartTransaction, now: float) -> None:
        super().__init__(self._state_of, _texts(keys))
        self._unordered = keys
        self._tx = tx
        self._now = now
        self._objects: dict[str, KeyState] = {}
        self._put: dict[str, bytes] = {}
        self._columns: StateColumns | None = None
        """States that were put as columns, if nothing else was put. They are written to the store unchanged."""

    def table(self, keys: Any, fields: Mapping[str, str]) -> Table:
        if self._objects or self._put or self._columns:  # changes are not in the store yet
            return super().table(keys, fields)
        return from_lines(self._text, len(self._ordered), fields).take(self._places(keys))

    @cached_property
    def _ordered(self) -> StringArray:
        ordered: Any = self._unordered.take(pc.sort_indices(self._unordered)).cast(pa.string())
        return cast(StringArray, ordered)

    @cached_property
    def _text(self) -> bytes:
        return self._tx.load_json(self._ordered, self._now)

    @cached_property
    def _saved(self) -> Mapping[str, Saved]:
        return self._tx.load(list(self))

    def check(self) -> None:
        """Raise `UsageError` if a state cannot be written, before anything is written."""
        for state in self._objects.values():
            state.check()

    def save(self, expires_at: float | None) -> None:
        """Write the changed states."""
        if self._columns:
            self._tx.save_columns(self._columns, expires_at)
        if put := _columns(self._put):
            self._tx.save_columns(put, expires_at)
        changed: dict[str, Saved | None] = {key: None for key, one in self._put.items() if one == EMPTY}
        for key, state in self._objects.items():
            state.settle()
            if state.dirty:
                changed[key] = state.saved(expires_at)
        if changed:
            self._tx.save(changed)

    def _state_of(self, key: str) -> KeyState:
        self._spread()
        state = self._objects.get(key)
        if state is None:
            known = self._saved.get(key)
            state = self._objects[key] = KeyState(None if known is None else unexpired(known, self._now))
            if key in self._put:
                state.become(decode_json(self._put.pop(key)))
        return state

    def _written(self, keys: Sequence[str]) -> list[bytes]:
        self._spread()
        return [self._put.get(key) or States._written(self, [key])[0] for key in keys]

    def _write(self, keys: Any, objects: BinaryArray) -> None:
        if self._objects:
            super()._write(keys, objects)
        elif self._put or self._columns or not self._take_columns(self._places(keys), objects):
            self._spread()
            self._put |= zip(self._of_batch(keys), values(objects), strict=True)

    def _take_columns(self, places: Any, objects: Any) -> bool:
        """Keep the states as columns. Return False if a key occurs twice or a state is empty, which means deletion."""
        if len(places.unique()) < len(places) or pc.any(pc.equal(objects, EMPTY)).as_py():
            return False
        order = pc.sort_indices(places)
        self._columns = StateColumns(self._ordered.take(places.take(order)), objects.take(order))
        return True

    def _spread(self) -> None:
        """Convert states that were put as columns to states by key."""
        if self._columns:
            keys, objects = map(values, self._columns)
            self._put |= zip(keys, objects, strict=True)
            self._columns = None

    def _places(self, keys: Any) -> Any:
        """Return the positions of keys among the sorted keys of the batch."""
        plain = getattr(keys, "type", None) == pa.string()
        column = whole(keys) if plain else pa.array(self._of_batch(keys), pa.string())
        places = pc.index_in(column, value_set=self._ordered)
        if places.null_count:
            self._of_batch(keys)  # raises KeyError with the unknown key
        return places


def _columns(states: Mapping[str, bytes]) -> StateColumns | None:
    """Return the states that are not empty as columns; None if all are empty."""
    keys = sorted(key for key, one in states.items() if one != EMPTY)
    if not keys:
        return None
    return StateColumns(pa.array(keys, pa.string()), pa.array([states[key] for key in keys], pa.binary()))


def _texts(column: StringArray) -> Iterator[str]:
    """Yield the strings of a column, converted on first use."""
    yield from values(column)


def _fresh(tx: PartTransaction, rows: Any) -> Any:
    """Insert the events into the inbox, and return a mask of the new rows. Of duplicates, the first counts."""
    partitions = rows.column("source_partition")
    placed = partitions.is_valid()
    fresh = _beyond(tx, rows) if partitions.null_count < rows.num_rows else placed
    if partitions.null_count:
        others = rows.filter(pc.invert(placed))
        ids, replays = (others.column(name).to_pylist() for name in ("event_id", "replays"))
        arrivals: list[Any] = list(map(Arrival, ids, replays))
        unknown = tx.fresh(arrivals)
        news: list[bool] = []
        for arrival in arrivals:
            news.append(arrival in unknown)
            unknown.discard(arrival)
        fresh = pc.replace_with_mask(whole(fresh), whole(pc.invert(placed)), pa.array(news, pa.bool_()))
    return whole(fresh)


def _beyond(tx: PartTransaction, rows: Table) -> Any:
    """Advance the stored offsets of the source partitions, and return a mask of the rows beyond the previous
    offsets."""
    partition, offset = whole(rows.column("source_partition")), whole(rows.column("offset"))
    names = partition.unique().drop_null()
    known = tx.reached(names.to_pylist())
    reached = pa.array([known.get(name, -1) for name in names.to_pylist()], pa.int64())
    beyond = pc.greater(offset, reached.take(pc.index_in(partition, value_set=names)))
    again = pc.and_(pc.equal(partition[1:], partition[:-1]), pc.equal(offset[1:], offset[:-1]))
    first = pa.concat_arrays([pa.array([True]), pc.invert(pc.fill_null(again, False))])
    fresh = pc.fill_null(pc.and_(beyond, first), False)
    places = pa.table({"name": partition, "offset": offset}).filter(fresh)
    furthest = places.group_by("name").aggregate([("offset", "max")])
    if furthest.num_rows:
        tx.advance(dict(zip(values(furthest.column("name")), values(furthest.column("offset_max")), strict=True)))
    return fresh


def _given(rows: Table, stream: Stream) -> Any:
    """Return the handler's argument: see `batch_handlers.as_table`."""
    columns: dict[str, Any] = {
        "event_id": rows.column("event_id"),
        "key": rows.column("stream_key"),
        "event_type": rows.column("event_type"),
        "payload": rows.column("payload"),
        "headers": _headers(whole(rows.column("headers"))),
        "created_at": rows.column("created_at").cast(pa.timestamp("us", tz="UTC")),
        "attempts": rows.column("attempts"),
        "partition_key": rows.column("partition_key"),
        "ordering_key": rows.column("ordering_key"),
    }
    return in_kind(with_fields(pa.table(columns), stream.fields), stream.batch)


def _headers(texts: Any) -> Any:
    """Convert headers from JSON objects or null to maps."""
    kind = pa.map_(pa.string(), pa.string())
    if texts.null_count == len(texts):
        nothing = pa.array([], pa.string())
        return pa.MapArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), len(texts) + 1), nothing, nothing)
    return pa.array([list(json.loads(text).items()) if text else [] for text in texts.to_pylist()], kind)
