"""`format("penstock")`: events as DataFrames. A stream claims them under leases; a batch reads them untouched. What is
written becomes events: see `penstock.pipeline.datasource.writer`.

Partition i of micro-batch b claims under the lease uuid5(query, b, i). After a crash Spark runs batch b again, and its
partitions repeat their claims: they get the unsettled remainder, never new events. The store is the truth, and Spark's
offset only counts.
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


# What Spark passes on to a sink with its options.
SPARKS_OWN = {"checkpointlocation", "queryname"}
WRITE_OPTIONS = ("store", "queue", "event_type")

DEFAULT_LEASE_SECONDS = 300.0
READ_PAGE = 5_000
# A claim may hold gigabytes, and Arrow takes two of them in a batch.
CLAIM_PAGE = 1_000


def register_events(spark: "SparkSession") -> None:
    """Make `format("penstock")` known to a session."""
    # Spark refuses a source that answers filters in a session that doesn't push them.
    spark.conf.set(FILTER_PUSHDOWN, "true")
    spark.dataSource.register(PenstockDataSource)


def claim_query(
    spark: "SparkSession", spec: "RelayTaskSpec", parallelism: int, *, every: str, patient: bool
) -> "DataStreamWriter":
    """Return a query, yet to be started, whose micro-batches are claims of a relay."""
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
    """True if a draining relay has no ready event from before its end. Only valid while no batch runs."""
    if spec.until is None:
        return False
    try:
        store.scan_everything()
        return not store.ready(spec.queue) or not any_starving(store, spec.queue, spec.until)
    except (StoreUnavailable, StoreConflict):
        return False


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of `format("penstock")`, checked."""

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
        """The options of a write, which takes few of them."""
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
    """Options: store, queue, and for a stream limit (events a claim), partitions, lease_seconds, max_attempts and
    patient (a store that can't be reached is waited for, and doesn't end the stream); for a batch state, event_type,
    since, until, partitions, push_filters; for a write queue and event_type, where a row has none."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # Here, at `load()`: PySpark hides an error of a stream's reader behind one of its own.
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
    """Claims events, on the executors."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._queue = options.queue or DEFAULT_QUEUE

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"b": 0, "n": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: ARG002, N802
        """The next batch if a probe finds anything. It carries its partition count: a changed one orphans no lease."""
        if not self._ready():
            return start
        return {"b": start["b"] + 1, "n": self._options.partitions}

    def _ready(self) -> bool:
        try:
            return store_of(self._options.store).ready(self._queue)
        except (StoreUnavailable, StoreConflict):
            if self._options.patient:
                return False  # the next probe may get through
            raise

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """The partitions of a batch: its number, and theirs."""
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
        """The query has ended, and Spark hung up on the process that plans it: PySpark would print a stack trace."""
        close_stores()
        if isinstance(sys.exc_info()[1], EOFError):
            os._exit(0)


@dataclass(frozen=True)
class SeqBlocks(InputPartition):
    """Every `count`-th block of `size` numbers, up and down without an end; block `index` from `origin` on is one of
    them. Spark runs a plan again with the partitions that it had the first time, so they must not have bounds."""

    index: int
    count: int
    size: int
    origin: int

    def __contains__(self, seq: int) -> bool:
        return self._ahead(seq) == 0

    def top(self, after: int) -> int:
        """Return the number after the highest one of these blocks that is below `after`."""
        ahead = self._ahead(after - 1)
        if ahead == 0:
            return after
        block = (after - 1 - self.origin) // self.size
        return self.origin + (block - ahead + 1) * self.size

    def _ahead(self, seq: int) -> int:
        """Return how many blocks there are between `seq` and the next lower one of these; 0 if it is in one."""
        return ((seq - self.origin) // self.size - self.index) % self.count


class EventReader(DataSourceReader):
    """Reads events in any state, and changes nothing. Each task reads what is committed when it runs."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self.selection = options.selection()

    def partitions(self) -> Sequence[SeqBlocks]:
        """One block for each partition, as things stand; what is emitted later falls into the blocks behind them."""
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
    """The options under the names of `fields`, however they are spelt: a misspelt one must not be without effect."""
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
    """What the query filters by, the store is asked for. Only if it is wanted: Spark keeps the reader of a DataFrame,
    and a later query on it that has no filter would see what an earlier one's let through."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self.selection, left = pushdown.narrow(self.selection, filters)
        return left


def lease_of(query: str, batch: int, index: int) -> LeaseId:
    """The lease of a partition: the same whenever, wherever and however often it runs."""
    return LeaseId(uuid5(UUID(query), f"{batch}/{index}"))


def _task() -> tuple[str, str]:
    """The query that this task belongs to, and the claimant that it is: another attempt is another claimant."""
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
