"""A running worker: start and stop of its subscriptions, executors and loops."""

import asyncio
import os
import socket
import threading
from collections.abc import Sequence
from time import monotonic, sleep
from uuid import uuid4

from penstock.model.lease import Claim
from penstock.model.lifecycle import OrderPolicy
from penstock.model.stats import Relay
from penstock.outbox import Outbox
from penstock.store.api import Store
from penstock.telemetry import log
from penstock.worker.executors import EventLoopExecutor, ThreadExecutor
from penstock.worker.handler import Handling
from penstock.worker.loops import Fetching, Gate, WorkerLoop
from penstock.worker.notifier import Notifier, open_notifier
from penstock.worker.periodic import Periodic, PeriodicEmitter
from penstock.worker.subscription import Subscription

ANNOUNCE_SECONDS = 5.0
TEND_SECONDS = 60.0
LAST_FLUSH_SECONDS = 5.0
LATE_LOOK_SECONDS = 0.1


class Running:
    """Components of a worker between `start` and `stop`."""

    def __init__(
        self,
        store: Store,
        handlings: Sequence[tuple[str, Handling]],
        periodics: Sequence[Periodic],
        order_policy: OrderPolicy,
        graceful_timeout: float,
    ) -> None:
        self.store = store
        self.outbox = Outbox(store)
        self.claimant = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:6]}"
        self.over = False
        self.subscriptions = [
            Subscription(queue, handling, store, self.claimant, order_policy) for queue, handling in handlings
        ]
        self.loops: list[WorkerLoop] = []
        self._graceful_timeout = graceful_timeout
        self._periodics = periodics
        self._gate = Gate()
        self._executors: list[ThreadExecutor | EventLoopExecutor] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: threading.Thread | None = None
        self._flush_wake = threading.Event()
        self._fetches: list[WorkerLoop] = []
        self._notifier: Notifier | None = None
        self._announced: list[Relay] = []

    # -- start -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start executors and loops. Accesses the store first, so that its errors are raised here and not in a loop."""
        for subscription in self.subscriptions:
            self.store.ready(subscription.queue)
            if subscription.options.max_claimed is not None:
                self.store.limit(subscription.queue, subscription.options.max_claimed)
        self._start_executors()
        self._notifier = open_notifier(self.store, [(one.queue, one.woken) for one in self.subscriptions])
        self._make_loops()
        for loop in self.loops:
            loop.start()
        queues = sorted({one.queue for one in self.subscriptions})
        log.info("worker_started", store=self.store.url, queues=",".join(queues), claimant=self.claimant)

    def _start_executors(self) -> None:
        if any(one.handling.is_async for one in self.subscriptions):
            self._loop = asyncio.new_event_loop()
            self._loop_thread = threading.Thread(target=self._loop.run_forever, name="penstock-async", daemon=True)
            self._loop_thread.start()
        for subscription in self.subscriptions:
            executor: ThreadExecutor | EventLoopExecutor
            if subscription.handling.is_async:
                assert self._loop is not None
                executor = EventLoopExecutor(subscription, self._loop)
            else:
                executor = ThreadExecutor(subscription)
            executor.start()
            subscription.buffer.done = self._flush_wake.set
            self._executors.append(executor)

    def _make_loops(self) -> None:
        for subscription in self.subscriptions:
            fetching = Fetching(subscription, self._gate, self._run_one_alone, wakes=self._wakes)
            loop = WorkerLoop(f"fetch of {subscription.queue}", fetching.step, subscription.woken)
            self._fetches.append(loop)
        self.loops = [
            *self._fetches,
            WorkerLoop("flush", self._flush, self._flush_wake),
            WorkerLoop("heartbeat", self._beat),
            WorkerLoop("release-stuck", self._release_stuck),
            WorkerLoop("upkeep", self._tend),
            WorkerLoop("announcing", self._announce),
        ]
        if any(one.options.timeout_seconds is not None for one in self.subscriptions):
            self.loops.append(WorkerLoop("timeout", self._give_up_on_late))
        if self._periodics:
            self.loops.append(WorkerLoop("periodic", PeriodicEmitter(self.outbox, self._periodics).step))
        if self._notifier is not None:
            self.loops.append(WorkerLoop("lookout", self._notifier.step))

    def _wakes(self) -> bool:
        return self._notifier is not None and self._notifier.listening

    # -- steps of the loops ------------------------------------------------------------------------------------

    def _flush(self) -> float:
        for subscription in self.subscriptions:
            subscription.flush()
        return min((one.options.flush_interval for one in self.subscriptions), default=1.0) or 0.005

    def _beat(self) -> float:
        for subscription in self.subscriptions:
            subscription.beat()
        return min((one.options.release_stuck_timeout for one in self.subscriptions), default=60.0) / 3

    def _release_stuck(self) -> float:
        while self.store.reap():
            for subscription in self.subscriptions:
                subscription.woken.set()
        return min((one.options.release_stuck_interval for one in self.subscriptions), default=5.0)

    def _tend(self) -> float:
        self.store.maintain()
        return TEND_SECONDS

    def _announce(self) -> float:
        if not self._announced:
            self._announced = [
                Relay(uuid4(), one.queue, f"worker {self.claimant}", socket.gethostname()) for one in self.subscriptions
            ]
        for relay in self._announced:
            self.store.announce(relay)
        return ANNOUNCE_SECONDS

    def _give_up_on_late(self) -> float:
        for executor in self._executors:
            executor.give_up_on_late()
        return LATE_LOOK_SECONDS

    def _run_one_alone(self, subscription: Subscription) -> Claim:
        """Claim and handle one event while this process has no other claimed event; return the claim.

        If the event kills the process, an attempt is counted for this event only.
        """
        with self._gate.alone():
            for one in self.subscriptions:
                one.buffer.drain()
            until = monotonic() + self._graceful_timeout
            for one in self.subscriptions:
                one.buffer.await_quiet(until)
                self._write_all(one, until)
            claim = subscription.claim(1)
            if self.over:
                self.store.release(claim.lease)
            elif claim:
                subscription.feed(claim)
                subscription.buffer.await_quiet(None)
                self._write_all(subscription, None)
            return claim

    def _write_all(self, subscription: Subscription, until: float | None) -> None:
        """Flush until the store has every outcome, including those that another thread is writing."""
        while subscription.buffer.unwritten and not self.over:
            if not subscription.flush(all_of_it=True):
                subscription.buffer.await_written(LATE_LOOK_SECONDS)
            if until is not None and monotonic() > until:
                return

    # -- stop --------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop fetching, release the waiting events, let running calls finish, and write all outcomes."""
        self.over = True
        until = monotonic() + self._graceful_timeout
        for loop in self._fetches:
            loop.stop()
        for subscription in self.subscriptions:
            subscription.buffer.drain()
        for loop in self._fetches:
            loop.join(until)
        for subscription in self.subscriptions:
            subscription.buffer.drain()  # events of a claim that was in progress
        for executor in self._executors:
            executor.stop(until)
        for loop in self.loops:
            loop.stop()
        for loop in self.loops:
            loop.join(monotonic() + LAST_FLUSH_SECONDS)
        self._last_flush()
        self._close()

    def _last_flush(self) -> None:
        until = monotonic() + LAST_FLUSH_SECONDS
        while monotonic() < until:
            for subscription in self.subscriptions:
                subscription.flush(all_of_it=True)
            if not any(one.buffer.unwritten for one in self.subscriptions):
                return
            sleep(0.2)
        left = sum(one.buffer.unwritten for one in self.subscriptions)
        log.warn("outcomes_lost", count=left)

    def _close(self) -> None:
        try:
            for relay in self._announced:
                self.store.withdraw(relay.relay_id)
        except Exception as error:
            log.debug("withdraw_failed", error=error)
        if self._notifier is not None:
            self._notifier.close()
        if self._loop is not None and self._loop_thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop_thread.join(LAST_FLUSH_SECONDS)
            if not self._loop_thread.is_alive():
                self._loop.close()
        self.store.close()
