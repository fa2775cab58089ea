"""The worker: event handlers by queue, run in the application's process."""

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Any, TypeVar

from penstock.config.urls import mask_url, store_url
from penstock.model.errors import UsageError
from penstock.model.event import DEFAULT_QUEUE
from penstock.model.lease import DEFAULT_MAX_LEASE_AGE_SECONDS
from penstock.model.lifecycle import OrderPolicy
from penstock.model.times import Clock
from penstock.outbox import Outbox
from penstock.runtime.signals import stopped_by_signals
from penstock.store.api import StoreOptions
from penstock.store.registry import open_store
from penstock.telemetry import log
from penstock.worker.handler import Function, Handling, Middleware
from penstock.worker.options import HandlerOptions
from penstock.worker.periodic import Periodic
from penstock.worker.runtime import Running

LISTEN_SECONDS = 0.1

Decorated = TypeVar("Decorated", bound=Function)
AnyMiddleware = TypeVar("AnyMiddleware", bound=Middleware)


@dataclass(frozen=True, slots=True)
class Registered:
    """A registered handler: its queue, function and options."""

    queue: str
    function: Function
    options: HandlerOptions


class Worker:
    """Runs event handlers. One worker serves any number of queues.

        worker = Worker("postgresql://…")

        @worker.handler("emails")
        def send(event): ...

        worker.run()

    No connection is opened before the worker runs. On stop, running calls have `graceful_timeout` seconds to finish.
    Any call must end within `max_lease_age_seconds`, heartbeats or not.
    """

    def __init__(
        self,
        store: str | None = None,
        *,
        graceful_timeout: float = 30.0,
        order_policy: OrderPolicy = OrderPolicy.BLOCK,
        max_lease_age_seconds: float = DEFAULT_MAX_LEASE_AGE_SECONDS,
        defaults: HandlerOptions | None = None,
    ) -> None:
        """`defaults` are the options of handlers that don't override them."""
        if graceful_timeout < 0:
            raise UsageError("graceful_timeout must be 0 s or more")
        self.url = store_url(store)
        self.graceful_timeout = graceful_timeout
        self.order_policy = order_policy
        self.max_lease_age_seconds = max_lease_age_seconds
        self.registered: list[Registered] = []
        self.middlewares: list[Middleware] = []
        self.periodics: list[Periodic] = []
        self._defaults = defaults
        self._running: Running | None = None
        self._stopping = threading.RLock()

    # -- registration ------------------------------------------------------------------------------------------

    def handler(self, queue: str = DEFAULT_QUEUE, **options: Any) -> Callable[[Decorated], Decorated]:
        """Register a function as handler for the events of `queue`. `HandlerOptions` lists the options.

        The function may be async. It receives the event, its payload as the annotated type, or both.
        """
        chosen = self._options(options)

        def register(function: Decorated) -> Decorated:
            Handling(function, chosen, ())  # raises an error if the signature is invalid
            self._refuse_rivals(queue, chosen.types)
            self.registered.append(Registered(queue, function, chosen))
            return function

        return register

    def middleware(self, function: AnyMiddleware) -> AnyMiddleware:
        """Wrap every call in the context manager `function(event)`. The first one registered is the outermost."""
        self.middlewares.append(function)
        return function

    def periodic(
        self,
        cron: str,
        event_type: str,
        payload: object = b"",
        *,
        queue: str = DEFAULT_QUEUE,
        name: str | None = None,
        timezone: tzinfo = UTC,
        **fields: Any,
    ) -> None:
        """Emit an event at the times of a cron expression, once across all processes that run this worker.

        Times that pass while no process runs are skipped. `name` distinguishes periodic emits of one type.
        """
        periodic = Periodic(cron, name or f"{queue}/{event_type}", event_type, payload, queue, timezone, fields)
        if any(one.name == periodic.name for one in self.periodics):
            raise UsageError(f"there is a periodic emit called {periodic.name!r} already: give this one another name")
        self.periodics.append(periodic)

    def _options(self, given: dict[str, Any]) -> HandlerOptions:
        names = HandlerOptions.__dataclass_fields__
        unknown = given.keys() - names.keys()
        if unknown:
            raise UsageError(f"a handler has no option {sorted(unknown)[0]!r}; there are: {', '.join(names)}")
        if self._defaults is not None:
            given = {name: getattr(self._defaults, name) for name in names} | given
        return HandlerOptions(**given)

    def _refuse_rivals(self, queue: str, types: Collection[str] | None) -> None:
        for other in self.registered:
            if other.queue != queue:
                continue
            if types is None or other.options.types is None or set(types) & set(other.options.types):
                raise UsageError(f"queue {queue!r} has a handler for these events already; give each its own types")

    # -- running -----------------------------------------------------------------------------------------------

    def run(self, *, queues: Sequence[str] | None = None) -> None:
        """Run until SIGTERM, Ctrl-C or `stop()`, then stop gracefully. A second signal exits at once."""
        ending = threading.Event()
        # A signal handler may interrupt code that holds a lock, such as that of logging, so it must not log.
        with stopped_by_signals(ending, _exit_at_once, logs=False):
            self.start(queues=queues)
            try:
                while self.running and not ending.is_set():
                    time.sleep(LISTEN_SECONDS)
                if ending.is_set():
                    log.info("stopping", hint="send the signal again to stop at once")
            finally:
                self.stop()

    def start(self, *, queues: Sequence[str] | None = None) -> None:
        """Run in the background until `stop()`. `queues` restricts the worker to the handlers of these queues."""
        if self._running is not None:
            raise UsageError("this worker runs already")
        self._running = self.prepare(queues)
        try:
            self._running.start()
        except BaseException:
            self._running = None
            raise

    def prepare(
        self, queues: Sequence[str] | None = None, *, url: str | None = None, clock: Clock | None = None
    ) -> Running:
        """Return the components of the worker without starting them, optionally with another store or clock."""
        chosen = [one for one in self.registered if queues is None or one.queue in queues]
        missing = sorted(set(queues or ()) - {one.queue for one in chosen})
        if missing:
            raise UsageError(f"this worker has no handler for queue {missing[0]!r}")
        if not chosen and not self.periodics:
            raise UsageError('this worker has nothing to do: give it a handler, @worker.handler("queue")')
        threads = sum(one.options.max_workers for one in chosen)
        options = StoreOptions(
            order_policy=self.order_policy,
            max_lease_age_seconds=self.max_lease_age_seconds,
            pool_size=min(8 + threads, 30),
        )
        store = open_store(url or self.url, options, clock)
        handlings = [(one.queue, Handling(one.function, one.options, self.middlewares)) for one in chosen]
        return Running(store, handlings, self.periodics, self.order_policy, self.graceful_timeout)

    def stop(self) -> None:
        """Stop gracefully: start no calls, let running calls finish, release waiting events, write outcomes.

        If another thread is already stopping the worker, wait: the worker has stopped when this method returns.
        """
        with self._stopping:
            running, self._running = self._running, None
            if running is not None:
                running.stop()

    @property
    def running(self) -> bool:
        return self._running is not None and not self._running.over

    @property
    def runtime(self) -> Running | None:
        """Running components, for inspection; None while the worker does not run."""
        return self._running

    @contextmanager
    def lent_to(self, running: Running) -> Iterator[None]:
        """Treat this worker as running while the caller drives `running`, such as a test in its own thread."""
        if self._running is not None:
            raise UsageError("this worker runs already")
        self._running = running
        try:
            yield
        finally:
            self._running = None

    @property
    def outbox(self) -> Outbox:
        """Outbox on the worker's store, for handlers that emit. Only available while the worker runs."""
        if self._running is None:
            raise UsageError("the worker's outbox is there while it runs")
        return self._running.outbox

    def __repr__(self) -> str:
        return f"Worker({mask_url(self.url)!r}, queues={sorted({one.queue for one in self.registered})})"


def _exit_at_once(number: int) -> None:
    os.write(2, b"stopping at once; what is being handled comes back when its lease is over\n")
    os._exit(128 + number)
