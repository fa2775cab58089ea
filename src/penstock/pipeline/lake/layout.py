"""Layout and reading of the lake: events as Parquet files, in folders by day and event type.

    lake/day=2026-01-31/event_type=order.placed/<lease>.<token>-0.parquet
    lake/_penstock/…     working files of the relay; readers of Parquet skip folders that begin with an underscore

Writing is in `penstock.pipeline.lake.writer`, replay in `penstock.pipeline.lake.replay`.
"""

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.config.options import known_options, seconds, whole_number
from penstock.config.urls import mask_url, url_scheme
from penstock.model.errors import UsageError
from penstock.pipeline.datasource.columns import columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SCHEME = "lake"
BATCH_EVENTS = 20_000
EVERY_SECONDS = 30.0
# Columns of a file. The path contains the day and the folder name of the event type.
_EVENT_COLUMNS = columns(
    *("seq", "event_id", "event_type", "queue", "payload", "headers", "partition_key", "ordering_key", "priority"),
    *("created_at", "available_at", "attempts", "deliveries", "max_attempts", "replays"),
)
COLUMNS = {"type" if name == "event_type" else name: kind for name, kind in _EVENT_COLUMNS.items()}

_MICROSECONDS_A_DAY = 86_400_000_000
# A folder name has at most 255 bytes, and each character that must be escaped takes three.
_NAME_LIMIT = 200
_PLAIN = "A-Za-z0-9._-"
_SHORTENED = 40


@dataclass(frozen=True, slots=True)
class Lake:
    """Location of a lake, and the size and interval of the relay's batches."""

    path: str
    batch_events: int = BATCH_EVENTS
    every_seconds: float = EVERY_SECONDS

    @classmethod
    def parse(cls, url: str) -> "Lake":
        """Parse a URL such as `lake:/var/lake` or `lake:s3a://bucket/prefix?every_seconds=60`."""
        options = known_options(url, ("batch_events", "every_seconds"))
        path = url.partition(":")[2].partition("?")[0].rstrip("/")
        if not is_lake(url) or not re.match(r"/|[A-Za-z][A-Za-z0-9+.-]+:/", path):
            raise UsageError(
                f"invalid lake URL {mask_url(url)}; expected an absolute path or a URL that Spark can write to, "
                "such as lake:/var/lake or lake:s3a://bucket/prefix"
            )
        batch_events = whole_number(options, "batch_events") or BATCH_EVENTS
        return cls(path, batch_events, seconds(options, "every_seconds", EVERY_SECONDS))


def is_lake(url: str) -> bool:
    return url_scheme(url) == SCHEME


def read(
    spark: "SparkSession",
    path: str,
    *,
    event_type: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> "DataFrame":
    """Return the events of a lake, each one once: the latest delivery of an event that was delivered again.

    `path` is the lake's path or its `lake:` URL. `event_type`, `since` and `until` (exclusive) select events by type
    and time of emission, and limit the folders that Spark reads.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as on

    found = _files(spark, Lake.parse(path).path if path.startswith(f"{SCHEME}:") else path)
    if event_type is not None:
        found = found.where((on.col("event_type") == folder_name(event_type)) & (on.col("type") == event_type))
    if since is not None:
        found = found.where((on.col("day") >= _day(since)) & (on.col("created_at") >= since))
    if until is not None:
        found = found.where((on.col("day") <= _day(until)) & (on.col("created_at") < until))
    # Partition by type as well, so that Spark can apply a filter on it to the folders. An event has only one type.
    latest = Window.partitionBy("event_type", "event_id").orderBy(
        *(on.desc(name) for name in ("created_at", "seq", "replays", "deliveries"))
    )
    once = found.withColumn("nth", on.row_number().over(latest)).where("nth = 1").drop("nth")
    return once.select(*(on.col("type").alias("event_type") if name == "type" else name for name in ("day", *COLUMNS)))


def _files(spark: "SparkSession", path: str) -> "DataFrame":
    from pyspark.errors import AnalysisException

    schema = ", ".join(f"{name} {kind}" for name, kind in {**COLUMNS, "day": "DATE", "event_type": "STRING"}.items())
    try:
        return spark.read.schema(schema).parquet(path)
    except AnalysisException as error:
        if "PATH_NOT_FOUND" not in str(error):
            raise
        raise UsageError(f"lake {mask_url(path)} does not exist; relay events to it first") from None


def shaped(events: "DataFrame") -> "DataFrame":
    """Return claimed events with the columns of a file and those of its folder: lease, token, day and type."""
    from pyspark.sql import functions as on

    # Compute the UTC day by arithmetic: Spark's calendar functions use the session's time zone.
    days = on.floor(on.unix_micros("created_at") / on.lit(_MICROSECONDS_A_DAY)).cast("int")
    kept = [on.col("event_type").alias(name) if name == "type" else on.col(name) for name in COLUMNS]
    day = on.date_from_unix_date(days).alias("day")
    return events.select("lease", "token", day, _folder_column().alias("event_type"), *kept)


def folder_name(event_type: str) -> str:
    """Return an event type as a portable folder name: the type itself if short and ASCII, else a prefix and a digest.

    A type that begins with two underscores is shortened as well.
    """
    others = re.sub(f"[{_PLAIN}]", "", event_type)
    if event_type.isascii() and len(event_type) + 2 * len(others) <= _NAME_LIMIT and not event_type.startswith("__"):
        return event_type
    plain = re.sub(f"[^{_PLAIN}]", "_", event_type)[:_SHORTENED]
    return f"{plain}~{hashlib.sha256(event_type.encode()).hexdigest()[:16]}"


def _folder_column() -> "Column":
    """Return `folder_name` as a Spark column."""
    from pyspark.sql import functions as on

    kind = on.col("event_type")
    others = on.regexp_replace(kind, f"[{_PLAIN}]", "")
    ascii_only = on.octet_length(kind) == on.length(kind)
    fits = on.length(kind) + 2 * on.length(others) <= _NAME_LIMIT
    plain = on.substring(on.regexp_replace(kind, f"[^{_PLAIN}]", "_"), 1, _SHORTENED)
    short = on.concat(plain, on.lit("~"), on.substring(on.sha2(kind, 256), 1, 16))
    return on.when(ascii_only & fits & ~kind.startswith("__"), kind).otherwise(short)


def _day(at: datetime) -> str:
    return at.astimezone(UTC).date().isoformat()
