"""A stream's jobs on the driver, and those that it needs without events: parts in which something is due get a turn."""

import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.model.errors import PipelineError
from penstock.pipeline.spark.errors import gone, java_is_gone, root_cause
from penstock.pipeline.streams.results import OUTCOMES, TURN, Trouble
from penstock.pipeline.streams.task import tick
from penstock.pipeline.streams.task_spec import Errand
from penstock.streams.engine.partition import Firing
from penstock.streams.engine.timer_work import LIMIT
from penstock.streams.engine.watermarks import Clocks, Turn
from penstock.streams.engine.work import Verdict
from penstock.streams.state.api import Started, Superseded
from penstock.telemetry import log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KILLED = "the process that fired it died, each time, with no other timer in its hands"
DIED = re.compile(
    r"Python worker (exited unexpectedly|failed to connect back)|ExecutorLostFailure|EOFException|Connection reset"
    r"|Broken pipe"
)

Row = dict[str, Any]


class Died(Exception):
    """The tasks of a job died, and not by an error of their own."""


class Ticks:
    """The jobs of one stream, from which it also learns what time it is in its parts."""

    def __init__(self, spark: "SparkSession", errand: Errand) -> None:
        stream = errand.stream
        self._spark = spark
        self._errand = errand
        self._turn = 0
        self._clocks = Clocks(
            errand.started.parts,
            event_time=stream.by_events,
            idle_close_seconds=stream.idle_close_seconds,
        )

    @property
    def fired(self) -> int:
        return self._clocks.fired

    @property
    def tasks(self) -> int:
        """So many work at once."""
        return min(self._errand.started.parts, max(1, self._spark.sparkContext.defaultParallelism))

    def next_turn(self, errand: Errand) -> Errand:
        """For one more job: whoever is left over from those before it has no part any more."""
        self._turn += 1
        return replace(errand, started=replace(errand.started, turn=self._turn))

    def collect(self, frame: "DataFrame") -> list[Row]:
        """What the tasks of a job tell of events and of parts that came to nothing."""
        try:
            rows = self._collect(frame)
        except BaseException:
            self._clocks.doubt()
            raise
        self._clocks.note({row["part"]: Turn.read(row["turn"]) for row in rows if row["outcome"] == TURN}, time.time())
        self._clocks.doubt(row["part"] for row in rows if row["outcome"] in set(Trouble))
        return [row for row in rows if row["outcome"] != TURN]

    def _collect(self, frame: "DataFrame") -> list[Row]:
        try:
            rows = [row.asDict() for row in frame.collect()]
        except Exception as error:
            if java_is_gone(error):
                raise gone(error) from error
            if DIED.search(str(error)):
                raise Died(str(error).splitlines()[0]) from error
            raise PipelineError(f"stream {self._errand.stream.name} has failed: {_reason(error)}") from error
        for row in rows:
            if row["outcome"] == Trouble.SUPERSEDED:
                raise superseded(self._errand.started)
            if row["outcome"] == Trouble.BROKEN:
                raise PipelineError(f"stream {self._errand.stream.name}: {row['error']}")
        return rows

    def drained(self) -> None:
        """Note that the source had no more events."""
        self._clocks.drained(time.time())

    def run(self) -> bool:
        """Fire what is due; returns whether there was anything. A part that can't be had has its turn another time."""
        now, before = time.time(), self.fired
        parts = self._clocks.due(now)
        if not parts:
            return False
        errand = replace(self._errand, parts=parts, lulls=self._clocks.lulls(now))
        try:
            self._tick(errand)
        except Died as died:
            log.warn("tasks died; looking for a timer that kills them", stream=self._errand.stream.name, error=died)
            for part in sorted(parts):
                self._tick_carefully(replace(errand, parts=frozenset({part})))
        return self.fired > before

    def _tick(self, errand: Errand) -> None:
        numbers = self._spark.range(0, errand.started.parts, 1, self.tasks).selectExpr("CAST(id AS INT) AS part")
        for row in self.collect(numbers.mapInArrow(tick(self.next_turn(errand)), OUTCOMES)):
            log.warn("a part is tried again", stream=errand.stream.name, part=row["part"], error=row["error"])

    def _tick_carefully(self, errand: Errand) -> None:
        """Fewer and fewer at a time, until the first one is alone with whoever dies of it. It is dead then, unrun."""
        limit = LIMIT
        while True:
            before = self.fired
            try:
                self._tick(replace(errand, firing=Firing(limit=limit)))
            except Died:
                if limit == 1:
                    condemned = Verdict(KILLED, final=True)
                    return self._tick(replace(errand, firing=Firing(limit=1, verdict=condemned)))
                limit = max(1, limit // 10)
                continue
            if self.fired - before < limit:
                return None


def superseded(started: Started) -> Superseded:
    """What the driver of an earlier start ends with."""
    return Superseded(f"another driver has started stream {started.stream!r} since; this one has stopped")


def _reason(error: Exception) -> str:
    """In a line. The innermost cause comes last of all that Java has to say."""
    causes = re.findall(r"^Caused by: (.+)$", str(error), re.MULTILINE)
    return str(causes[-1]) if causes else root_cause(str(error))
