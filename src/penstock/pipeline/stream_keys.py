"""Which part each row of a batch belongs to. An event's own key Spark tells by itself; a key function needs Python.

All of it is planned anew for every batch, and every column takes its time in every row: as little as will do.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from penstock.pipeline.stream_errands import PART_WITHOUT_KEY, Errand
from penstock.pipeline.stream_rows import WIRE
from penstock.pipeline.stream_sources import BLANK, COLUMNS
from penstock.pipeline.stream_tasks import assign
from penstock.streams.app import default_key
from penstock.streams.event import KEY_HEADER, STREAM_HEADER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NUL = "\x00"
# Without one of these a source's own key is the partition key, and need not be told once more.
MAKE_KEYS = frozenset({"headers", "ordering_key"})
NULLABLE = [name for name in COLUMNS if name not in BLANK and name != "event_id"]


def keyed(frame: "DataFrame", errand: Errand, *, narrow: bool = False) -> "DataFrame":
    """The rows of a source with their parts and keys, as tasks take them. Narrow, they have but the columns that the
    source itself has: see `stream_rows.widened`."""
    rows = _as_they_travel(frame, errand, narrow=narrow)
    if errand.stream.key is default_key:
        return rows
    known = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in rows.schema.fields)
    return rows.mapInArrow(assign(errand), f"part INT, stream_key STRING, key_error STRING, {known}")


def _as_they_travel(frame: "DataFrame", errand: Errand, *, narrow: bool) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812

    columns = {name: _column(frame, name) for name in (frame.columns if narrow else COLUMNS)}
    if errand.stream.key is default_key:
        key = own_key(frame.columns, errand.stream.name)
        part = F.crc32(key.cast("binary")) % F.lit(errand.started.parts)
        columns["part"] = F.coalesce(part, F.lit(PART_WITHOUT_KEY)).cast("int")
        if not narrow or not MAKE_KEYS.isdisjoint(frame.columns):
            columns["stream_key"] = key
        if not narrow:
            columns["key_error"] = F.lit(None).cast("string")
    return frame.select(*(column.alias(name) for name, column in columns.items()))


def own_key(columns: Collection[str], stream: str) -> "Column":
    """The same as `default_key`, and for an event that was moved the key it had: what is empty doesn't count, and what
    can't be a key is for Python to complain of."""
    from pyspark.sql import functions as F  # noqa: N812

    keys = [F.col(name) for name in ("partition_key", "ordering_key") if name in columns]
    if "headers" in columns:
        headers = F.col("headers")
        keys.insert(0, F.when(headers[STREAM_HEADER] == F.lit(stream), headers[KEY_HEADER]))
    found = [F.when(key != F.lit(""), key) for key in keys]
    key = F.coalesce(*found) if found else F.lit(None).cast("string")
    return F.when(~F.contains(key, F.lit(NUL)), key)


def _column(frame: "DataFrame", name: str) -> "Column":
    """One that a frame may have, as it travels; an empty one if it hasn't."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import _parse_datatype_string

    nothing = F.lit(BLANK.get(name)).cast(WIRE[name])
    if name == "event_id" and "line" in frame.columns:
        nothing = F.concat_ws("/", frame["line"], frame["offset"].cast("string"))  # it is known by where it stands
    if name not in frame.columns:
        return nothing
    column, kind = frame[name], COLUMNS[name]
    if frame.schema[name].dataType != _parse_datatype_string(kind):
        column = column.cast(kind)
    if name == "headers":  # nothing where there are none at all: that is told faster than an empty object
        return F.when(F.size(column) > 0, F.to_json(column))
    return column if name in NULLABLE else F.coalesce(column, nothing)
