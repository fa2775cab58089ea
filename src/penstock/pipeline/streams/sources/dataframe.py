"""Any streaming DataFrame as a stream's source: which columns identify a row, and which become the event's payload."""

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

from penstock.model.errors import UsageError
from penstock.pipeline.streams.sources.base import SparkSource
from penstock.streams.event import STREAM_HEADERS
from penstock.streams.sources import Frame

POSITION = ("line", "offset")
"""Columns of a row's position in a source with a fixed order."""
FIELDS = (
    "event_id",
    "event_type",
    "payload",
    "headers",
    "partition_key",
    "ordering_key",
    "created_at",
    *POSITION,
)
"""Columns that are fields of an event. All other columns are user data, whatever their names."""


class DataFrameSource(SparkSource):
    """Rows of a streaming DataFrame. Only Spark's checkpoint records the progress of the source."""

    def __init__(self, source: Frame) -> None:
        self._source = source
        self.remember_seconds = source.remember_seconds

    def load(self, spark: SparkSession) -> DataFrame:
        frame = self._source.open(spark)
        if not isinstance(frame, DataFrame) or not frame.isStreaming:
            raise UsageError("the function of a Frame source must return a streaming DataFrame")
        return events_of(frame)


def events_of(frame: DataFrame) -> DataFrame:
    """Return the rows as events. A row without an id or position ends the stream: it could be processed twice."""
    given = set(frame.columns)
    by_id, by_offset = "event_id" in given, given.issuperset(POSITION)
    if not by_id and not by_offset:
        raise UsageError("missing columns of the DataFrame: event_id, or line and offset")
    chosen = {name: frame[name] for name in FIELDS if name in given and name not in POSITION}
    chosen["payload"] = _payload(frame)
    if "headers" in given:
        chosen["headers"] = _headers(frame)
    if by_offset:
        chosen |= _position(frame, by_id=by_id)
    else:
        chosen["event_id"] = _required(frame["event_id"].cast("string"), "event_id")
    return frame.select(*(column.alias(name) for name, column in chosen.items()))


def _position(frame: DataFrame, *, by_id: bool) -> dict[str, Column]:
    """Return the columns of the position. If rows also have ids, a row without a `line` is identified by its id."""
    partition, offset = frame["line"].cast("string"), frame["offset"].cast("bigint")
    placed = _required(F.when(offset >= 0, offset), "offset of at least 0")
    if not by_id:
        return {"source_partition": _required(partition, "line"), "offset": placed}
    known = frame["event_id"].cast("string")
    known = F.when(partition.isNull(), _required(known, "event_id")).otherwise(known)
    return {"source_partition": partition, "offset": F.when(partition.isNotNull(), placed), "event_id": known}


def _required(column: Column, name: str) -> Column:
    return F.coalesce(column, F.raise_error(F.lit(f"DataFrame row has no {name}")))


def _payload(frame: DataFrame) -> Column:
    """Return text and bytes unchanged, and other payloads as JSON; without a payload, a JSON object of user columns."""
    if "payload" in frame.columns:
        nested = isinstance(frame.schema["payload"].dataType, ArrayType | MapType | StructType)
        payload = _json(frame["payload"]) if nested else frame["payload"]
    else:
        own = [name for name in frame.columns if name not in FIELDS]
        if not own:
            raise UsageError("missing columns of the DataFrame: payload, or other columns for a JSON payload")
        payload = _json(F.struct(*(F.col("`" + name.replace("`", "``") + "`") for name in own)))
    return F.coalesce(payload if _is_binary(frame) else payload.cast("string").cast("binary"), F.lit(b""))


def _is_binary(frame: DataFrame) -> bool:
    return "payload" in frame.columns and isinstance(frame.schema["payload"].dataType, BinaryType)


def _json(column: Column) -> Column:
    """Return JSON with nulls for missing values, so that handlers find every field."""
    return F.to_json(column, {"ignoreNullFields": "false"})


def _headers(frame: DataFrame) -> Column:
    if not isinstance(frame.schema["headers"].dataType, MapType):
        raise UsageError("column headers must be a map of strings")
    texts = frame["headers"].cast("map<string, string>")
    return F.map_filter(texts, lambda name, value: value.isNotNull() & ~name.isin(*STREAM_HEADERS))
