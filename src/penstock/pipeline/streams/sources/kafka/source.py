"""Kafka topics as a stream's source, through Spark's own connector.

The order of records is fixed: the state stores the offset reached in each partition. A topic that is deleted and
recreated keeps its name and starts again at offset 0, so partitions are identified by the topic id, too.
"""

import hashlib
from collections.abc import Mapping

from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.model.errors import PipelineError, StoreUnavailable, UsageError
from penstock.pipeline.streams.sources.base import SparkSource
from penstock.pipeline.streams.sources.kafka.connector_jars import ways_to_give_it
from penstock.pipeline.streams.sources.kafka.topic_ids import TopicIds
from penstock.streams.event import STREAM_HEADERS
from penstock.streams.sources import Kafka

TYPE_HEADER = "penstock-event-type"
TOMBSTONE_HEADER = "penstock-tombstone"
KEY_ENCODING_HEADER = "penstock-key-encoding"
# Headers that only Penstock sets; the same headers of Kafka records are dropped.
OWN_HEADERS = (*STREAM_HEADERS, TOMBSTONE_HEADER, KEY_ENCODING_HEADER)

DEFAULTS = {
    "startingOffsets": "earliest",
    "maxOffsetsPerTrigger": "100000",
    # By default it is an error if Kafka deleted records before they were read. Users can accept the loss explicitly.
    "failOnDataLoss": "true",
    # Skip records of aborted transactions.
    "kafka.isolation.level": "read_committed",
}
NOT_THEIRS = ("kafka.bootstrap.servers", "subscribe", "subscribepattern", "assign", "includeheaders")


class KafkaSource(SparkSource):
    """Records of topics. Nothing is committed to Kafka: the state and Spark's checkpoint record the offsets."""

    def __init__(self, source: Kafka) -> None:
        self._source = source
        self._options = reader_options(source)
        self._ids: TopicIds | None = None
        self._known: Mapping[str, str] = {}

    def load(self, spark: SparkSession) -> DataFrame:
        records = _records(spark, self._options)
        self._ids = TopicIds(spark, self._source, self._options)
        try:
            self._known = self._ids.ask()
        except StoreUnavailable as error:
            self.close()
            raise PipelineError(str(error)) from error
        # The checkpoint is valid for these topics only, and not for other topics of the same names.
        known = ",".join(f"{name}@{topic_id}" for name, topic_id in sorted(self._known.items()))
        self.checkpoint_version = hashlib.sha256(known.encode()).hexdigest()[:12]
        return events_of(records)

    def topics(self) -> Mapping[str, str]:
        """Return `topic@id` for each topic name, or the plain name from brokers before Kafka 2.8, which have no ids."""
        assert self._ids is not None, "topics() called before load()"
        now = self._ids.ask()
        for name, topic_id in now.items():
            if self._known.get(name, topic_id) != topic_id:
                raise PipelineError(
                    f"Kafka topic {name!r} was deleted and recreated while being read; restart the stream to read the "
                    "new topic from its beginning"
                )
        self._known = {**self._known, **now}
        return {name: f"{name}@{known}" if known else name for name, known in self._known.items()}

    def close(self) -> None:
        if self._ids is not None:
            self._ids.close()
            self._ids = None


def reader_options(source: Kafka) -> dict[str, str]:
    """Return the options of Spark's connector: the user's options over the defaults."""
    for name in source.options:
        if name.lower() in NOT_THEIRS:
            raise UsageError(f"option {name!r} cannot be set; use the arguments of Kafka(servers, topics, pattern=…)")
    # Spark ignores upper and lower case in option names.
    given = {name.lower() for name in source.options}
    usual = {name: value for name, value in DEFAULTS.items() if name.lower() not in given}
    return {
        **usual,
        **source.options,
        "kafka.bootstrap.servers": source.servers,
        "subscribePattern" if source.pattern else "subscribe": source.topics,
        "includeHeaders": "true",
    }


def _records(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    reader = spark.readStream.format("kafka").options(**options)
    try:
        return reader.load()
    except IllegalArgumentException as error:
        raise UsageError(f"cannot read Kafka with these options: {' '.join(str(error).split())}") from error
    except Exception as error:
        lacks = isinstance(error, AnalysisException) and "data source" in str(error).lower()
        if not lacks and "NoClassDefFoundError" not in str(error):
            raise
        raise UsageError(
            "the running Spark session lacks Spark's Kafka connector or a part of it; in a new process, "
            f"{ways_to_give_it()}"
        ) from error


def events_of(records: DataFrame) -> DataFrame:
    """Return the records of Spark's connector as events, which are identified by their positions."""
    key, value = records["key"], records["value"]
    readable = _text(key).isNotNull() & ~F.contains(_text(key), F.lit("\x00"))
    source_partition = F.concat_ws("/", records["topic"], records["partition"].cast("string"))
    headers = _headers(records["headers"])
    marks = (
        _mark(value.isNull(), TOMBSTONE_HEADER, "true"),
        _mark(key.isNotNull() & ~readable, KEY_ENCODING_HEADER, "base64"),
    )
    return records.select(
        F.coalesce(F.try_element_at(headers, F.lit(TYPE_HEADER)), records["topic"]).alias("event_type"),
        F.coalesce(value, F.lit(b"")).alias("payload"),
        F.map_concat(headers, *marks).alias("headers"),
        F.when(readable, _text(key)).otherwise(_base64(key)).alias("partition_key"),
        records["timestamp"].alias("created_at"),
        source_partition.alias("source_partition"),
        records["offset"].alias("offset"),
    )


def _text(column: Column) -> Column:
    """Return bytes as text; null if they are not valid UTF-8."""
    return F.try_validate_utf8(column.cast("string"))


def _base64(column: Column) -> Column:
    """Return base64 without the line breaks that some Spark settings insert."""
    return F.replace(F.base64(column), F.lit("\r\n"), F.lit(""))


def _headers(column: Column) -> Column:
    """Return the headers as a map. For duplicate names, which Kafka allows, the last value wins.

    Headers that are not text and the `OWN_HEADERS` are dropped.
    """

    def add(found: Column, header: Column) -> Column:
        others = F.map_filter(found, lambda name, _: name != header["key"])
        return F.map_concat(others, F.create_map(header["key"], _text(header["value"])))

    def usable(header: Column) -> Column:
        return _text(header["value"]).isNotNull() & ~header["key"].isin(*OWN_HEADERS)

    return F.aggregate(F.coalesce(F.filter(column, usable), F.array()), _no_headers(), add)


def _mark(holds: Column, name: str, value: str) -> Column:
    return F.when(holds, F.create_map(F.lit(name), F.lit(value))).otherwise(_no_headers())


def _no_headers() -> Column:
    return F.create_map().cast("map<string, string>")
