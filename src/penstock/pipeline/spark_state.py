"""Streams whose state is Spark's own: the same handlers, in `transformWithState`, with the state in Spark's checkpoint.

What a batch emits goes to the outbox under the number of the batch, which the outbox takes once. Its outcomes are told
to the source when Spark has committed it, and not before: a batch that Spark runs again must find all of its events.
Between the two an event may come again. That it was there, the state of its key knows: an event that failed is to come
again under the same id, so that Spark's own operators for duplicates, which forget nothing, would not do.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import reduce
from importlib import import_module
from typing import TYPE_CHECKING
from uuid import NAMESPACE_OID, UUID, uuid4, uuid5

from penstock.config import needs_extra
from penstock.errors import PenstockError, UsageError
from penstock.pipeline.session import settings
from penstock.pipeline.stores import store_of
from penstock.pipeline.stream_batches import TRIGGER, Stopped, StreamRun
from penstock.pipeline.stream_errands import Errand
from penstock.pipeline.stream_keys import keyed
from penstock.pipeline.stream_rows import Batches
from penstock.pipeline.stream_ticks import Row
from penstock.pipeline.stream_told import OUTCOMES
from penstock.store.base import Part as StagedPart
from penstock.streams.app import Stream, StreamSet
from penstock.streams.state.base import Started
from penstock.streams.state.packing import unpack_event

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SCHEME = "spark:"
LOOK_SECONDS = 0.2
STOP_SECONDS = 30.0
WORKED = f"{OUTCOMES}, event BINARY"
# What a task tells of the events that it has staged: seq is how many, lease the write, token the part.
STAGED = "STAGED"
EMITTED = "EMITTED"
SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Else there would be one empty batch after the other, for state that may have to be forgotten.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}


def is_sparks(state: str) -> bool:
    """Whether a state URL says that Spark is to keep it."""
    return state.startswith(SCHEME)


def require_sparks(streams: Sequence[Stream], checkpoint: str | None) -> None:
    """The state is in the checkpoint: one that is thrown away won't do. Nor has it all that other states have."""
    if checkpoint is None:
        raise UsageError('state="spark:" lives in Spark\'s checkpoint: say where that is to be kept, checkpoint="…"')
    for stream in streams:
        if stream.batch is not None or stream.has_timers:
            raise UsageError(f'stream {stream.name!r}: state="spark:" has no batch handlers, timers or windows')
    with needs_extra("State in Spark", "spark"):
        import_module("google.protobuf")  # what Spark's Python and Java talk about state in


class SparkStateRun(StreamRun):
    """One stream's query, with the state in it: it is one, as only one can have the state."""

    def __init__(self, spark: "SparkSession", app: StreamSet, stream: Stream, parallelism: int = 2) -> None:
        super().__init__(spark, app, stream, Started(stream.name, 0, stream.parts), parallelism)
        self._handled: dict[int, list[Row]] = {}
        """By number of the batch, outcomes that wait for Spark's commit."""
        self._settling = threading.Lock()
        self._looking: threading.Thread | None = None

    def launch(self, folder: str) -> None:
        self._folder = folder
        self.queries.append(self._begin(0))
        self._looking = threading.Thread(target=self._look, daemon=True)
        self._looking.start()

    def _start(self, _at: int) -> "StreamingQuery":
        from pyspark.sql import DataFrame

        from penstock.pipeline.spark_processor import HandlerProcessor

        processor = HandlerProcessor(self._errand, self._feeds[0].remember_seconds)
        sources = [keyed(feed.load(self._spark), self._errand) for feed in self._feeds]
        rows = reduce(DataFrame.unionByName, sources).selectExpr(
            "* EXCEPT (stream_key, created_at)",
            "coalesce(stream_key, '') AS stream_key",
            "unix_micros(created_at) AS created_micros",
        )
        with settings(self._spark, SETTINGS | {"spark.sql.shuffle.partitions": str(self.stream.parts)}):
            worked = rows.groupBy("stream_key").transformWithState(processor, WORKED, "Update", "ProcessingTime")
            writer = worked.writeStream.foreachBatch(self._staged).outputMode("update")
            writer = writer.queryName(f"penstock {self.stream.name}")
            writer = writer.option("checkpointLocation", f"{self._folder}/{self.stream.name}")
            return writer.trigger(processingTime=TRIGGER).start()

    def stop(self) -> None:
        super().stop()
        if self._looking is not None:
            self._looking.join(STOP_SECONDS)
        with suppress(Stopped):
            self._settle_committed()

    def _staged(self, batch: "DataFrame", number: int) -> None:
        try:
            self._settle_before(number)
            rows = [row.asDict() for row in batch.mapInArrow(stage(self._errand, number), OUTCOMES).collect()]
            self._emit(number, [row for row in rows if row["outcome"] == STAGED])
            with self._settling:
                self._handled[number] = [row for row in rows if row["outcome"] != STAGED]
        except PenstockError as error:
            self.error = error
            raise

    def _emit(self, number: int, staged: Sequence[Row]) -> None:
        parts = {UUID(row["token"]): row["seq"] for row in staged}
        for write_id in {UUID(row["lease"]) for row in staged}:
            store = store_of(self._errand.store)
            self._patiently(lambda: store.commit_staged(write_id, number, parts, once=True))  # noqa: B023

    def _look(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            try:
                self._settle_committed()
            except Stopped:
                return
            except PenstockError as error:
                self.error = error
                return

    def _settle_committed(self) -> None:
        progress = self.queries[0].lastProgress if self.queries else None
        # Without it no batch was run: a query that waits tells of the batch that is next.
        if progress is not None and "addBatch" in progress.durationMs:
            self._settle_before(progress.batchId + 1)

    def _settle_before(self, number: int) -> None:
        """Spark has committed all batches before this one: now their sources may know."""
        with self._settling:
            for done in sorted(one for one in self._handled if one < number):
                self._acknowledge(self._feeds[0], self._handled[done])
                self._acknowledged = {}  # the state forgets by itself
                del self._handled[done]


def stage(errand: Errand, number: int) -> Callable[[Batches], Batches]:
    """Stages what was emitted in a batch, and passes on the outcomes."""

    def run(batches: Batches) -> Batches:
        import pyarrow as pa

        part, count = StagedPart(uuid4(), _write_id(), number), 0
        for batch in batches:
            events = [unpack_event(packed) for packed in batch.column("event").to_pylist() if packed is not None]
            if events:
                store_of(errand.store).stage(part, events, start=count)
            count += len(events)
            outcomes = batch.filter(batch.column("event").is_null()).drop_columns(["event"])
            yield outcomes
        if count:
            told = {"seq": count, "lease": str(part.write_id), "token": str(part.part_id), "outcome": STAGED}
            yield pa.RecordBatch.from_pylist([told], schema=outcomes.schema)

    return run


def _write_id() -> UUID:
    """The same for all batches of a checkpoint."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return uuid5(NAMESPACE_OID, f"penstock {context.getLocalProperty('sql.streaming.queryId')}")
