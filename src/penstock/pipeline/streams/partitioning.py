"""Which part each row of a batch belongs to. An event's own key Spark tells by itself; a key function needs Python.

All of it is planned anew for every batch, and every column takes its time in every row: as little as will do.
"""

from collections.abc import Collection

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import _parse_datatype_string

from penstock.pipeline.streams.sources.base import BLANK, COLUMNS
from penstock.pipeline.streams.task import assign
from penstock.pipeline.streams.task_spec import PART_WITHOUT_KEY, StreamTaskSpec
from penstock.streams.app import default_key
from penstock.streams.event import KEY_HEADER, STREAM_HEADER

NUL = "\x00"
# Without one of these a source's own key is the partition key, and need not be told once more.
MAKE_KEYS = frozenset({"headers", "ordering_key"})


def keyed(frame: DataFrame, spec: StreamTaskSpec) -> DataFrame:
    """Add to the rows of a source their part, and their key where it is not the partition key. Tasks add the columns
    that the source lacks: see `rows.widened`."""
    columns = {name: _column(frame, name) for name in frame.columns}
    own = spec.stream.key is default_key
    if own:
        key = own_key(frame.columns, spec.stream.name)
        part = F.crc32(key.cast("binary")) % F.lit(spec.started.parts)
        columns["part"] = F.coalesce(part, F.lit(PART_WITHOUT_KEY)).cast("int")
        if not MAKE_KEYS.isdisjoint(frame.columns):
            columns["stream_key"] = key
    rows = frame.select(*(column.alias(name) for name, column in columns.items()))
    if own:
        return rows
    known = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in rows.schema.fields)
    return rows.mapInArrow(assign(spec), f"part INT, stream_key STRING, key_error STRING, {known}")


def own_key(columns: Collection[str], stream: str) -> Column:
    """The same as `default_key`, and for an event that was moved the key it had: what is empty doesn't count, and what
    can't be a key is for Python to complain of."""
    keys = [F.col(name) for name in ("partition_key", "ordering_key") if name in columns]
    if "headers" in columns:
        headers = F.col("headers")
        keys.insert(0, F.when(headers[STREAM_HEADER] == F.lit(stream), headers[KEY_HEADER]))
    found = [F.when(key != F.lit(""), key) for key in keys]
    key = F.coalesce(*found) if found else F.lit(None).cast("string")
    return F.when(~F.contains(key, F.lit(NUL)), key)


def _column(frame: DataFrame, name: str) -> Column:
    """A column of the source, as it travels."""
    column, kind = frame[name], COLUMNS[name]
    if frame.schema[name].dataType != _parse_datatype_string(kind):
        column = column.cast(kind)
    if name == "headers":
        # JSON: Arrow's maps take so long to write that it grows with the square of their number where they are empty.
        # Nothing where there are none at all: that is told faster than an empty object.
        return F.when(F.size(column) > 0, F.to_json(column))
    return F.coalesce(column, F.lit(BLANK[name]).cast(kind)) if name in BLANK else column
