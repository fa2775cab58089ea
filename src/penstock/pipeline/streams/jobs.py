"""Run the Spark jobs of a stream on the driver: for batches of events, and to fire due timers and windows."""

import re
import time
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock.model.errors import PipelineError
from penstock.pipeline.spark.errors import gone, innermost_cause, java_is_gone
from penstock.pipeline.streams.results import CLOCK_REPORT, OUTCOMES, TaskError
from penstock.pipeline.streams.task import tick
from penstock.pipeline.streams.task_spec import StreamTaskSpec
from penstock.streams.engine.partition import Firing
from penstock.streams.engine.timer_work import LIMIT
from penstock.streams.engine.watermarks import ClockReport, Clocks
from penstock.streams.engine.work import EventFailure
from penstock.streams.state.api import Started, Superseded
from penstock.telemetry import log

KILLED = "the process died each time it fired this timer alone"
TASK_DEATH = re.compile(
    r"Python worker (exited unexpectedly|failed to connect back)|ExecutorLostFailure|EOFException|Connection reset"
    r"|Broken pipe"
)

Row = dict[str, Any]


class TasksDied(Exception):
    """The processes that ran the tasks of a Spark job died; the tasks raised no error."""


class JobRunner:
    """Runner of one stream's Spark jobs. Stores the clock reports that tasks return for their state partitions."""

    def __init__(self, spark: SparkSession, spec: StreamTaskSpec) -> None:
        stream = spec.stream
        self._spark = spark
        self._spec = spec
        self._job_number = 0
        self._clocks = Clocks(
            spec.started.parts,
            event_time=stream.by_events,
            idle_close_seconds=stream.idle_close_seconds,
        )

    @property
    def fired(self) -> int:
        return self._clocks.fired

    @property
    def tasks(self) -> int:
        """Number of tasks of a Spark job: at most one per state partition, and at most Spark's default parallelism."""
        return min(self._spec.started.parts, max(1, self._spark.sparkContext.defaultParallelism))

    def next_job(self, spec: StreamTaskSpec) -> StreamTaskSpec:
        """Return the spec with the next job number, which fences remaining tasks of earlier Spark jobs."""
        self._job_number += 1
        return replace(spec, started=replace(spec.started, job=self._job_number))

    def collect(self, frame: DataFrame) -> list[Row]:
        """Run a Spark job. Return the results of events and of failed state partitions; record the clock reports."""
        try:
            rows = self._collect(frame)
        except BaseException:
            self._clocks.doubt()
            raise
        self._clocks.note(
            {row["part"]: ClockReport.read(row["clock"]) for row in rows if row["outcome"] == CLOCK_REPORT}, time.time()
        )
        self._clocks.doubt(row["part"] for row in rows if row["outcome"] in set(TaskError))
        return [row for row in rows if row["outcome"] != CLOCK_REPORT]

    def _collect(self, frame: DataFrame) -> list[Row]:
        try:
            rows = [row.asDict() for row in frame.collect()]
        except Exception as error:
            if java_is_gone(error):
                raise gone(error) from error
            if TASK_DEATH.search(str(error)):
                raise TasksDied(str(error).splitlines()[0]) from error
            raise PipelineError(f"stream {self._spec.stream.name!r} failed: {innermost_cause(error)}") from error
        for row in rows:
            if row["outcome"] == TaskError.SUPERSEDED:
                raise superseded(self._spec.started)
            if row["outcome"] == TaskError.BROKEN:
                raise PipelineError(f"stream {self._spec.stream.name!r} failed: {row['error']}")
        return rows

    def run(self, *, drained: bool) -> bool:
        """Fire due timers and windows; return True if any fired.

        A later call retries state partitions that were unavailable. `drained`: True if the source has no more events.
        """
        now, before = time.time(), self.fired
        if drained:
            self._clocks.count_idle_from(now)
        parts = self._clocks.due(now)
        if not parts:
            return False
        spec = replace(self._spec, parts=parts, idle_advances=self._clocks.idle_advances(now))
        try:
            self._tick(spec)
        except TasksDied as died:
            log.warn("tasks_died", stream=self._spec.stream.name, suspects="timers", error=died)
            for part in sorted(parts):
                self._tick_carefully(replace(spec, parts=frozenset({part})))
        return self.fired > before

    def _tick(self, spec: StreamTaskSpec) -> None:
        numbers = self._spark.range(0, spec.started.parts, 1, self.tasks).selectExpr("CAST(id AS INT) AS part")
        for row in self.collect(numbers.mapInArrow(tick(self.next_job(spec)), OUTCOMES)):
            log.warn("state_partition_waits", stream=spec.stream.name, partition=row["part"], error=row["error"])

    def _tick_carefully(self, spec: StreamTaskSpec) -> None:
        """Fire timers in ever smaller groups until the timer that kills its process is alone, then fail that timer.

        After each task death the limit is divided by ten. The fatal timer becomes dead without being run again.
        """
        limit = LIMIT
        while True:
            before = self.fired
            try:
                self._tick(replace(spec, firing=Firing(limit=limit)))
            except TasksDied:
                if limit == 1:
                    killed = EventFailure(KILLED, final=True)
                    return self._tick(replace(spec, firing=Firing(limit=1, failure=killed)))
                limit = max(1, limit // 10)
                continue
            if self.fired - before < limit:
                return None


def superseded(started: Started) -> Superseded:
    """Return the error that ends a driver after another driver has started the stream."""
    return Superseded(f"another driver has started stream {started.stream!r}; this one has stopped")
