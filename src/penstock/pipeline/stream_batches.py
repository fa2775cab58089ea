"""The micro-batches of one stream, on the driver: run, tried again where a part could not be had, and acknowledged.

A batch whose tasks die time and again holds an event that kills whoever runs it. It is looked for by halving the
batch, and dies alone.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from penstock import telemetry
from penstock.errors import PenstockError, PipelineError, StoreConflict, StoreUnavailable, brief
from penstock.lifecycle import Published
from penstock.pipeline.settling import by_lease
from penstock.pipeline.stores import store_of
from penstock.pipeline.stream_keys import keyed
from penstock.pipeline.stream_sources import Feed, feed_of
from penstock.pipeline.stream_tasks import OUTCOMES, Errand, Trouble, process
from penstock.streams.app import Stream, StreamSet
from penstock.streams.engine import Verdict
from penstock.streams.state import open_state
from penstock.streams.state.base import Arrival, Started, Superseded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TRIGGER = "100 milliseconds"
# Planning a job anew while it runs takes longer than all the rest of a small batch. Said to the batches' own session.
ADAPTIVE = "spark.sql.adaptive.enabled"
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
FORGET_SECONDS = 3_600.0
# More than this of one batch are no events that kill: whoever runs them is ill.
MOST_CONDEMNED = 10
KILLED = "the process that handled it died, each time, with no other event in its hands"
DIED = re.compile(r"Python worker exited unexpectedly|ExecutorLostFailure|EOFException|Connection reset|Broken pipe")

Row = dict[str, Any]
Result = TypeVar("Result")


class Stopped(Exception):
    """The stream is told to stop while a batch waits."""


class Died(Exception):
    """The tasks of a job died, and not by an error of their own."""


@dataclass(slots=True)
class Counts:
    """What became of a stream's events so far."""

    batches: int = 0
    applied: int = 0
    retried: int = 0
    dead: int = 0


class StreamRun:
    """One stream's query."""

    def __init__(
        self, spark: "SparkSession", app: StreamSet, stream: Stream, started: Started, parallelism: int = 2
    ) -> None:
        self.stream = stream
        self.counts = Counts()
        self.error: PenstockError | None = None
        """Why it ended, in its own words: Spark's would bury it."""
        self._spark = spark
        self._feed: Feed = feed_of(stream, app.store, parallelism)
        self._errand = Errand(stream, started, app.store, app.state, self._feed.tells)
        self._acknowledged: dict[int, list[Arrival]] = {}
        self._stopping = threading.Event()
        self._forgot = 0.0
        telemetry.info("stream runs", stream=stream.name, epoch=started.epoch, parts=started.parts)

    def start(self, checkpoint: str) -> "StreamingQuery":
        # Before the batches: what is here is planned once, what is in each of them every time.
        writer = keyed(self._feed.load(self._spark), self._errand).writeStream.foreachBatch(self._handle)
        writer = writer.queryName(f"penstock {self.stream.name}").option("checkpointLocation", checkpoint)
        return writer.trigger(processingTime=TRIGGER).start()

    def stop(self) -> None:
        """End what waits."""
        self._stopping.set()

    def _handle(self, batch: "DataFrame", _number: int) -> None:
        batch.sparkSession.conf.set(ADAPTIVE, "false")
        try:
            self._forget()
            errand = replace(self._errand, acknowledged=self._acknowledged)
            try:
                rows = self._run(batch, errand)
            except Died as died:
                telemetry.warn("tasks died; looking for an event that kills them", stream=self.stream.name, error=died)
                rows = self._run_carefully(batch, replace(errand, acknowledged={}))
            self._acknowledged = {}
            self._acknowledge(rows)
        except PenstockError as error:
            self.error = error
            raise

    def _run(self, batch: "DataFrame", errand: Errand) -> list[Row]:
        """What became of all events of the batch, however long the state of some of them can't be reached."""
        done: list[Row] = []
        for pause in _pauses():
            rows = self._job(batch, errand)
            waiting = {row["part"]: row["error"] for row in rows if row["outcome"] == Trouble.WAITING}
            done += [row for row in rows if row["outcome"] not in set(Trouble)]
            if not waiting:
                break
            telemetry.warn(
                "parts are tried again", stream=self.stream.name, parts=len(waiting), error=next(iter(waiting.values()))
            )
            errand = replace(errand, parts=frozenset(waiting))
            self._pause(pause)
        return done

    def _job(self, batch: "DataFrame", errand: Errand) -> list[Row]:
        from pyspark.sql import functions as F  # noqa: N812

        tasks = min(errand.started.parts, max(1, self._spark.sparkContext.defaultParallelism))
        try:
            # By number: a hash would give some tasks many parts, and others none.
            parted = batch.repartitionById(tasks, F.col("part") % tasks)
            found = parted.mapInArrow(process(errand), OUTCOMES).collect()
        except Exception as error:
            if DIED.search(str(error)):
                raise Died(str(error).splitlines()[0]) from error
            raise
        rows = [row.asDict() for row in found]
        for row in rows:
            if row["outcome"] == Trouble.SUPERSEDED:
                raise Superseded(row["error"])
            if row["outcome"] == Trouble.BROKEN:
                raise PipelineError(f"stream {self.stream.name}: {row['error']}")
        return rows

    def _run_carefully(self, batch: "DataFrame", errand: Errand) -> list[Row]:
        found = batch.select("line", "offset", "seq", "event_id", "replays").collect()
        found.sort(key=lambda row: (row.line or "", row.offset or 0, row.seq))
        condemned: list[Arrival] = []
        arrivals = list(dict.fromkeys(Arrival(row.event_id, row.replays) for row in found))
        return self._halve(batch, errand, arrivals, condemned)

    def _halve(
        self, batch: "DataFrame", errand: Errand, arrivals: Sequence[Arrival], condemned: list[Arrival]
    ) -> list[Row]:
        """Run these events, those before others first; where their tasks die, each half for itself."""
        try:
            return self._run(batch, replace(errand, only=frozenset(arrivals)))
        except Died as died:
            if len(arrivals) > 1:
                middle = len(arrivals) // 2
                first = self._halve(batch, errand, arrivals[:middle], condemned)
                return first + self._halve(batch, errand, arrivals[middle:], condemned)
            condemned += arrivals
            if len(condemned) > MOST_CONDEMNED:
                raise PipelineError(f"more than {MOST_CONDEMNED} events kill whoever handles them: {died}") from died
        telemetry.warn("an event kills whoever handles it", stream=self.stream.name, event_id=arrivals[0].event_id)
        verdicts = {arrivals[0]: Verdict(KILLED, final=True)}
        return self._run(batch, replace(errand, only=frozenset(arrivals), condemned=verdicts))

    def _acknowledge(self, rows: Sequence[Row]) -> None:
        """The state is committed: now the source may know. What it doesn't take any more comes again, and changes
        nothing then."""
        leased = [row for row in rows if row["lease"] is not None]
        done = self._patiently(lambda: self._settle(leased))
        others = [row for row in rows if row["lease"] is None]
        if others:
            self._patiently(lambda: self._feed.acknowledge([row["event_id"] for row in others]))
        for row in rows:
            if row["lease"] is None or (row["seq"] in done and row["outcome"] == "PUBLISHED"):
                self._acknowledged.setdefault(row["part"], []).append(Arrival(row["event_id"], row["replays"]))
        self._count(rows)

    def _settle(self, rows: Sequence[Row]) -> set[int]:
        """Returns the seqs of those that are in the state, and that the queue won't bring again."""
        store = store_of(self._errand.store)
        done: set[int] = set()
        for lease, outcomes in by_lease(rows).items():
            told = store.settle(lease, outcomes)
            done |= {seq for seq in told.published | told.already_settled if isinstance(outcomes[seq], Published)}
        return done

    def _count(self, rows: Sequence[Row]) -> None:
        outcomes = [row["outcome"] for row in rows]
        self.counts.batches += 1
        self.counts.applied += outcomes.count("PUBLISHED")
        self.counts.retried += outcomes.count("RETRY")
        self.counts.dead += outcomes.count("DEAD")

    def _forget(self) -> None:
        """Now and then, what the inbox held for so long that nobody brings it again. Between batches: nobody else has
        the parts."""
        if time.monotonic() < self._forgot + FORGET_SECONDS and self._forgot:
            return
        self._forgot = time.monotonic()
        state = open_state(self._errand.state)
        try:
            keep = self._feed.remember_seconds
            self._patiently(lambda: state.forget(self.stream.name, older_than_seconds=keep))
        finally:
            state.close()

    def _patiently(self, call: Callable[[], Result]) -> Result:
        for pause in _pauses():
            try:
                return call()
            except (StoreConflict, StoreUnavailable) as error:
                telemetry.warn("trying again", stream=self.stream.name, error=brief(error))
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
