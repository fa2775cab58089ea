"""Queues as sources of streams."""

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock.pipeline.datasource.reader import register_events
from penstock.pipeline.streams.sources.base import COLUMNS, SparkSource
from penstock.streams.app import Stream

QUEUE_LIMIT = 10_000
# How often an event may be in the hands of a process that dies: what it fails by itself is counted by the stream.
LOST_ATTEMPTS = 50


class QueueSource(SparkSource):
    """Events of a queue, claimed under leases. Their outcomes are settled by lease, and not here."""

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
