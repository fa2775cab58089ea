"""What a stream reads, on Spark: each source as a DataFrame of the same columns, and how it is told what was done."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from penstock.streams.app import Stream
from penstock.streams.event import KEY_HEADER, ORIGIN_HEADER, STREAM_HEADER
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

BLANK = {"attempts": 0, "replays": 0, "seq": 0, "event_type": ""}
"""What stands in columns that are never null where a source has nothing."""

STREAM_HEADERS = (ORIGIN_HEADER, KEY_HEADER, STREAM_HEADER)
"""What a stream writes on events that it moved to its own queue. From elsewhere they would say what isn't so."""

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
        """The stream, with those of the columns above that it has."""
        ...

    @property
    def edition(self) -> str:
        """What the checkpoint is of, once loaded: with another edition another checkpoint begins."""
        ...

    @property
    def leases(self) -> bool:
        """Whether its events are claimed."""
        ...

    def topics(self) -> Mapping[str, str] | None:
        """Asked for each micro-batch: by the names of topics, what their lines are called; None if they are called as
        they came. `StoreUnavailable` if that can't be told now."""
        ...

    def acknowledge(self, event_ids: Sequence[str]) -> None:
        """The state holds these."""
        ...

    def close(self) -> None:
        """Its stream has ended."""
        ...


class Steady:
    """A source that is the same from its first batch to its last, and holds nothing open."""

    edition = ""
    leases = False

    def topics(self) -> None:
        return None

    def close(self) -> None:
        """Nothing to close."""


def feeds_of(stream: Stream, store: str, parallelism: int) -> "tuple[Feed] | tuple[Feed, Feed]":
    """What reads a stream's source; and, beside one that takes no outcomes, what reads the stream's own queue."""
    own = QueueFeed(stream, store, stream.own_queue, 1)
    match stream.source:
        case Queue(name):
            feed = QueueFeed(stream, store, name, parallelism)
            return (feed, own) if stream.has_timers else (feed,)  # timers that failed are there
        case Frame() as frame:
            from penstock.pipeline.frame_feed import FrameFeed

            return FrameFeed(frame), own
        case Valkey() as valkey:
            from penstock.pipeline.valkey_feed import ValkeyFeed

            return ValkeyFeed(valkey, stream.name), own
        case Kafka() as kafka:
            from penstock.pipeline.kafka_feed import KafkaFeed

            return KafkaFeed(kafka), own


class QueueFeed(Steady):
    """Events of a queue, claimed under leases. Their outcomes are settled by lease, and not here."""

    tells = False
    leases = True
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
        claims = spark.readStream.format("penstock").options(**self._options).load()
        return claims.select(*(name for name in COLUMNS if name in claims.columns))

    def acknowledge(self, event_ids: Sequence[str]) -> None:
        """Nothing: see `settle`."""
