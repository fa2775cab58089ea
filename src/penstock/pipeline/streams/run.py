"""Run of one stream on the driver: processes micro-batches, retries unavailable state partitions, acknowledges events.

If the tasks of a batch die even after Spark's retries, the batch is split in halves until the event that kills them is
found. That event becomes dead.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar
from uuid import UUID

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from penstock.model.errors import PenstockError, PipelineError, SourceUnavailable, StoreConflict, StoreUnavailable
from penstock.model.event import DEFAULT_QUEUE
from penstock.model.lease import Lease, LeaseId, Token
from penstock.model.outcome import Published
from penstock.model.text import brief
from penstock.pipeline.datasource.settle import by_lease
from penstock.pipeline.spark.session import settings
from penstock.pipeline.streams.jobs import JobRunner, Row, TasksDied
from penstock.pipeline.streams.partitioning import keyed
from penstock.pipeline.streams.results import APPLIED_COUNT, OUTCOMES, TaskError
from penstock.pipeline.streams.sources.base import SparkSource
from penstock.pipeline.streams.sources.registry import sources_of
from penstock.pipeline.streams.task import process
from penstock.pipeline.streams.task_spec import JOB_PROPERTY, StreamTaskSpec
from penstock.runtime.store_cache import store_of
from penstock.streams.app import Stream, StreamSet
from penstock.streams.engine.partition import Firing
from penstock.streams.engine.work import EventFailure
from penstock.streams.state.api import Arrival, Started, Superseded
from penstock.streams.state.registry import open_state
from penstock.telemetry import log

TRIGGER = "100 milliseconds"
# Subfolder of a stream's checkpoint, for the query over its retry queue.
OWN_CHECKPOINT = "own-queue"
SETTINGS = {
    # Replanning a Spark job while it runs takes longer than the rest of a small batch.
    "spark.sql.adaptive.enabled": "false",
    # Send operators to tasks as partition evaluators. Spark would have to search closures for captured objects.
    "spark.sql.execution.usePartitionEvaluator": "true",
    # Skip the plan validation that Spark's optimizer runs after each rule.
    "spark.sql.lightweightPlanChangeValidation": "false",
    # To enforce the byte limit, Spark sums the sizes of all columns again for each row: a fifth of a task's time. Limit
    # the number of rows instead: 500 rows fit into 2 GB if each has less than 4 MB.
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647b",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
    # On a local disk Hadoop writes a checksum file beside each file, and starts a process per file to set its mode:
    # 6 ms per checkpoint entry. With the raw file system, an entry is a single file that is renamed into place.
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
FORGET_SECONDS = 3_600.0
# If more events of one batch than this kill their process, the fault lies with the processes and not with the events.
MOST_FATAL_EVENTS = 10
KILLED = "the process died each time it handled this event alone"
TICK_SECONDS = 1.0
STOP_SECONDS = 30.0

Result = TypeVar("Result")


class Stopped(Exception):
    """The stream is stopping: its current batch is abandoned."""


@dataclass(slots=True)
class Counts:
    """Counts of a stream's batches, event outcomes and fired timers since the run began."""

    batches: int = 0
    applied: int = 0
    retried: int = 0
    dead: int = 0
    fired: int = 0
    """Number of fired timers and closed windows."""


class StreamRun:
    """Run of one stream: a query over its source and, if the stream has a retry queue, a second query over that queue.
    A single query would have to plan both sources in every batch."""

    def __init__(self, spark: SparkSession, app: StreamSet, stream: Stream, started: Started, parallelism: int) -> None:
        self.stream = stream
        self.started = started
        self.counts = Counts()
        self.error: PenstockError | None = None
        """Error that ended the stream. Spark's own error hides the cause in a long message."""
        self._spark = spark
        self.queries: list[StreamingQuery] = []
        self._sources = sources_of(stream, app.store, parallelism)
        self._spec = StreamTaskSpec(stream, started, app.store, app.state, self._sources[0].wants_acknowledgements)
        self._acknowledged: dict[int, list[Arrival]] = {}
        self._stopping = threading.Event()
        self._busy = threading.Lock()
        """Locked while a Spark job runs: two concurrent Spark jobs of a stream would fence each other."""
        self._ticking: threading.Thread | None = None
        self._job_runner = JobRunner(spark, self._spec)
        self._folder = ""
        self._forgot = 0.0
        self._jobs = 0
        log.info("stream_started", stream=stream.name, epoch=started.epoch, parts=started.parts)

    def launch(self, folder: str) -> None:
        """Start the queries, with their checkpoints below `folder`."""
        self._folder = folder
        for at in range(len(self._sources)):
            self.queries.append(self._begin(at))

    def launch_again(self, at: int) -> None:
        """Restart the query with index `at` from its checkpoint."""
        self.queries[at] = self._begin(at)

    def _begin(self, at: int) -> StreamingQuery:
        """Start a query. An error of Spark is raised as a one-line `PipelineError`."""
        try:
            return self._start(at)
        except PySparkException as error:
            raise PipelineError(f"cannot start stream {self.stream.name!r}: {brief(error)}") from error

    def _start(self, at: int) -> StreamingQuery:
        source = self._sources[at]
        # Tasks that are planned ahead get the values of each Spark job as a local property, which must be small. For
        # sources with acknowledgements or leases the values include the acknowledged events, and may be large.
        ahead = not (source.wants_acknowledgements or source.leases)
        spec = replace(self._spec, ahead=ahead)
        # Add these operators to the streaming query: in foreachBatch, planning them takes 0.1 s in every batch.
        rows = keyed(source.load(self._spark), spec)
        if ahead:
            rows = self._processed(rows, spec)
        places = [self._folder, self.stream.name, source.checkpoint_version, OWN_CHECKPOINT if at else ""]
        writer = rows.writeStream.foreachBatch(partial(self._handle, source, spec))
        writer = writer.queryName(f"penstock {self.stream.name}{' (retry queue)' if at else ''}")
        writer = writer.option("checkpointLocation", "/".join(filter(None, places)))
        with settings(self._spark, SETTINGS):
            return writer.trigger(processingTime=TRIGGER).start()

    def _processed(self, rows: DataFrame, spec: StreamTaskSpec) -> DataFrame:
        tasks = self._job_runner.tasks
        # Assign each state partition to a task by its number: a hash would give some tasks many and others none.
        return rows.repartitionById(tasks, F.col("part") % tasks).mapInArrow(process(spec), OUTCOMES)

    def stop(self) -> None:
        """Interrupt pauses, start no more batches, and wait up to 30 s for the timer thread."""
        self._stopping.set()
        if self._ticking is not None:
            self._ticking.join(STOP_SECONDS)

    def finish(self) -> None:
        """Wait until the current batch is acknowledged or has failed, then stop the queries and close the sources."""
        with self._busy:
            pass
        for query in self.queries:
            query.stop()
        for source in self._sources:
            source.close()
        counts = self.counts
        results = {"applied": counts.applied, "retried": counts.retried, "dead": counts.dead}
        log.info("stream_stopped", stream=self.stream.name, **results)

    def start_ticking(self) -> None:
        """Start a thread that fires due timers and windows while no events arrive."""
        if self.stream.has_timers:
            self._ticking = threading.Thread(target=self._tick_on, daemon=True)
            self._ticking.start()

    def tick(self) -> bool:
        """Fire timers and windows that are due now, without a batch of events. Return True if any fired."""
        if not self.stream.has_timers:
            return False
        with self._busy:
            fired = self._job_runner.run(drained=self._is_drained())
            self.counts.fired = self._job_runner.fired
        return fired

    def _is_drained(self) -> bool:
        """True if the source had nothing new when Spark last asked. Before the first answer, the message differs."""
        if not self.queries:
            return False
        status = self.queries[0].status
        return not status["isDataAvailable"] and str(status["message"]).startswith("Waiting for")

    def _tick_on(self) -> None:
        while not self._stopping.wait(TICK_SECONDS):
            try:
                while self.tick() and not self._stopping.is_set():
                    continue
            except Exception as error:
                if not self._stopping.is_set():
                    self.error = error if isinstance(error, PenstockError) else PipelineError(brief(error))
                return

    def _handle(self, source: SparkSource, spec: StreamTaskSpec, batch: DataFrame, _number: int) -> None:
        """Process one batch. Keep the error that ends the stream in `error`, because Spark wraps and logs errors.

        For a source with leases, a Penstock error is not raised to Spark at all.
        """
        with self._busy:
            try:
                if self._stopping.is_set():
                    raise Stopped
                self._process(source, spec, batch)
            except (PenstockError, Stopped) as error:
                self.error = self.error or (error if isinstance(error, PenstockError) else None)
                self._stopping.set()
                if not source.leases:
                    raise  # only Spark's checkpoint records the source's progress: it must not mark the batch as done
            except Exception as error:
                if not self._stopping.is_set():
                    self.error = PipelineError(f"stream {self.stream.name!r} failed: {brief(error)}")
                raise

    def _process(self, source: SparkSource, spec: StreamTaskSpec, batch: DataFrame) -> None:
        self._forget()
        self._jobs = 0
        topics = self._patiently(source.topics)
        spec = replace(spec, acknowledged=self._acknowledged, topics=topics)
        try:
            rows = self._run(batch, spec)
        except TasksDied as died:
            log.warn("tasks_died", stream=self.stream.name, suspects="events", error=died)
            rows = self._run_carefully(batch, replace(spec, firing=Firing(limit=0)))
        except Superseded:
            self._release(batch, spec)
            raise
        # The state partitions in the result have removed their acknowledged events from the inbox. Keep those of the
        # other state partitions for a later Spark job.
        trimmed = {row["part"] for row in rows}
        self._acknowledged = {part: known for part, known in self._acknowledged.items() if part not in trimmed}
        self.counts.applied += sum(int(row["error"]) for row in rows if row["outcome"] == APPLIED_COUNT)
        rows = [row for row in rows if row["outcome"] != APPLIED_COUNT]
        self._acknowledge(source, rows if self._jobs == 1 else self._under_new_tokens(rows))

    def _release(self, batch: DataFrame, spec: StreamTaskSpec) -> None:
        """Release the batch's leases, so that the driver that took over need not wait for their expiry."""
        store = store_of(self._spec.store)
        try:
            listed = self._job(batch, replace(spec, listing=True))
            for lease, token in {(row["lease"], row["token"]) for row in listed}:
                if lease is not None:
                    store.release(Lease(LeaseId(UUID(lease)), Token(UUID(token)), DEFAULT_QUEUE))
        except Exception as error:
            log.warn("release_failed", stream=self.stream.name, error=brief(error))

    def _run(self, batch: DataFrame, spec: StreamTaskSpec) -> list[Row]:
        """Run the batch and return the results of its events. Retry unavailable state partitions without limit."""
        done: list[Row] = []
        for pause in _pauses():
            rows = self._job(batch, spec)
            waiting = {row["part"]: row["error"] for row in rows if row["outcome"] == TaskError.WAITING}
            done += [row for row in rows if row["outcome"] not in set(TaskError)]
            if not waiting:
                break
            log.warn(
                "state_partitions_wait", stream=self.stream.name, count=len(waiting), error=next(iter(waiting.values()))
            )
            spec = replace(spec, parts=frozenset(waiting))
            self._pause(pause)
        return done

    def _job(self, batch: DataFrame, spec: StreamTaskSpec) -> list[Row]:
        self._jobs += 1
        spec = self._job_runner.next_job(spec)
        if spec.ahead:
            self._spark.sparkContext.setLocalProperty(JOB_PROPERTY, spec.encode_job())
            return self._job_runner.collect(batch)
        return self._job_runner.collect(self._processed(batch, spec))

    def _run_carefully(self, batch: DataFrame, spec: StreamTaskSpec) -> list[Row]:
        listed = self._job(batch, replace(spec, listing=True))  # ordered within each state partition
        arrivals = list(dict.fromkeys(Arrival(row["event_id"], row["replays"]) for row in listed))
        return self._halve(batch, spec, arrivals, fatal=[])

    def _halve(
        self, batch: DataFrame, spec: StreamTaskSpec, arrivals: Sequence[Arrival], fatal: list[Arrival]
    ) -> list[Row]:
        """Run the given events. If their tasks die, run each half separately, the earlier half first.

        A single event that kills its task becomes dead, and is added to `fatal`.
        """
        try:
            return self._run(batch, replace(spec, only=frozenset(arrivals)))
        except TasksDied as died:
            if len(arrivals) > 1:
                middle = len(arrivals) // 2
                first = self._halve(batch, spec, arrivals[:middle], fatal)
                return first + self._halve(batch, spec, arrivals[middle:], fatal)
            fatal += arrivals
            if len(fatal) > MOST_FATAL_EVENTS:
                raise PipelineError(f"more than {MOST_FATAL_EVENTS} events killed their process: {died}") from died
        log.warn("poison_event", stream=self.stream.name, event_id=arrivals[0].event_id)
        failures = {arrivals[0]: EventFailure(KILLED, final=True)}
        return self._run(batch, replace(spec, only=frozenset(arrivals), forced_failures=failures))

    def _under_new_tokens(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows with the current tokens of their leases.

        Every Spark job on a batch reads the batch again and so repeats its claims. The repeated claims invalidate the
        tokens of earlier Spark jobs.
        """
        leases = [LeaseId(UUID(lease)) for lease in {row["lease"] for row in rows} if lease is not None]
        held = self._patiently(lambda: store_of(self._spec.store).held(leases))
        tokens = {str(one.lease.lease_id): str(one.lease.token) for one in held}
        return [{**row, "token": tokens.get(row["lease"], row["token"])} for row in rows]

    def _acknowledge(self, source: SparkSource, rows: Sequence[Row]) -> None:
        """Settle the leased rows and acknowledge the others, after their state is committed.

        If the queue refuses to settle applied events, it delivers them again, and the inbox ignores them.
        """
        leased = [row for row in rows if row["lease"] is not None]
        done = self._patiently(lambda: self._settle(leased))
        others = [row for row in rows if row["lease"] is None]
        if others:
            self._patiently(lambda: source.acknowledge([row["event_id"] for row in others]))
        for row in rows:
            if row["lease"] is None or (row["seq"] in done and row["outcome"] == "PUBLISHED"):
                self._acknowledged.setdefault(row["part"], []).append(Arrival(row["event_id"], row["replays"]))
        self._count(rows)

    def _settle(self, rows: Sequence[Row]) -> set[int]:
        """Settle the rows. Return the seqs of the applied events that the queue will not deliver again."""
        store = store_of(self._spec.store)
        done: set[int] = set()
        for lease, outcomes in by_lease(rows).items():
            settled = store.settle(lease, outcomes)
            done |= {seq for seq in settled.published | settled.already_settled if isinstance(outcomes[seq], Published)}
        return done

    def _count(self, rows: Sequence[Row]) -> None:
        outcomes = [row["outcome"] for row in rows]
        self.counts.batches += 1
        self.counts.applied += outcomes.count("PUBLISHED")
        self.counts.retried += outcomes.count("RETRY")
        self.counts.dead += outcomes.count("DEAD")
        self.counts.fired = self._job_runner.fired

    def _forget(self) -> None:
        """Delete old inbox entries and expired state, at most once per hour.

        Runs between batches, when no task has a state partition open. Inbox entries are old after the source's
        `remember_seconds`.
        """
        if time.monotonic() < self._forgot + FORGET_SECONDS and self._forgot:
            return
        self._forgot = time.monotonic()
        keep = self._sources[0].remember_seconds
        with closing(open_state(self._spec.state)) as state:
            self._patiently(lambda: state.forget(self.stream.name, older_than_seconds=keep))

    def _patiently(self, call: Callable[[], Result]) -> Result:
        for pause in _pauses():
            try:
                return call()
            except (SourceUnavailable, StoreConflict, StoreUnavailable) as error:
                log.warn("stream_waits", stream=self.stream.name, error=brief(error))
            self._pause(pause)
        raise AssertionError("pauses never end")

    def _pause(self, seconds: float) -> None:
        if self._stopping.wait(seconds):
            raise Stopped


def _pauses() -> Iterator[float]:
    pause = FIRST_PAUSE_SECONDS
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
