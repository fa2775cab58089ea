"""The relay's driver: starts Spark, schedules slices, reaps expired leases, stops on a signal.

The driver is stateless. Claims and leases live in the store, so losing the driver, an executor or the checkpoint costs
one lease time-out. The work of a task in its slice is in `penstock.pipeline.relay.task`.
"""

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from penstock.model.errors import NotSupported
from penstock.pipeline.lake.layout import is_lake
from penstock.pipeline.lake.writer import run_lake
from penstock.pipeline.relay.parallel import run_all
from penstock.pipeline.relay.report import RelayProgress, RelayReport
from penstock.pipeline.relay.router import route
from penstock.pipeline.relay.spec import Lane, RelayOptions, lanes_of, load_step
from penstock.pipeline.relay.step_driver import run_steps
from penstock.pipeline.relay.task import deliver
from penstock.pipeline.spark.session import open_session
from penstock.pipeline.spark.shutdown import open_unless
from penstock.pipeline.spark.slices import Patience, QueryOptions, run_slices
from penstock.runtime.housekeeping import Housekeeper
from penstock.runtime.signals import stopped_by_signals
from penstock.store.api import Store, StoreOptions
from penstock.store.registry import open_store
from penstock.telemetry import log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


GRACE_SECONDS = 8.0
FAILED_SLICES = 5


def run_relay(
    options: RelayOptions,
    *,
    progress: Callable[[RelayReport], None] | None = None,
    stop: threading.Event | None = None,
) -> RelayReport:
    """Deliver events until `stop` is set or SIGTERM or Ctrl-C arrives; with `once`, until the pending ones are done."""
    report = RelayReport()
    ending = stop or threading.Event()
    with closing(open_store(options.store, StoreOptions(order_policy=options.order_policy))) as store:
        if options.routes is not None and not store.capabilities.routing:
            raise NotSupported(
                f"{store.url} does not support routes; set one destination (--to), emit to a queue for each "
                "destination, or use PostgreSQL, MySQL or SQLite"
            )
        store.ready(options.queue)  # raises an error for an unreachable or uninitialised store before Spark starts
        lanes = lanes_of(options, _until_now(store) if options.once else None)
        progress_so_far = RelayProgress(report, options.once, progress)
        served = [(lane.spec.queue, lane.to) for lane in lanes]
        one_writer = not store.capabilities.concurrent_writers
        with stopped_by_signals(ending), Housekeeper(store, served, options.lease_seconds, progress_so_far.reaped):
            _run_lanes(options, lanes, one_writer, ending, progress_so_far)
    return report


def _until_now(store: Store) -> datetime:
    """Return the end time of a draining relay, after returning the events of expired leases to the queue."""
    while store.reap():
        pass
    return store.now()


def _run_lanes(
    options: RelayOptions, lanes: Sequence[Lane], one_writer: bool, ending: threading.Event, progress: RelayProgress
) -> None:
    destinations = ", ".join(lane.to for lane in lanes)
    log.info("relay_started", queue=options.queue, destination=destinations, master=options.master or "local")
    master = _master(options, len(lanes), one_writer)
    spark = open_unless(ending, partial(open_session, master, f"penstock relay {options.queue}"))
    if spark is None:
        return
    tasks = _parallelism(options, spark.sparkContext.defaultParallelism, len(lanes), one_writer)
    # A draining relay first routes all events, then publishes them.
    stages = [lanes[:1], lanes[1:]] if options.once and len(lanes) > 1 else [lanes]
    for stage in stages:
        if not ending.is_set():
            run_all([partial(_run_lane, spark, options, lane, tasks, progress) for lane in stage], ending)
    report = progress.report
    discarded = {"discarded": report.discarded} if report.discarded else {}
    log.info("relay_stopped", published=report.published, **discarded, retried=report.retried, dead=report.dead)


def _run_lane(
    spark: "SparkSession", options: RelayOptions, lane: Lane, tasks: int, progress: RelayProgress, stop: threading.Event
) -> None:
    checkpoint = options.checkpoint
    if checkpoint is not None and options.routes is not None:
        checkpoint = f"{checkpoint.rstrip('/')}/{lane.spec.queue}"
    spec = lane.spec
    enter = partial(progress.enter, spec.queue)
    query = QueryOptions(
        checkpoint=checkpoint,
        name=f"penstock-relay-{lane.spec.queue}-{uuid4().hex[:8]}",  # two relays may run in one session
        stop=stop,
        grace_seconds=GRACE_SECONDS,
        patience=Patience(failures=FAILED_SLICES, through_deaths=True),
        on_failure=_warn,
    )
    if is_lake(spec.dispatch.destination):
        run_lake(spark, spec, parallelism=tasks, on_batch=enter, query=query)
        return
    if options.step is not None:
        step = load_step(options.step)
        run_steps(spark, spec, step, options.dropped, parallelism=tasks, on_batch=enter, query=query)
        return
    function, seconds = deliver if spec.routes is None else route, options.slice_seconds
    run_slices(spark, function, spec, parallelism=tasks, slice_seconds=seconds, on_slice=enter, options=query)


def _master(options: RelayOptions, lanes: int, one_writer: bool) -> str:
    """Return the Spark master. A local task slot is only a thread: use enough that no lane waits for another."""
    cores = os.cpu_count() or 1
    if options.master is not None or lanes == 1:
        return options.master or "local[*]"
    return f"local[{lanes * _parallelism(options, max(lanes, lanes * cores // 2), lanes, one_writer)}]"


def _parallelism(options: RelayOptions, slots: int, lanes: int, one_writer: bool) -> int:
    """Return the number of tasks per lane: an equal share of the slots.

    One task if the store allows only one writer at a time: more tasks would wait for each other.
    """
    if lanes > slots:
        log.warn("too_few_cores", cores=slots, needed=lanes, hint="a slow destination can delay the others")
    return options.parallelism or (1 if one_writer else max(1, slots // lanes))


def _warn(cause: str, seconds: float) -> None:
    log.warn("slice_failed", retry_in=seconds, error=cause)
