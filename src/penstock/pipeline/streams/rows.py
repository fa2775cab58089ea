"""Rows of a stream, converted from Spark to Python: as Arrow tables, one per state partition, and as events."""

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

from pyarrow import DataType, RecordBatch, Table

from penstock.model.errors import PipelineError
from penstock.model.event import NO_HEADERS
from penstock.pipeline.streams.sources.base import BLANK, COLUMNS
from penstock.pipeline.streams.task_spec import StreamTaskSpec, part_and_key
from penstock.streams.arrow_json import arrow
from penstock.streams.event import StreamEvent
from penstock.streams.state.api import EPOCH, Arrival, Position

pa, pc = arrow()

KEYING = {"stream_key": "STRING", "key_error": "STRING"}

Batches = Iterator[RecordBatch]


def events_in(batch: RecordBatch | Table, keys: Sequence[str]) -> list[StreamEvent]:
    """Return the events in the rows, with the given keys."""
    columns = {name: values(batch, name) for name in COLUMNS if name not in ("seq", "token", "created_at")}
    fields = zip(
        columns["event_id"],
        keys,
        columns["payload"],
        columns["event_type"],
        [json.loads(text) if text else NO_HEADERS for text in columns["headers"]],
        _times(batch, "created_at"),
        columns["replays"],
        columns["attempts"],
        columns["partition_key"],
        columns["ordering_key"],
        _positions(columns["source_partition"], columns["offset"]),
        [lease is not None for lease in columns["lease"]],
        strict=True,
    )
    return list(map(_new_event, fields))


def _positions(partitions: list[str | None], offsets: list[int | None]) -> list[Position | None]:
    placed = map(_new_position, zip(partitions, offsets, strict=True))
    return [None if one[0] is None else one for one in placed]


def _times(batch: RecordBatch | Table, name: str) -> list[datetime | None]:
    """Return a column of times. Arrow's own conversion takes twenty times as long for values with a time zone."""
    micros: list[int | None] = batch.column(name).cast(pa.int64()).to_pylist()
    return [None if one is None else EPOCH + timedelta(microseconds=one) for one in micros]


def by_part(spec: StreamTaskSpec, batches: Batches) -> Iterator[tuple[int, Table]]:
    """Yield the selected rows of each state partition with its number, in ascending order."""
    given = list(batches)
    if not given:
        return
    rows = _named(spec, _chosen(spec, widened(pa.Table.from_batches(given))))
    found: list[Any] = rows.column("part").unique().to_pylist()
    numbers = sorted(found)
    for number in numbers:
        yield number, rows if len(numbers) == 1 else rows.filter(pc.equal(rows.column("part"), number))


def widened(rows: Table) -> Table:
    """Return the rows with all columns. Columns that the source lacks are filled with blank values."""
    given: dict[str, Any] = dict(zip(rows.column_names, rows.columns, strict=True))
    for name, kind in _kinds().items():
        if name not in given:
            given[name] = pa.repeat(pa.scalar(BLANK.get(name), kind), rows.num_rows)
    if "stream_key" not in rows.column_names:
        given["stream_key"] = _partition_keys(given["partition_key"])
    if given["event_id"].null_count:  # events without an id are identified by their position
        places = pc.binary_join_element_wise(given["source_partition"], given["offset"].cast(pa.string()), "/")
        given["event_id"] = pc.coalesce(given["event_id"], places)
    whole: Table = pa.table(given)
    return whole


def _partition_keys(keys: Any) -> Any:
    """Return partition keys as stream keys, or null for invalid ones: see `partitioning.own_key`."""
    unfit = pc.or_(pc.equal(keys, ""), pc.match_substring(keys, "\x00"))
    return keys if not pc.any(unfit).as_py() else pc.if_else(unfit, pa.scalar(None, pa.string()), keys)


def _kinds() -> dict[str, DataType]:
    """Return all columns with their Arrow types."""
    text, number = pa.string(), pa.int64()
    others = {"seq": number, "offset": number, "attempts": pa.int32(), "replays": pa.int32()}
    kinds = {name: others.get(name, text) for name in (*KEYING, *COLUMNS)}
    return kinds | {"created_at": pa.timestamp("us", tz="UTC")}


def _named(spec: StreamTaskSpec, rows: Table) -> Table:
    """Replace the topic name in each source partition by the topic's name with its id."""
    if spec.topics is None:
        return rows
    read = rows.column("source_partition")
    known = read.unique()
    named: list[str | None] = []
    for name in known.to_pylist():
        topic, _, number = ("", "", "") if name is None else name.partition("/")
        if name is not None and topic not in spec.topics:
            raise PipelineError(f"Kafka topic {topic!r} was deleted while being read")
        named.append(None if name is None else f"{spec.topics[topic]}/{number}")
    names = pa.array(named, pa.string()).take(pc.index_in(read, value_set=known).combine_chunks())
    return rows.set_column(rows.schema.get_field_index("source_partition"), "source_partition", names)


def _chosen(spec: StreamTaskSpec, rows: Table) -> Table:
    if spec.parts is None and spec.only is None:
        return rows
    parts, ids, replays = (values(rows, name) for name in ("part", "event_id", "replays"))
    wanted = [
        (spec.parts is None or part in spec.parts) and (spec.only is None or arrival in spec.only)
        for part, arrival in zip(parts, map(Arrival, ids, replays), strict=True)
    ]
    return rows.filter(pa.array(wanted, pa.bool_()))


class Row(NamedTuple):
    """Event with the sort key and the fields by which its source settles it."""

    place: tuple[str, int, int]
    """Source partition, offset and seq: the order in which rows are processed."""
    key_error: str | None
    seq: int
    lease: str | None
    token: str | None
    event: StreamEvent


def rows_in(spec: StreamTaskSpec, table: Table) -> list[Row]:
    """Return the rows of a table in processing order."""
    columns = {name: values(table, name) for name in (*KEYING, "source_partition", "offset", "seq", "lease", "token")}
    events = events_in(table, [key or "" for key in columns["stream_key"]])
    errors, seqs = columns["key_error"], columns["seq"]
    if None in columns["stream_key"]:  # Spark gives no reason: compute the key in Python to get the error
        errors = [None if event.key else part_and_key(spec, event)[2] for event in events]
    partitions = [name or "" for name in columns["source_partition"]]
    places = zip(partitions, [offset or 0 for offset in columns["offset"]], seqs, strict=True)
    made = map(_new_row, zip(places, errors, seqs, columns["lease"], columns["token"], events, strict=True))
    return sorted(made, key=_place)


def values(batch: RecordBatch | Table, name: str) -> list[Any]:
    """Return a column as a list of Python values."""
    return batch.column(name).to_pylist()


# Create the tuples of each event with tuple.__new__, which is faster than the Python constructor of a NamedTuple.
_new_event: Callable[[tuple[Any, ...]], StreamEvent] = partial(tuple.__new__, StreamEvent)
_new_position: Callable[[tuple[Any, ...]], Position] = partial(tuple.__new__, Position)
_new_row: Callable[[tuple[Any, ...]], Row] = partial(tuple.__new__, Row)
_place = itemgetter(0)
