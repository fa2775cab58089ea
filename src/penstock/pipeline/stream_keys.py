"""Which part each row of a batch belongs to. An event's own key Spark tells by itself; a key function needs Python."""

from typing import TYPE_CHECKING

from penstock.pipeline.stream_errands import PART_WITHOUT_KEY, Errand
from penstock.pipeline.stream_rows import CLAIM, CLAIM_COLUMN, KEYING, ROWS, WIRE
from penstock.pipeline.stream_tasks import assign
from penstock.streams.app import default_key
from penstock.streams.event import KEY_HEADER, STREAM_HEADER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Nothing where there is no headers at all: that is told faster than an empty object.
HEADERS = "CASE WHEN size(headers) > 0 THEN to_json(headers) END"
NUL = "\x00"


def keyed(frame: "DataFrame", errand: Errand) -> "DataFrame":
    """The rows of a stream's source with their parts and keys, as tasks take them."""
    from pyspark.sql import functions as F  # noqa: N812

    if errand.stream.key is not default_key:
        return frame.withColumn("headers", F.expr(HEADERS)).mapInArrow(assign(errand), ROWS)
    key = own_key(errand.stream.name)
    key = F.when(~F.contains(key, F.lit(NUL)), key)  # a key that can't be one is for Python to complain of
    placed = frame.withColumns({"stream_key": key, "key_error": F.lit(None).cast("string")})
    part = f"CAST(coalesce(crc32(CAST(stream_key AS BINARY)) % {errand.started.parts}, {PART_WITHOUT_KEY}) AS INT)"
    return placed.withColumns({"part": F.expr(part), "headers": F.expr(HEADERS)}).select("part", *KEYING, *WIRE)


def in_fewer_columns(rows: "DataFrame") -> "DataFrame":
    """With one column for all that only claimed events have. For sources where few are: each column takes its time."""
    from pyspark.sql import functions as F  # noqa: N812

    kept = [name for name in rows.columns if name not in CLAIM]
    claim = F.when(F.col("lease").isNotNull(), F.concat_ws(" ", *CLAIM))
    return rows.select(*kept, claim.alias(CLAIM_COLUMN))


def own_key(stream: str) -> "Column":
    """The same as `default_key`, and for an event that was moved the key it had: what is empty doesn't count."""
    from pyspark.sql import functions as F  # noqa: N812

    headers, nothing = F.col("headers"), F.lit("")
    moved = F.when(headers[STREAM_HEADER] == F.lit(stream), headers[KEY_HEADER])
    keys = (moved, F.col("partition_key"), F.col("ordering_key"))
    return F.coalesce(*(F.nullif(key, nothing) for key in keys))
