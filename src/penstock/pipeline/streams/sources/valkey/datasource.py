"""`format("penstock-valkey")`: entries of Valkey and Redis streams as a streaming DataFrame, read by consumer groups.

Each partition reads as a separate consumer, and first gets the entries that this consumer has not acknowledged. So a
batch that runs again has at least its unacknowledged entries, and may have more. The consumer group is the
authoritative record; Spark's offset only counts batches and stores the names of the consumers. Call `acknowledge` after
everything is committed.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pyarrow import RecordBatch
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from penstock.config.extras import needs_extra
from penstock.config.options import flag, whole_number
from penstock.config.urls import url_scheme
from penstock.model.errors import SourceUnavailable, UnknownScheme, UsageError
from penstock.pipeline.datasource.columns import arrow_schema
from penstock.pipeline.datasource.reader import recognised
from penstock.pipeline.streams.sources.valkey.entries import COLUMNS, Rows, StreamEntry, pages
from penstock.telemetry import log

with needs_extra("format penstock-valkey", "valkey"):
    from penstock.pipeline.streams.sources.valkey.consumer_group import (
        BEGINNING,
        ONLY_NEW,
        Group,
        acknowledge,
        client_of,
        take,
    )

__all__ = ["StreamOptions", "ValkeyDataSource", "acknowledge", "register"]

FORMAT = "penstock-valkey"
SCHEMES = ("redis", "rediss", "valkey", "valkeys")
STARTS = {"beginning": BEGINNING, "new": ONLY_NEW}
WAIT_SECONDS = 0.5

Offset = dict[str, Any]


def register(spark: SparkSession) -> None:
    """Register `format("penstock-valkey")` with a session."""
    spark.dataSource.register(ValkeyDataSource)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Validated options of `format("penstock-valkey")`."""

    url: str
    stream: str
    group: str
    consumer: str | None = None
    partitions: int = 1
    limit: int = 10_000
    min_idle_time_ms: int = 60_000
    payload_field: str = "payload"
    start: str = "beginning"
    patient: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "StreamOptions":
        given = recognised(options, cls.__dataclass_fields__, FORMAT)
        for name in ("url", "stream", "group"):
            if not given.get(name, "").strip(" ,"):
                raise UsageError(f"missing option {name!r} for format {FORMAT}")
        numbers = {name: whole_number(given, name) for name in ("partitions", "limit", "min_idle_time_ms")}
        converted: dict[str, Any] = {name: value for name, value in numbers.items() if value is not None}
        checked = cls(**{**given, **converted, "patient": flag(given, "patient", False)})
        if checked.start not in STARTS:
            raise UsageError(f"unknown value {checked.start!r} for start; expected one of {', '.join(STARTS)}")
        if (scheme := url_scheme(checked.url)) not in SCHEMES:
            raise UnknownScheme(f"unknown scheme {scheme!r} for format {FORMAT}; supported: {', '.join(SCHEMES)}")
        client_of(checked.url)
        return checked

    def groups(self) -> list[Group]:
        """Return the consumer group of each stream."""
        names = dict.fromkeys(name.strip() for name in self.stream.split(","))
        return [Group(self.url, name, self.group) for name in names if name]


class ValkeyDataSource(DataSource):
    """Options: url, stream (or several, comma-separated), group, consumer (a name prefix), partitions, limit (entries
    per batch and partition), min_idle_time_ms, payload_field, start (beginning or new; for a group that does not exist
    yet) and patient (wait for a server that is unavailable, instead of ending the stream)."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # Validate in `load()`: PySpark would wrap an error raised by the stream reader.
        self._checked = StreamOptions.parse(options)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())

    def streamReader(self, schema: Any) -> "EntryReader":  # noqa: ARG002, N802
        return EntryReader(self._checked)


class ConsumerPartition(InputPartition):
    """Partition of micro-batch `batch` that one consumer reads."""

    def __init__(self, batch: int, index: int, consumer: str) -> None:
        super().__init__((batch, index, consumer))
        self.batch = batch
        self.index = index
        self.consumer = consumer


class EntryReader(DataSourceStreamReader):
    """Stream reader that takes entries on the executors."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._waits = False

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return the first offset. Without the option consumer, generate a unique name; the checkpoint keeps it."""
        return {"b": 0, "n": 0, "c": self._options.consumer or f"penstock-{uuid4().hex[:12]}"}

    def latestOffset(self, start: Offset, limit: Any) -> Offset:  # noqa: ARG002, N802
        """Return the offset of the next batch if entries are available, else `start`.

        The previous batch has ended by now, and has sent all its acknowledgements. Entries that are still pending for
        its consumers must be delivered again.
        """
        following = {
            "b": start["b"] + 1,
            "n": self._options.partitions,
            "c": self._options.consumer or start["c"],
        }
        try:
            found = self._finds_something(following)
        except SourceUnavailable as error:
            self._wait_for(error)
            return start
        self._waits = False
        return following if found else start

    def _finds_something(self, following: Offset) -> bool:
        groups = self._options.groups()
        if following["b"] == 1:
            # Create groups only before the first batch. If a group disappears later, a new one would silently deliver
            # acknowledged entries again.
            for group in groups:
                group.ensure(STARTS[self._options.start])
        consumers = [partition.consumer for partition in _partitions(following)]
        return any(group.has_something(consumers, self._options.min_idle_time_ms) for group in groups)

    def _wait_for(self, error: SourceUnavailable) -> None:
        """Log the first error and let the caller wait, if the option patient is set; otherwise raise the error."""
        if not self._options.patient:
            raise error
        if not self._waits:
            log.warn("source_unavailable", error=error)
        self._waits = True

    def partitions(self, start: Offset, end: Offset) -> Sequence[ConsumerPartition]:
        return [] if start == end else _partitions(end)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        assert isinstance(partition, ConsumerPartition)
        rows = Rows(self._options.payload_field)
        for page in pages(self._take(partition)):
            yield RecordBatch.from_pylist([rows.row(entry) for entry in page], schema=arrow_schema(COLUMNS))
        if rows.dropped_headers:
            log.warn(
                "headers_dropped",
                stream=self._options.stream,
                count=rows.dropped_headers,
            )

    def _take(self, partition: ConsumerPartition) -> list[StreamEntry]:
        """Take entries for a partition. After a lost connection, take all entries again.

        Entries in the lost response are pending for this consumer by now, so none is lost.
        """
        while True:
            try:
                return take(
                    self._options.groups(),
                    partition.consumer,
                    limit=self._options.limit,
                    min_idle_time_ms=self._options.min_idle_time_ms,
                    rotation=partition.batch + partition.index,
                )
            except SourceUnavailable as error:
                self._wait_for(error)
                time.sleep(WAIT_SECONDS)


def _partitions(offset: Offset) -> list[ConsumerPartition]:
    return [ConsumerPartition(offset["b"], index, f"{offset['c']}-{index}") for index in range(offset["n"])]
