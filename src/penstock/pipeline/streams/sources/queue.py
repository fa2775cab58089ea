"""Queues as sources of streams."""

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock.pipeline.datasource.reader import register_events
from penstock.pipeline.streams.sources.base import COLUMNS, SparkSource
from penstock.streams.app import Stream

QUEUE_LIMIT = 10_000
# Extra attempts for expired leases of processes that died. The stream itself counts the failures of its handler.
LOST_ATTEMPTS = 50


class QueueSource(SparkSource):
    """Events of a queue, claimed under leases. `StreamRun` settles their outcomes by lease."""

    leases = True

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

    def load(self, spark: SparkSession) -> DataFrame:
        register_events(spark)
        claims = spark.readStream.format("penstock").options(**self._options).load()
        return claims.select(*(name for name in COLUMNS if name in claims.columns))
