"""Streams on Spark, the driver's side: a streaming query for each, whose micro-batches are claimed, shuffled to the
parts that their keys belong to, processed there, and then acknowledged."""

import threading
from collections.abc import Sequence
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from penstock import telemetry
from penstock.errors import PipelineError, UsageError
from penstock.lifecycle import Published
from penstock.pipeline.session import is_local, open_session
from penstock.pipeline.settling import by_lease
from penstock.pipeline.stores import store_of
from penstock.pipeline.stream_tasks import OUTCOMES, READ, ROWS, Errand, assign, process
from penstock.streams.app import Stream, Streams
from penstock.streams.state import open_state
from penstock.streams.state.base import Arrival, Started

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TRIGGER = "100 milliseconds"
LIMIT = 10_000
LEASE_SECONDS = 300.0
LOOK_SECONDS = 0.2
# How often an event may be in the hands of a process that dies: what it fails by itself is counted by the stream.
LOST_ATTEMPTS = 50


def run_streams(
    app: Streams,
    *,
    spark: "SparkSession | None" = None,
    master: str | None = None,
    names: Sequence[str] | None = None,
    once: bool = False,
    checkpoint: str | None = None,
    stop: threading.Event | None = None,
    parallelism: int = 2,
) -> None:
    """Run an application's streams until `stop` is set; with `once`, until nothing is ready.

    Spark's checkpoint keeps nothing that counts: without `checkpoint` it lies in a temporary folder.
    """
    session = spark or open_session(master or "local[*]")
    chosen = _chosen(app, names)
    state = open_state(app.state)
    if not state.shared and not is_local(session.sparkContext.master or ""):
        raise UsageError(f"{state.url} is on one machine's disk; on a cluster keep the state in PostgreSQL")
    running = [_Running(session, app, stream, state.start(stream.name, stream.parts)) for stream in chosen]
    state.close()
    folder = checkpoint or mkdtemp(prefix="penstock-streams-")
    queries = [one.start(f"{folder}/{one.stream.name}", parallelism) for one in running]
    try:
        _watch(queries, once=once, stop=stop or threading.Event())
    finally:
        for query in queries:
            query.stop()


def _chosen(app: Streams, names: Sequence[str] | None) -> list[Stream]:
    unknown = sorted(set(names or ()) - app.streams.keys())
    if unknown:
        raise UsageError(f"there is no stream {unknown[0]!r}; there are: {', '.join(sorted(app.streams)) or 'none'}")
    if not app.streams:
        raise UsageError('this application has no streams: give it one, @app.stream("queue")')
    return [stream for name, stream in app.streams.items() if names is None or name in names]


class _Running:
    """One stream's query, and what it has acknowledged since the last batch."""

    def __init__(self, spark: "SparkSession", app: Streams, stream: Stream, started: Started) -> None:
        self.stream = stream
        self._spark = spark
        self._app = app
        self._started = started
        self._acknowledged: dict[int, list[Arrival]] = {}
        telemetry.info("stream runs", stream=stream.name, epoch=started.epoch, parts=started.parts)

    def start(self, checkpoint: str, parallelism: int) -> "StreamingQuery":
        from penstock.pipeline.source import register

        register(self._spark)
        claims = self._spark.readStream.format("penstock").options(
            store=self._app.store,
            queue=self.stream.queue,
            limit=LIMIT,
            partitions=parallelism,
            lease_seconds=LEASE_SECONDS,
            max_attempts=self.stream.max_retries + LOST_ATTEMPTS,
            patient=True,
        )
        writer = claims.load().writeStream.foreachBatch(self._handle).queryName(f"penstock {self.stream.name}")
        writer = writer.option("checkpointLocation", checkpoint).trigger(processingTime=TRIGGER)
        return writer.start()

    def _handle(self, batch: "DataFrame", _number: int) -> None:
        acknowledged, self._acknowledged = self._acknowledged, {}
        errand = Errand(self.stream, self._started, self._app.store, self._app.state, acknowledged)
        parted = batch.select(*READ).mapInArrow(assign(errand), ROWS)
        tasks = min(self._started.parts, max(1, self._spark.sparkContext.defaultParallelism))
        rows = parted.repartition(tasks, "part").mapInArrow(process(errand), OUTCOMES).collect()
        self._acknowledge([row.asDict() for row in rows])

    def _acknowledge(self, rows: Sequence[dict[str, object]]) -> None:
        """The state is committed: now the store may know. What it doesn't take any more comes again, and changes
        nothing then."""
        store = store_of(self._app.store)
        done: set[int] = set()
        for lease, outcomes in by_lease(rows).items():
            told = store.settle(lease, outcomes)
            done |= {seq for seq in told.published | told.already_settled if isinstance(outcomes[seq], Published)}
        for row in rows:
            if row["seq"] in done and row["outcome"] == "PUBLISHED":
                arrival = Arrival(str(row["event_id"]), int(str(row["replays"])))
                self._acknowledged.setdefault(int(str(row["part"])), []).append(arrival)


def _watch(queries: "Sequence[StreamingQuery]", *, once: bool, stop: threading.Event) -> None:
    if once:
        for query in queries:
            query.processAllAvailable()
        _require_well(queries)
        return
    while not stop.wait(LOOK_SECONDS):
        _require_well(queries)


def _require_well(queries: "Sequence[StreamingQuery]") -> None:
    for query in queries:
        error = query.exception()
        if error is not None:
            raise PipelineError(f"{query.name} has failed: {str(error).splitlines()[0]}")
