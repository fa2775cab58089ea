"""The relay's driver: starts Spark, keeps the slices turning, reaps expired leases, and stops when told to.

It is stateless. What is claimed, and by whom, stands in the store; losing the driver, an executor or the checkpoint
costs one lease expiry. What a task does in its slice is in `penstock.pipeline.carry`.
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from uuid import uuid4

from penstock import telemetry
from penstock.config import mask_url
from penstock.errors import PenstockError, UsageError
from penstock.event import DEFAULT_QUEUE
from penstock.lifecycle import OrderPolicy
from penstock.pipeline.carry import Errand, Tally, carry
from penstock.pipeline.lake import Lake, is_lake
from penstock.publish import open_publisher
from penstock.publish.routing import Routing
from penstock.retry import RetryPolicy
from penstock.store import SqlStore, StoreOptions, open_store
from penstock.store.base import DEFAULT_LEASE_SECONDS, Relay

REAP_SECONDS = 5.0
TEND_SECONDS = 60.0
GRACE_SECONDS = 8.0
SIGN_OFF_SECONDS = 1.0
FAILED_SLICES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayOptions:
    """What a relay is told: from where, to where, how."""

    store: str
    destination: str
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

    def __post_init__(self) -> None:
        for name in ("batch", "lease_seconds", "slice_seconds", "parallelism", "max_deliveries"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UsageError(f"{name.replace('_', ' ')} must be greater than 0, not {value}")
        if is_lake(self.destination):
            Lake.parse(self.destination)
        else:
            open_publisher(self.destination).close()  # connects to nothing: a bad URL is told at once
        Routing(self.topic)


@dataclass(slots=True)
class RelayReport:
    """What a relay has done since it started."""

    claimed: int = 0
    published: int = 0
    retried: int = 0
    dead: int = 0
    released: int = 0
    lost: int = 0
    reaped: int = 0
    slices: int = 0
    seconds: float = 0.0

    def add(self, tally: Tally) -> None:
        for name in ("claimed", "published", "retried", "dead", "released", "lost"):
            setattr(self, name, getattr(self, name) + getattr(tally, name))


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
        store.ready(options.queue)  # an unreachable or uninitialised store is told before Spark starts
        until = _until_now(store) if options.once else None
        one_writer = not store.capabilities.concurrent_writers
        with _signals(ending), Housekeeping(store, options, report):
            _turn(options, _errand(options, until), one_writer, ending, report, progress)
    return report


def _until_now(store: SqlStore) -> datetime:
    """The end of a relay that drains; what a dead one has left behind is to be in front of it."""
    while store.reap():
        pass
    return store.now()


def _turn(
    options: RelayOptions,
    errand: Errand,
    one_writer: bool,
    ending: threading.Event,
    report: RelayReport,
    progress: Callable[[RelayReport], None] | None,
) -> None:
    from penstock.pipeline.lake_relay import run_lake
    from penstock.pipeline.session import open_session
    from penstock.pipeline.slices import Patience, run_slices

    telemetry.info(
        "relay starts", queue=options.queue, to=mask_url(options.destination), master=options.master or "local"
    )
    ledger = _Ledger(report, options.once, progress)
    spark = open_session(options.master, f"penstock relay {options.queue}")
    if ending.is_set():
        return
    if is_lake(options.destination):
        tasks = _parallelism(options, spark.sparkContext.defaultParallelism, one_writer)
        run_lake(spark, options, errand.until, tasks, ending, ledger.enter)
        return
    run_slices(
        spark,
        carry,
        errand,
        parallelism=_parallelism(options, spark.sparkContext.defaultParallelism, one_writer),
        slice_seconds=options.slice_seconds,
        on_slice=ledger.enter,
        checkpoint=options.checkpoint,
        name=f"penstock-relay-{options.queue}-{uuid4().hex[:8]}",  # two may run in one session
        stop=ending,
        grace_seconds=GRACE_SECONDS,
        patience=Patience(failures=FAILED_SLICES, through_deaths=True),
        on_failure=_warn,
    )
    telemetry.info("relay stops", published=report.published, retried=report.retried, dead=report.dead)


class _Ledger:
    """Adds up what the slices did, tells it, and says whether to go on."""

    def __init__(self, report: RelayReport, once: bool, progress: Callable[[RelayReport], None] | None) -> None:
        self._report = report
        self._once = once
        self._progress = progress
        self._started = time.monotonic()

    def enter(self, _number: int, tallies: list[Tally]) -> bool:
        self._report.slices += 1
        self._report.seconds = time.monotonic() - self._started
        for tally in tallies:
            self._report.add(tally)
        _log(tallies)
        if self._progress is not None:
            self._progress(self._report)
        return not (self._once and all(tally.drained for tally in tallies))


def _errand(options: RelayOptions, until: datetime | None) -> Errand:
    return Errand(
        store=options.store,
        destination=_as_seen_from_workers(options),
        queue=options.queue,
        batch=options.batch,
        lease_seconds=options.lease_seconds,
        retry=options.retry,
        routing=Routing(options.topic),
        order_policy=options.order_policy,
        max_deliveries=options.max_deliveries,
        until=until,
    )


def _as_seen_from_workers(options: RelayOptions) -> str:
    """Spark sends what its Python workers print to the log; in local mode they can reach this process's own output."""
    if (
        options.destination == "stdout:"
        and (options.master or "local").startswith("local")
        and Path("/proc/self/fd/1").exists()
    ):
        return f"stdout:?path=/proc/{os.getpid()}/fd/1"
    return options.destination


def _parallelism(options: RelayOptions, cores: int, one_writer: bool) -> int:
    """A task a core; one where the store takes one writer at a time and more would only queue up."""
    return options.parallelism or (1 if one_writer else cores)


def _log(tallies: list[Tally]) -> None:
    for trouble in dict.fromkeys(line for tally in tallies for line in tally.troubles):
        telemetry.warn("trouble, trying again", cause=trouble)
    for cause in dict.fromkeys(line for tally in tallies for line in tally.deaths):
        telemetry.warn("events died", cause=cause)
    if any(tally.claimed for tally in tallies):
        names = ("published", "retried", "dead", "released", "lost")
        sums = {name: sum(getattr(tally, name) for tally in tallies) for name in names}
        telemetry.info("slice", **{name: count for name, count in sums.items() if count})


def _warn(cause: str, seconds: float) -> None:
    telemetry.warn("a slice failed, trying again", in_seconds=seconds, cause=cause)


@contextmanager
def _signals(ending: threading.Event) -> Iterator[None]:
    """SIGTERM and Ctrl-C end the relay gracefully; a second Ctrl-C ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _frame: object) -> None:
        if ending.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        telemetry.info("stopping: finishing what is in hand")
        ending.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Housekeeping:
    """Beside the slices, on the driver: reaps expired leases, tends the tables, and announces the relay."""

    def __init__(self, store: SqlStore, options: RelayOptions, report: RelayReport) -> None:
        host = f"{socket.gethostname()}:{os.getpid()}"
        self._store = store
        self._relay = Relay(uuid4(), options.queue, mask_url(options.destination), host)
        self._report = report
        self._every_seconds = min(REAP_SECONDS, options.lease_seconds / 2)
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
            self._store.forget(self._relay.relay_id)
        except PenstockError as error:
            telemetry.debug("could not sign off", cause=error)

    def _run(self) -> None:
        tended = 0.0
        reachable = True
        while True:
            try:
                self._store.beat(self._relay)
                self._reap()
                if time.monotonic() - tended > TEND_SECONDS:
                    self._store.tend()
                    tended = time.monotonic()
                if not reachable:
                    telemetry.info("the store is back")
                reachable = True
            except PenstockError as error:
                telemetry.warn("housekeeping failed, trying again", cause=error)
                reachable = False
            if self._over.wait(self._every_seconds):
                return

    def _reap(self) -> None:
        while not self._over.is_set() and (count := self._store.reap()):
            self._report.reaped += count
            telemetry.warn("reaped events of expired leases", events=count)
