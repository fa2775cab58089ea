"""Run a Python function in time slices on Spark: each micro-batch of a streaming query is one slice.

In a slice, each of N tasks calls the function once. The function loops until the slice ends, and its result is
returned to the driver. Spark schedules the slices, retries failed tasks and raises an error if retries do not help.
Rows never pass through the JVM. The function's work is defined by the caller.
"""

import functools
import importlib
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.model.errors import PipelineError, UsageError
from penstock.pipeline.spark.errors import (
    gone,
    is_sparks,
    is_waiting,
    java_is_gone,
    readable,
    root_cause,
    state_of,
    stop_query,
)
from penstock.pipeline.spark.stop_channel import StopAddress, StopChannel, connection_to, hung_up, open_channel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Argument = TypeVar("Argument")
Result = TypeVar("Result")

INTERRUPT_SECONDS = 2.0
_LOOK_SECONDS = 0.5
_BATCH_PROPERTY = "streaming.sql.batchId"
_DEATHS = re.compile(r"Python worker exited unexpectedly|ExecutorLostFailure|Python worker .*crashed")
_OUTAGES = re.compile(r"\b(?:StoreUnavailable|StoreConflict)\b")


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits on the failures that a query survives.

    A slice has failed if one of its tasks failed in spite of Spark's retries. The query ends after `failures` failed
    slices in a row; before that it pauses after each failed slice, longer each time.

    With `through_deaths`, the query survives any number of deaths of Python worker processes, if a worker process had
    started to run the function: an event probably caused the death, and will become dead. If no worker process starts
    the function, the installation is broken, and a restart does not help. With `through_outages`, the query survives
    failures for as long as the store is unavailable.
    """

    failures: int = 1
    through_deaths: bool = False
    through_outages: bool = False
    first_seconds: float = 0.5
    cap_seconds: float = 5.0

    def pause_seconds(self, failures: int) -> float:
        return float(min(self.first_seconds * 2.0 ** min(failures - 1, 30), self.cap_seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions:
    """Options of a streaming query, independent of the work in its micro-batches."""

    checkpoint: str | None = None
    name: str | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    """Event that ends the query. Set by the caller, or by the query itself when it is done."""
    grace_seconds: float = 30.0
    """Seconds that a stop waits for the running micro-batch."""
    patience: Patience = Patience()
    on_failure: Callable[[str, float], None] | None = None
    """Callback for a failure that the query survives, with its cause and the seconds of the pause that follows."""
    repeats: bool = False
    """True if a failed micro-batch runs again and reads its rows again; False if it is skipped."""


def _no() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class BatchHandler(Generic[Result]):
    """The driver's callbacks for the micro-batches of a query."""

    handle: Callable[["DataFrame", int], list[Result]]
    idle: Callable[[], bool] = _no
    """Called regularly while no batch runs; the query ends once it returns True."""
    interrupt: Callable[[], object] = _no
    """Called once if a batch still runs `INTERRUPT_SECONDS` after a stop."""


class Slice:
    """A slice as one task sees it, in the Python worker process: its end, and a stop request from the driver."""

    def __init__(self, number: int, partition: int, seconds: float, channel: "socket.socket | None") -> None:
        self.number = number
        self.partition = partition
        self._deadline = time.monotonic() + seconds
        self._channel = channel

    @property
    def over(self) -> bool:
        return not self.pause(0)

    def stopped(self) -> bool:
        """Return whether the driver has requested a stop, even if the slice is not over."""
        return hung_up(self._channel)

    @property
    def remaining_seconds(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def pause(self, seconds: float) -> bool:
        """Wait `seconds`, or until the slice ends or a stop is requested; return whether the function may continue."""
        wait = min(seconds, self.remaining_seconds)
        if self._channel is None or select.select([self._channel], [], [], wait)[0]:
            return False  # nothing is ever sent on the channel: it is readable only after the driver has closed it
        return time.monotonic() < self._deadline


def run_slices(
    spark: "SparkSession",
    function: Callable[[Argument, Slice], Result],
    argument: Argument,
    *,
    parallelism: int,
    slice_seconds: float,
    on_slice: Callable[[int, list[Result]], bool],
    options: QueryOptions | None = None,
) -> None:
    """Run slices until `on_slice`, called with each slice's number and results, returns False, or a stop is set.

    `function` is sent by name, and must be importable in the Python worker process. Objects that the function's module
    caches therefore remain in the worker process. On a stop, running functions are asked to return, their results are
    passed to `on_slice`, and then the query ends. Raise PipelineError for a failure that the `patience` of `options`
    does not allow.
    """
    _require_importable(function)
    with open_channel(spark) as channel:
        task = functools.partial(_run_task, function, argument, slice_seconds, channel.address)
        tasks = spark.sparkContext.parallelize(range(parallelism), parallelism).mapPartitionsWithIndex(task)
        runner = _SliceRunner(BatchHandler(lambda *_: tasks.collect()), on_slice, channel, options or QueryOptions())
        # The source is only a clock: one row per batch, which is never read, and the next batch follows immediately.
        clock = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).option("numPartitions", 1).load()
        _run_query(clock.writeStream, runner)


def run_batches(
    writer: "DataStreamWriter",
    handler: BatchHandler[Result],
    *,
    channel: StopChannel,
    on_batch: Callable[[int, list[Result]], bool],
    options: QueryOptions,
) -> None:
    """Run a query that has rows, like `run_slices`: `handler` gets each micro-batch as a DataFrame."""
    _run_query(writer, _SliceRunner(handler, on_batch, channel, options))


def _run_query(writer: "DataStreamWriter", runner: "_SliceRunner") -> None:
    """Run a query until it ends. Restart it after each failure that `QueryOptions.patience` allows."""
    query = runner.start(writer)
    try:
        while not runner.wait(query):
            query = runner.start(writer)
    finally:
        runner.end(query)
    if runner.failure is not None:
        raise runner.failure


class _SliceRunner:
    """The driver's side of the slices: runs each micro-batch, reports its results and decides about failures."""

    def __init__(
        self,
        handler: BatchHandler[Any],
        on_slice: Callable[[int, list[Any]], bool],
        channel: StopChannel,
        options: QueryOptions,
    ) -> None:
        self.failure: BaseException | None = None
        self._handler = handler
        self._on_slice = on_slice
        self._channel = channel
        self._options = options
        self._stop = options.stop
        self._failures = 0
        self._busy = threading.Lock()

    def start(self, writer: "DataStreamWriter") -> "StreamingQuery":
        writer = writer.foreachBatch(self.run)
        if self._options.name is not None:
            writer = writer.queryName(self._options.name)
        if self._options.checkpoint is not None:
            writer = writer.option("checkpointLocation", self._options.checkpoint)
        try:
            return writer.start()
        except Exception as error:
            raise readable(error) from None

    def run(self, batch: "DataFrame", number: int) -> None:
        """Run one micro-batch. Store its error instead of raising it: Spark would wrap it in a stack trace."""
        with self._busy:
            if self._stop.is_set():
                return
            try:
                results = self._handler.handle(batch, number)
            except BaseException as error:
                if self._options.repeats:
                    raise  # the query fails, and starts again with this batch
                self._failed(error)
                return
            try:
                self._failures = 0
                self._channel.answer()
                if not self._on_slice(number, results):
                    self._stop.set()
            except BaseException as error:
                self._give_up(error)

    def wait(self, query: "StreamingQuery") -> bool:
        """Wait for the end; return True if all is done, False if the query failed and is to be restarted."""
        while not self._stop.wait(_LOOK_SECONDS):
            active, error = state_of(query)
            if error is not None:
                self._failed(error)
                return self._stop.is_set()
            if not active:
                return True  # the query was stopped through Spark's own interface
            self._end_if_idle(query)
        return True

    def _end_if_idle(self, query: "StreamingQuery") -> None:
        """Stop if `idle` returns True while no micro-batch runs or is to be repeated.

        Such a micro-batch may have claimed events that it will release, and `idle` would miss these events.
        """
        if self._busy.acquire(blocking=False):
            try:
                if self._handler.idle() and is_waiting(query):
                    self._stop.set()
            finally:
                self._busy.release()

    def _failed(self, error: BaseException) -> None:
        """Pause after a failure that `QueryOptions.patience` allows; end the query after any other."""
        if java_is_gone(error):
            self._give_up(gone(error))
            return
        cause, patience = root_cause(str(error)), self._options.patience
        came_so_far = self._channel.answer() > 0
        self._failures += 1
        died = patience.through_deaths and came_so_far and _DEATHS.search(cause) is not None
        outage = patience.through_outages and _OUTAGES.search(cause) is not None
        bearable = is_sparks(error) and (died or outage or self._failures < patience.failures)
        if self._stop.is_set() or not bearable:
            self._give_up(error)
            return
        seconds = patience.pause_seconds(1 if died else self._failures)
        if self._options.on_failure is not None:
            self._options.on_failure(cause, seconds)
        self._stop.wait(seconds)

    def _give_up(self, error: BaseException) -> None:
        self.failure = self.failure or readable(error)
        self._stop.set()

    def end(self, query: "StreamingQuery") -> None:
        grace_seconds = self._options.grace_seconds
        self._stop.set()
        self._channel.hang_up()
        ended = self._busy.acquire(timeout=min(INTERRUPT_SECONDS, grace_seconds))
        if not ended:
            self._handler.interrupt()
        if ended or self._busy.acquire(timeout=grace_seconds):
            self._busy.release()  # from here on `run` returns at once
        else:
            self.failure = PipelineError(
                f"slice did not end within {grace_seconds:g} s of the stop request and was cancelled"
            )
        stopping = stop_query(query)
        self.failure = self.failure or stopping


def _require_importable(function: Callable[..., Any]) -> None:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module in (None, "__main__") or "<" in name:
        raise UsageError(f"slice function must be importable by name; move {function!r} to a module")
    found: Any = importlib.import_module(str(module))
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not function:
        raise UsageError(f"slice function must be importable by name; {module}.{name} is another object")


# In the Python worker process


def _run_task(
    function: Callable[[Argument, Slice], Result],
    argument: Argument,
    seconds: float,
    address: StopAddress,
    partition: int,
    _: Iterable[int],
) -> Iterator[Result]:
    from pyspark import TaskContext

    context = TaskContext.get()
    number = context.getLocalProperty(_BATCH_PROPERTY) if context else None
    yield function(argument, Slice(int(number or 0), partition, seconds, connection_to(address)))
