"""What a stream reads, on Spark: each source as a DataFrame of the same columns, and how it is told what was done."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import UsageError
from penstock.streams.app import Stream
from penstock.streams.sources import REMEMBER_SECONDS, Frame, Kafka, Queue, Valkey

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = {
    "seq": "BIGINT",
    "event_id": "STRING",
    "event_type": "STRING",
    "payload": "BINARY",
    "headers": "MAP<STRING, STRING>",
    "partition_key": "STRING",
    "ordering_key": "STRING",
    "created_at": "TIMESTAMP",
    "attempts": "INT",
    "replays": "INT",
    "lease": "STRING",
    "token": "STRING",
    "line": "STRING",
    "offset": "BIGINT",
}
"""What every source brings. Rows are processed in the order of line, offset and seq. A lease and its token are of a
queue, a line and an offset of a source whose order is fixed."""

QUEUE_LIMIT = 10_000
# How often an event may be in the hands of a process that dies: what it fails by itself is counted by the stream.
LOST_ATTEMPTS = 50


class Feed(Protocol):
    """A source, on the driver."""

    @property
    def tells(self) -> bool:
        """Whether it is to hear of its events one by one."""
        ...

    @property
    def remember_seconds(self) -> float:
        """For how long the inbox keeps events that nothing else takes out of it."""
        ...

    def load(self, spark: "SparkSession") -> "DataFrame":
        """The stream, with the columns above."""
        ...

    def acknowledge(self, event_ids: Sequence[str]) -> None:
        """The state holds these."""
        ...


def feed_of(stream: Stream, store: str, parallelism: int) -> Feed:
    """What reads a stream's source. A source that takes no outcomes has the stream's own queue beside it."""
    match stream.source:
        case Queue(name):
            feed = QueueFeed(stream, store, name, parallelism)
            # Timers that failed are there.
            return Beside(feed, QueueFeed(stream, store, stream.own_queue, 1)) if stream.has_timers else feed
        case Frame() as frame:
            return Beside(FrameFeed(frame), QueueFeed(stream, store, stream.own_queue, 1))
        case Kafka() | Valkey():
            raise UsageError(f"{stream.source} can't be read yet")


class QueueFeed:
    """Events of a queue, claimed under leases. Their outcomes are settled by lease, and not here."""

    tells = False
    remember_seconds = REMEMBER_SECONDS

    def __init__(self, stream: Stream, store: str, queue: str, parallelism: int) -> None:
        self._options: dict[str, Any] = {
            "store": store,
            "queue": queue,
            "limit": QUEUE_LIMIT,
            "partitions": parallelism,
            "lease_seconds": stream.lease_seconds,
            "max_attempts": stream.max_retries + LOST_ATTEMPTS,
            "patient": True,
        }

    def load(self, spark: "SparkSession") -> "DataFrame":
        from penstock.pipeline.source import register

        register(spark)
        return in_columns(spark.readStream.format("penstock").options(**self._options).load())

    def acknowledge(self, event_ids: Sequence[str]) -> None:
        """Nothing: see `settle`."""


class FrameFeed:
    """Any streaming DataFrame. Spark's checkpoint alone knows how far it is."""

    tells = False

    def __init__(self, source: Frame) -> None:
        self._source = source
        self.remember_seconds = source.remember_seconds

    def load(self, spark: "SparkSession") -> "DataFrame":
        from pyspark.sql import DataFrame

        frame = self._source.open(spark)
        if not isinstance(frame, DataFrame) or not frame.isStreaming:
            raise UsageError("a Frame source is a function that takes the session and returns a streaming DataFrame")
        named = set(frame.columns)
        if "event_id" not in named and not {"line", "offset"} <= named:
            raise UsageError("a DataFrame needs a column event_id, or line and offset, that its events are known by")
        return in_columns(_with_payload(frame))

    def acknowledge(self, event_ids: Sequence[str]) -> None:
        """Nothing: Spark's checkpoint has it."""


class Beside:
    """A source without retries, and the queue that its failed events are moved to."""

    def __init__(self, source: Feed, own: QueueFeed) -> None:
        self._source = source
        self._own = own
        self.tells = source.tells
        self.remember_seconds = source.remember_seconds

    def load(self, spark: "SparkSession") -> "DataFrame":
        return self._source.load(spark).unionByName(self._own.load(spark))

    def acknowledge(self, event_ids: Sequence[str]) -> None:
        self._source.acknowledge(event_ids)


def in_columns(frame: "DataFrame") -> "DataFrame":
    """A DataFrame with exactly the columns above; what it doesn't have is empty."""
    from pyspark.sql import functions as F  # noqa: N812

    empty = {"attempts": F.lit(0), "replays": F.lit(0), "seq": F.lit(0), "event_type": F.lit("")}
    named = set(frame.columns)
    if "event_id" not in named:
        empty["event_id"] = F.concat_ws("/", frame["line"], frame["offset"].cast("string"))
    chosen = (frame[name] if name in named else empty.get(name, F.lit(None)) for name in COLUMNS)
    return frame.select(
        *(column.cast(kind).alias(name) for column, (name, kind) in zip(chosen, COLUMNS.items(), strict=True))
    )


def _with_payload(frame: "DataFrame") -> "DataFrame":
    """Without a payload, all columns that are no field of an event are it, as a JSON object."""
    from pyspark.sql import functions as F  # noqa: N812

    if "payload" in frame.columns:
        return frame
    own = [name for name in frame.columns if name not in COLUMNS]
    if not own:
        raise UsageError("a DataFrame needs a column payload, or columns of its own to make one of")
    return frame.withColumn("payload", F.to_json(F.struct(*own)).cast("binary"))
