"""Valkey and Redis streams as a source of a stream."""

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from penstock.pipeline.streams.sources.base import SparkSource
from penstock.pipeline.streams.sources.valkey.datasource import StreamOptions, acknowledge, register
from penstock.streams.sources import Valkey


class ValkeySource(SparkSource):
    """Entries of Valkey streams. The consumer has the name of the stream, which only one driver runs.

    So a new driver gets the unacknowledged entries of the previous driver at once, without an idle time.
    """

    wants_acknowledgements = True

    def __init__(self, source: Valkey, consumer: str) -> None:
        self._source = source
        self._options = {
            "url": source.url,
            "stream": source.stream,
            "group": source.group,
            "consumer": consumer,
            "min_idle_time_ms": str(source.min_idle_time_ms),
            "patient": "true",
            **source.options,
        }
        StreamOptions.parse(self._options)  # validate here: Spark would wrap the error

    def load(self, spark: SparkSession) -> DataFrame:
        register(spark)
        return spark.readStream.format("penstock-valkey").options(**self._options).load()

    def acknowledge(self, event_ids: Sequence[str]) -> None:
        acknowledge(self._source.url, self._source.group, event_ids)
