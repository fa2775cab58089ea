"""The relay's driver: starts Spark, keeps the slices turning, reaps expired leases, and stops when told to.

It is stateless. What is claimed, and by whom, stands in the store; losing the driver, an executor or the checkpoint
costs one lease expiry. What a task does in its slice is in `penstock.pipeline.carry`.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from penstock.config.routes import Destination, Routes, queue_of
from penstock.config.urls import mask_url
from penstock.model.errors import NotSupported, PenstockError, UsageError
from penstock.model.event import DEFAULT_QUEUE
from penstock.model.lease import DEFAULT_LEASE_SECONDS
from penstock.model.lifecycle import OrderPolicy
from penstock.model.outcome import Dropped
from penstock.model.retry import RetryPolicy
from penstock.model.stats import Relay
from penstock.pipeline.carry import Errand, Tally, carry
from penstock.pipeline.lake import Lake, is_lake
from penstock.pipeline.sender import Dispatch, reachable_from_workers
from penstock.pipeline.steps import load_step
from penstock.pipeline.stopping import open_unless, stopped_by_signals
from penstock.pipeline.together import run_lines
from penstock.publish.registry import open_publisher
from penstock.publish.topics import Routing
from penstock.store.api import Store, StoreOptions
from penstock.store.registry import open_store
from penstock.telemetry import log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.slices import Slice
    from penstock.pipeline.steps import Step

REAP_SECONDS = 5.0
TEND_SECONDS = 60.0
GRACE_SECONDS = 8.0
SIGN_OFF_SECONDS = 1.0
FAILED_SLICES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayOptions:
    """What a relay is told: from where, to where, how."""

    store: str
    destination: str | None = None
    """One destination for all; or else `routes`."""
    routes: Routes | None = None
    queue: str = DEFAULT_QUEUE
    batch: int = 2_000
    parallelism: int | None = None
    lease_seconds: float = DEFAULT_LEASE_SECONDS
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    topic: str = "{event_type}"
    order_policy: OrderPolicy = OrderPolicy.BLOCK
    max_deliveries: int | None = None
    master: str | None = None
    once: bool = False
    checkpoint: str | None = None
    slice_seconds: float = 5.0
    step: "Step | str | None" = None
    """A function from a DataFrame of claimed events to what is dispatched, or its name: `module:function`."""
    dropped: Dropped = Dropped.DEAD

    def __post_init__(self) -> None:
        for name in ("batch", "lease_seconds", "slice_seconds", "parallelism", "max_deliveries"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UsageError(f"{name.replace('_', ' ')} must be greater than 0, not {value}")
        if (self.destination is None) == (self.routes is None):
            raise UsageError("a relay needs a destination (--to) or routes (--route, or penstock.toml), and not both")
        if self.step is not None and self.routes is not None:
            raise UsageError("a step says itself where its events go: give it a destination (--to), and not routes")
        if self.step is not None and is_lake(self.destination or "null:"):
            raise UsageError("a step's events can't go to a lake: write its result there yourself, with Spark")
        for line in _lines(self, None):  # connects to nothing: a bad URL or template is told at once
            _require_destination(line.errand.dispatch.destination)
        if self.step is not None:
            load_step(self.step)


@dataclass(slots=True)
class RelayReport:
    """What a relay has done since it started."""

    claimed: int = 0
    published: int = 0
    discarded: int = 0
    retried: int = 0
    dead: int = 0
    released: int = 0
    lost: int = 0
    routed: int = 0
    reaped: int = 0
    slices: int = 0
    seconds: float = 0.0

    def add(self, tally: Tally) -> None:
        for name in ("claimed", "published", "discarded", "retried", "dead", "released", "lost", "routed"):
            setattr(self, name, getattr(self, name) + getattr(tally, name))


@dataclass(frozen=True, slots=True)
class Line:
    """One of the things that a relay does at the same time: publish to one destination, or route to several."""

    function: Callable[[Errand, "Slice"], Tally]
    errand: Errand
    to: str


def run_relay(
    options: RelayOptions,
    *,
    progress: Callable[[RelayReport], None] | None = None,
    stop: threading.Event | None = None,
) -> RelayReport:
    """Relay until `stop` is set, SIGTERM or Ctrl-C comes, or, with `once`, until what is pending now is done."""
    report = RelayReport()
    ending = stop or threading.Event()
    with closing(open_store(options.store, StoreOptions(order_policy=options.order_policy))) as store:
        if options.routes is not None and not store.capabilities.routing:
            raise NotSupported(
                f"{store.url} can't route events to several queues: give the relay one destination (--to), emit to a "
                "queue for each destination, or use PostgreSQL, MySQL or SQLite"
            )
        store.ready(options.queue)  # an unreachable or uninitialised store is told before Spark starts
        lines = _lines(options, _until_now(store) if options.once else None)
        one_writer = not store.capabilities.concurrent_writers
        with stopped_by_signals(ending), Housekeeping(store, lines, options.lease_seconds, report):
            _turn(options, lines, one_writer, ending, _Ledger(report, options.once, progress))
    return report


def _until_now(store: Store) -> datetime:
    """The end of a relay that drains; what a dead one has left behind is to be in front of it."""
    while store.reap():
        pass
    return store.now()


def _turn(
    options: RelayOptions, lines: Sequence[Line], one_writer: bool, ending: threading.Event, ledger: "_Ledger"
) -> None:
    from penstock.pipeline.session import open_session

    told = {"queue": options.queue, "to": ", ".join(line.to for line in lines), "master": options.master or "local"}
    log.info("relay starts", **told)
    master = _master(options, len(lines), one_writer)
    spark = open_unless(ending, partial(open_session, master, f"penstock relay {options.queue}"))
    if spark is None:
        return
    tasks = _parallelism(options, spark.sparkContext.defaultParallelism, len(lines), one_writer)
    # What is to be drained is first routed, all of it, and then published.
    stages = [lines[:1], lines[1:]] if options.once and len(lines) > 1 else [lines]
    for stage in stages:
        if not ending.is_set():
            run_lines([partial(_run_line, spark, options, line, tasks, ledger) for line in stage], ending)
    report = ledger.report
    discarded = {"discarded": report.discarded} if report.discarded else {}
    log.info("relay stops", published=report.published, **discarded, retried=report.retried, dead=report.dead)


def _run_line(
    spark: "SparkSession", options: RelayOptions, line: Line, tasks: int, ledger: "_Ledger", stop: threading.Event
) -> None:
    from penstock.pipeline.lake_relay import run_lake
    from penstock.pipeline.slices import Patience, run_slices
    from penstock.pipeline.step_relay import run_steps

    checkpoint = options.checkpoint
    if checkpoint is not None and options.routes is not None:
        checkpoint = f"{checkpoint.rstrip('/')}/{line.errand.queue}"
    errand, to = line.errand, line.errand.dispatch
    if is_lake(to.destination):
        own = replace(options, routes=None, destination=to.destination, queue=errand.queue, retry=to.retry)
        run_lake(spark, replace(own, checkpoint=checkpoint), errand.until, tasks, stop, ledger.enter)
        return
    common: dict[str, Any] = {
        "parallelism": tasks,
        "checkpoint": checkpoint,
        "name": f"penstock-relay-{line.errand.queue}-{uuid4().hex[:8]}",  # two may run in one session
        "stop": stop,
        "grace_seconds": GRACE_SECONDS,
        "patience": Patience(failures=FAILED_SLICES, through_deaths=True),
        "on_failure": _warn,
    }
    if options.step is None:
        seconds = options.slice_seconds
        run_slices(spark, line.function, errand, slice_seconds=seconds, on_slice=ledger.enter, **common)
        return
    run_steps(spark, errand, load_step(options.step), options.dropped, on_batch=ledger.enter, **common)


def _lines(options: RelayOptions, until: datetime | None) -> list[Line]:
    """One to a single destination; with routes a router, and one for each destination."""
    from penstock.pipeline.router import route

    errand = _errand(options, until)
    if options.routes is None:
        return [Line(carry, errand, mask_url(errand.dispatch.destination))]
    lines = [Line(route, replace(errand, routes=options.routes), "its destinations")]
    for destination in options.routes.used:
        dispatch = replace(
            errand.dispatch,
            destination=reachable_from_workers(destination.url, options.master),
            retry=_retry_to(destination, options.retry),
            routing=Routing(destination.topic or options.topic, options.routes.topics_of(destination.name)),
        )
        published = replace(errand, queue=queue_of(options.queue, destination.name), dispatch=dispatch)
        lines.append(Line(carry, published, f"{destination.name} ({mask_url(destination.url)})"))
    return lines


def _require_destination(url: str) -> None:
    if is_lake(url):
        Lake.parse(url)
    else:
        open_publisher(url).close()


def _retry_to(destination: Destination, policy: RetryPolicy) -> RetryPolicy:
    return replace(
        policy,
        max_attempts=destination.max_attempts or policy.max_attempts,
        initial_seconds=policy.initial_seconds if destination.retry_delay is None else destination.retry_delay,
    )


class _Ledger:
    """Adds up what the slices did, tells it, and says whether to go on."""

    def __init__(self, report: RelayReport, once: bool, progress: Callable[[RelayReport], None] | None) -> None:
        self.report = report
        self._once = once
        self._progress = progress
        self._started = time.monotonic()
        self._change = threading.Lock()

    def enter(self, _number: int, tallies: list[Tally]) -> bool:
        with self._change:
            self.report.slices += 1
            self.report.seconds = time.monotonic() - self._started
            for tally in tallies:
                self.report.add(tally)
            _log(tallies)
            if self._progress is not None:
                self._progress(self.report)
        return not (self._once and all(tally.drained for tally in tallies))


def _errand(options: RelayOptions, until: datetime | None) -> Errand:
    dispatch = Dispatch(
        destination=reachable_from_workers(options.destination or "null:", options.master),
        routing=Routing(options.topic),
        retry=options.retry,
        order_policy=options.order_policy,
        max_deliveries=options.max_deliveries,
    )
    return Errand(
        store=options.store,
        queue=options.queue,
        batch=options.batch,
        lease_seconds=options.lease_seconds,
        dispatch=dispatch,
        until=until,
    )


def _master(options: RelayOptions, lines: int, one_writer: bool) -> str:
    """On this machine a slot for a task is only a thread: as many as it takes that no line waits for another."""
    cores = os.cpu_count() or 1
    if options.master is not None or lines == 1:
        return options.master or "local[*]"
    return f"local[{lines * _parallelism(options, max(lines, lines * cores // 2), lines, one_writer)}]"


def _parallelism(options: RelayOptions, slots: int, lines: int, one_writer: bool) -> int:
    """Every line has its share of the slots; one where the store takes one writer at a time and more would queue up."""
    if lines > slots:
        log.warn("a slow destination will hold up others: Spark has too few cores", cores=slots, needed=lines)
    return options.parallelism or (1 if one_writer else max(1, slots // lines))


def _log(tallies: list[Tally]) -> None:
    for trouble in dict.fromkeys(line for tally in tallies for line in tally.troubles):
        log.warn("trouble, trying again", cause=trouble)
    for cause in dict.fromkeys(line for tally in tallies for line in tally.deaths):
        log.warn("events died", cause=cause)
    if any(tally.claimed for tally in tallies):
        names = ("published", "discarded", "retried", "dead", "released", "lost")
        sums = {name: sum(getattr(tally, name) for tally in tallies) for name in names}
        log.info("slice", **{name: count for name, count in sums.items() if count})


def _warn(cause: str, seconds: float) -> None:
    log.warn("a slice failed, trying again", in_seconds=seconds, cause=cause)


class Housekeeping:
    """Beside the slices, on the driver: reaps expired leases, tends the tables, and announces the relay."""

    def __init__(self, store: Store, lines: Sequence[Line], lease_seconds: float, report: RelayReport) -> None:
        host = f"{socket.gethostname()}:{os.getpid()}"
        self._store = store
        self._relays = [Relay(uuid4(), line.errand.queue, line.to, host) for line in lines]
        self._report = report
        self._every_seconds = min(REAP_SECONDS, lease_seconds / 2)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-housekeeping", daemon=True)

    def __enter__(self) -> "Housekeeping":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=SIGN_OFF_SECONDS)
        if self._thread.is_alive():
            return  # the store doesn't answer: others see by the missing heartbeat that this relay has gone
        try:
            for relay in self._relays:
                self._store.forget(relay.relay_id)
        except PenstockError as error:
            log.debug("could not sign off", cause=error)

    def _run(self) -> None:
        tended = 0.0
        reachable = True
        while True:
            try:
                for relay in self._relays:
                    self._store.beat(relay)
                self._reap()
                if time.monotonic() - tended > TEND_SECONDS:
                    self._store.tend()
                    tended = time.monotonic()
                if not reachable:
                    log.info("the store is back")
                reachable = True
            except PenstockError as error:
                log.warn("housekeeping failed, trying again", cause=error)
                reachable = False
            if self._over.wait(self._every_seconds):
                return

    def _reap(self) -> None:
        while not self._over.is_set() and (count := self._store.reap()):
            self._report.reaped += count
            log.warn("reaped events of expired leases", events=count)
