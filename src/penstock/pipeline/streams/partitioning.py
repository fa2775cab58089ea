"""Assign rows to state partitions. Spark computes the default key itself; a key function needs Python.

Spark plans these columns anew for every batch, and each column takes time in every row, so their number is kept small.
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
# Without these columns the default key is the partition key, and a separate key column is not needed.
MAKE_KEYS = frozenset({"headers", "ordering_key"})


def keyed(frame: DataFrame, spec: StreamTaskSpec) -> DataFrame:
    """Add the state partition to the rows of a source, and the key if it may differ from the partition key.

    Tasks add the columns that the source lacks: see `rows.widened`.
    """
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
    """Return the key as `default_key` does; for an event forwarded to the retry queue, return its original key.

    Empty keys are skipped. A key with a NUL character becomes null, and Python reports the error.
    """
    keys = [F.col(name) for name in ("partition_key", "ordering_key") if name in columns]
    if "headers" in columns:
        headers = F.col("headers")
        keys.insert(0, F.when(headers[STREAM_HEADER] == F.lit(stream), headers[KEY_HEADER]))
    found = [F.when(key != F.lit(""), key) for key in keys]
    key = F.coalesce(*found) if found else F.lit(None).cast("string")
    return F.when(~F.contains(key, F.lit(NUL)), key)


def _column(frame: DataFrame, name: str) -> Column:
    """Return a column of the source in the form in which tasks receive it."""
    column, kind = frame[name], COLUMNS[name]
    if frame.schema[name].dataType != _parse_datatype_string(kind):
        column = column.cast(kind)
    if name == "headers":
        # Send headers as JSON: the time to write empty Arrow maps grows with the square of their number. Send null
        # instead of an empty object, because null is recognised faster.
        return F.when(F.size(column) > 0, F.to_json(column))
    return F.coalesce(column, F.lit(BLANK[name]).cast(kind)) if name in BLANK else column
