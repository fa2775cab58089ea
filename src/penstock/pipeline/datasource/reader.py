"""`format("penstock")` as a source: events as DataFrames. A stream claims events under leases; a batch reads them
without changing them. Writing is in `penstock.pipeline.datasource.writer`.

Partition i of micro-batch b claims under the lease uuid5(query, b, i). If Spark runs batch b again after a crash, its
partitions repeat their claims and get the unsettled remainder, never new events. The state of events is in the store;
Spark's offset is only a counter.
"""

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid5

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)

from penstock.config.options import flag
from penstock.config.urls import store_url
from penstock.model.errors import StoreConflict, StoreUnavailable, UsageError
from penstock.model.event import DEFAULT_QUEUE
from penstock.model.lease import LeaseId
from penstock.model.lifecycle import DEFAULT_MAX_ATTEMPTS, State
from penstock.model.selection import Selection
from penstock.pipeline.datasource import filters as pushdown
from penstock.pipeline.datasource import writer as sink
from penstock.pipeline.datasource.columns import COLUMNS, arrow_schema
from penstock.pipeline.spark.session import FILTER_PUSHDOWN
from penstock.runtime.starvation import any_starving
from penstock.runtime.store_cache import close_stores, store_of
from penstock.store.api import Store

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from penstock.pipeline.datasource.sender import RelayTaskSpec


# Options of Spark itself that a sink receives among its own options.
SPARKS_OWN = {"checkpointlocation", "queryname"}
WRITE_OPTIONS = ("store", "queue", "event_type")

DEFAULT_LEASE_SECONDS = 300.0
READ_PAGE = 5_000
# Rows per Arrow batch: a claim may contain many gigabytes, and an Arrow batch contains two at most.
CLAIM_PAGE = 1_000


def register_events(spark: "SparkSession") -> None:
    """Register `format("penstock")` with a session."""
    # Spark refuses a source with filter pushdown in a session that has it disabled.
    spark.conf.set(FILTER_PUSHDOWN, "true")
    spark.dataSource.register(PenstockDataSource)


def claim_query(
    spark: "SparkSession", spec: "RelayTaskSpec", parallelism: int, *, every: str, patient: bool
) -> "DataStreamWriter":
    """Return an unstarted streaming query that claims events as `spec` says, once per partition and micro-batch."""
    register_events(spark)
    source = spark.readStream.format("penstock").options(
        store=spec.store,
        queue=spec.queue,
        limit=spec.batch,
        partitions=parallelism,
        lease_seconds=spec.lease_seconds,
        max_attempts=spec.dispatch.retry.max_attempts,
        patient=patient,
    )
    return source.load().writeStream.trigger(processingTime=every)


def drained(store: Store, spec: "RelayTaskSpec") -> bool:
    """True if a draining relay has no ready event left from before `spec.until`. Only valid while no batch runs."""
    if spec.until is None:
        return False
    try:
        store.scan_everything()
        return not store.ready(spec.queue) or not any_starving(store, spec.queue, spec.until)
    except (StoreUnavailable, StoreConflict):
        return False


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Validated options of `format("penstock")`."""

    store: str
    queue: str | None = None
    limit: int = 1_000
    partitions: int = 2
    lease_seconds: float = DEFAULT_LEASE_SECONDS
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    patient: bool = False
    push_filters: bool = False
    state: str | None = None
    event_type: str | None = None
    since: str | None = None
    until: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        given = recognised(options, cls.__dataclass_fields__, "penstock")
        converted: dict[str, Any] = {field: _convert(field, value) for field, value in given.items()}
        return cls(**{"store": store_url(), **converted})

    def target(self) -> sink.Target:
        """Return the target of a write; raise UsageError for an option that is only for reading."""
        fields = self.__dataclass_fields__.values()
        idle = [one.name for one in fields if one.name not in WRITE_OPTIONS and getattr(self, one.name) != one.default]
        if idle:
            raise UsageError(
                f"options for reading only: {', '.join(idle)}; supported for writing: {', '.join(WRITE_OPTIONS)}"
            )
        return sink.Target(self.store, self.queue or DEFAULT_QUEUE, self.event_type)

    def selection(self) -> Selection:
        return Selection(
            states=None if self.state is None else frozenset(map(_state, self.state.split(","))),
            queue=self.queue,
            event_type=self.event_type,
            since=None if self.since is None else _time(self.since),
            until=None if self.until is None else _time(self.until),
        )


class PenstockDataSource(DataSource):
    """The Spark data source `penstock`.

    Options:

    - always: store, queue
    - for a stream: limit (events per claim), partitions, lease_seconds, max_attempts, patient (wait for an unavailable
      store instead of ending the stream)
    - for a batch: state, event_type, since, until, partitions, push_filters
    - for a write: queue and event_type, as defaults of rows without a value
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # Validate in `load()`: PySpark would hide an error of the stream reader behind another one.
        self._checked = SourceOptions.parse(options)
        self._checked.selection()

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> str:
        return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())

    def reader(self, schema: Any) -> "EventReader":  # noqa: ARG002
        return FilteringReader(self._checked) if self._checked.push_filters else EventReader(self._checked)

    def streamReader(self, schema: Any) -> "ClaimReader":  # noqa: ARG002, N802
        return ClaimReader(self._checked)

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        target = self._checked.target()
        sink.check(schema, target, overwrite=overwrite)
        return sink.batch_writer(target)

    def streamWriter(self, schema: Any, overwrite: bool) -> sink.StreamWriter:  # noqa: N802
        target = self._checked.target()
        sink.check(schema, target, overwrite=overwrite)
        return sink.stream_writer(target)


class ClaimReader(DataSourceStreamReader):
    """Stream reader that claims events, on the executors."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._queue = options.queue or DEFAULT_QUEUE

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"b": 0, "n": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: ARG002, N802
        """Return the next offset if the queue has ready events, else `start`.

        The offset records the partition count: a repeated batch repeats all its claims even if the option has changed.
        """
        if not self._ready():
            return start
        return {"b": start["b"] + 1, "n": self._options.partitions}

    def _ready(self) -> bool:
        try:
            return store_of(self._options.store).ready(self._queue)
        except (StoreUnavailable, StoreConflict):
            if self._options.patient:
                return False  # the next probe may succeed
            raise

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return the partitions of a batch, each with the batch number and its index."""
        if start == end:
            return []
        return [InputPartition((end["b"], index)) for index in range(end["n"])]

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        batch, index = partition.value
        query, claimant = _task()
        claim = store_of(self._options.store).claim(
            self._queue,
            limit=self._options.limit,
            claimant=claimant,
            lease_seconds=self._options.lease_seconds,
            lease_id=lease_of(query, batch, index),
            max_attempts=self._options.max_attempts,
        )
        lease, token = str(claim.lease.lease_id), str(claim.lease.token)
        rows = [{**event._asdict(), "lease": lease, "token": token, "state": "CLAIMED"} for event in claim.events]
        for start in range(0, len(rows), CLAIM_PAGE):
            yield _record_batch(rows[start : start + CLAIM_PAGE])

    def stop(self) -> None:
        """Close the stores of this planning process at the end of the query.

        Exit if Spark has closed the connection to this process: PySpark would print a stack trace.
        """
        close_stores()
        if isinstance(sys.exc_info()[1], EOFError):
            os._exit(0)


@dataclass(frozen=True)
class SeqBlocks(InputPartition):
    """Every `count`-th block of `size` sequence numbers, one of which is block number `index` from `origin` on.

    The blocks have no upper or lower bound. Spark runs a plan again with its first partitions, which must then cover
    the events of the second run as well.
    """

    index: int
    count: int
    size: int
    origin: int

    def __contains__(self, seq: int) -> bool:
        return self._ahead(seq) == 0

    def top(self, after: int) -> int:
        """Return the lowest exclusive upper bound of the numbers below `after` that belong to this partition."""
        ahead = self._ahead(after - 1)
        if ahead == 0:
            return after
        block = (after - 1 - self.origin) // self.size
        return self.origin + (block - ahead + 1) * self.size

    def _ahead(self, seq: int) -> int:
        """Return the distance in blocks from `seq` down to this partition's next block; 0 if `seq` is in one."""
        return ((seq - self.origin) // self.size - self.index) % self.count


class EventReader(DataSourceReader):
    """Batch reader of events in any state, without changing them. Each task reads the rows committed when it runs."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self.selection = options.selection()

    def partitions(self) -> Sequence[SeqBlocks]:
        """Return partitions with one block of the present events each; later events fall into further blocks."""
        first, last = store_of(self._options.store).bounds()
        count = self._options.partitions
        size = max(READ_PAGE, -(-(last - first + 1) // count))
        return [SeqBlocks(index, count, size, first) for index in range(count)]

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        assert isinstance(partition, SeqBlocks)
        store = store_of(self._options.store)
        first, last = store.bounds()
        after: int | None = last + 1
        while after is not None and (after := partition.top(after)) > first:
            page = store.find(self.selection, after=after, limit=READ_PAGE)
            rows = [_fields(record) for record in page.records if record.seq in partition]
            if rows:
                yield _record_batch(rows)
            after = page.after


def recognised(options: Mapping[str, str], fields: Collection[str], format_name: str) -> dict[str, str]:
    """Return the options under their names in `fields`, ignoring case and underscores.

    Raise UsageError for an unknown option: a misspelt one must not be ignored.
    """
    known = {name.replace("_", ""): name for name in fields}
    given: dict[str, str] = {}
    for name, value in options.items():
        if name.lower() in SPARKS_OWN:
            continue
        field = known.get(name.lower().replace("_", ""))
        if field is None:
            raise UsageError(f"unknown option {name!r} for format {format_name}; supported: {', '.join(fields)}")
        given[field] = value
    return given


class FilteringReader(EventReader):
    """Batch reader that lets the store evaluate filters of the query.

    Used only with `push_filters`: Spark keeps the reader of a DataFrame, and a later query on the DataFrame that has no
    filter would see only the events that passed the filter of an earlier query.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self.selection, left = pushdown.narrow(self.selection, filters)
        return left


def lease_of(query: str, batch: int, index: int) -> LeaseId:
    """Return the lease ID of a partition. It is the same for every run, on any executor."""
    return LeaseId(uuid5(UUID(query), f"{batch}/{index}"))


def _task() -> tuple[str, str]:
    """Return the id of this task's query, and the claimant name of this task. Each attempt has another name."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context else None
    if context is None or query is None:
        raise UsageError("events can be claimed only in a streaming query; use spark.read to read without claiming")
    run = context.getLocalProperty("spark.jobGroup.id") or "run"
    return query, f"spark:{run}:{context.attemptNumber()}"


def _record_batch(rows: list[dict[str, Any]]) -> "RecordBatch":
    import pyarrow as pa

    for row in rows:
        row["event_id"] = str(row["event_id"])
        row["headers"] = list(row["headers"].items())
    return pa.RecordBatch.from_pylist(rows, schema=_arrow_schema())


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}


@lru_cache(maxsize=1)
def _arrow_schema() -> Any:
    return arrow_schema(COLUMNS)


def _convert(field: str, value: str) -> Any:
    kinds: dict[str, type] = {"limit": int, "partitions": int, "max_attempts": int, "lease_seconds": float}
    if field in ("patient", "push_filters"):
        return flag({field: value}, field, False)
    try:
        converted = kinds.get(field, str)(value)
    except ValueError:
        raise UsageError(f"{field} must be a number, got {value!r}") from None
    if field in kinds and converted <= 0:
        raise UsageError(f"{field} must be greater than 0, got {value}")
    return converted


def _state(name: str) -> State:
    try:
        return State(name.strip().upper())
    except ValueError:
        raise UsageError(f"unknown state {name!r}; expected one of {', '.join(State)}") from None


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"invalid time {text!r}; expected ISO 8601 such as 2026-01-31T12:00:00+00:00") from None
    return time if time.tzinfo else time.astimezone()
