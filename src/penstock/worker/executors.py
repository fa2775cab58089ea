"""Executors for handlers: a thread pool for plain functions, one event loop for async functions.

An executor takes events from the buffer, calls the handler and reports the outcome.
"""

import asyncio
import threading
from collections.abc import Sequence
from time import monotonic

from penstock.model.errors import PenstockError
from penstock.telemetry import log
from penstock.worker.options import AckPolicy
from penstock.worker.received import Received
from penstock.worker.subscription import Subscription

# Yield to the event loop after this number of calls: an async handler that never awaits would block all others.
CALLS_IN_A_ROW = 50


class Executor:
    """Common base of thread and event loop executors."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.handling = subscription.handling
        self.buffer = subscription.buffer
        self.closed = threading.Event()
        self.most = subscription.options.batch_size or 1
        self._first = subscription.options.ack_policy is AckPolicy.ACK_FIRST

    def accept(self, events: Sequence[Received]) -> Sequence[Received]:
        """Return the events to handle; record outcomes for all others."""
        if self.subscription.options.max_deliveries is not None:
            refused = {event: self.handling.refusal(event, self.subscription) for event in events}
            for event, outcome in refused.items():
                if outcome is not None:
                    self.buffer.finish(event, outcome)
            events = [event for event in events if refused[event] is None]
        return self._settle_first(events) if self._first and events else events

    def _settle_first(self, events: Sequence[Received]) -> Sequence[Received]:
        try:
            mine = set(self.subscription.settle_first(events))
        except PenstockError as error:
            # It is unknown whether the settlement was committed, so no event may be handled. If it was not, the lease
            # expires.
            log.warn("settle_failed", queue=self.subscription.queue, count=len(events), error=error)
            mine = set()
        for event in events:
            if event not in mine:
                self.buffer.finish(event, None)
        return [event for event in events if event in mine]

    def finish(self, events: Sequence[Received], error: BaseException | None) -> None:
        for event in events:
            if not event.finished:
                self.buffer.finish(event, self.handling.outcome(event, error, self.subscription))


class ThreadExecutor(Executor):
    """`max_workers` threads. A thread whose call exceeds the time limit is abandoned and replaced."""

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(subscription)
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        for _ in range(self.subscription.options.max_workers):
            self._start_one()

    def _start_one(self) -> None:
        name = f"penstock-handler-{self.subscription.queue}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while events := self.buffer.await_some(self.most, self.closed):
            accepted = self.accept(events)
            if not accepted:
                continue
            self.finish(accepted, self.handling.call(accepted))
            if accepted[0].abandoned:
                return  # another thread has replaced this one

    def give_up_on_late(self) -> None:
        """Fail the calls that exceed the time limit and replace their threads, since a thread can't be stopped."""
        limit = self.subscription.options.timeout_seconds
        if limit is None:
            return
        late = self.buffer.abandon(monotonic() - limit)
        if late:
            self.finish(late, TimeoutError(self.handling.too_long()))
            for _ in range(-(-len(late) // self.most)):
                self._start_one()

    def stop(self, until: float) -> None:
        """Start no more calls and wait for running ones. The events of calls still running at `until` stay claimed."""
        self.closed.set()
        with self.buffer.changed:
            self.buffer.changed.notify_all()
        for thread in self._threads:
            thread.join(max(0.0, until - monotonic()))


class EventLoopExecutor(Executor):
    """`max_workers` coroutines on the worker's event loop."""

    def __init__(self, subscription: Subscription, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(subscription)
        self._loop = loop
        self._more = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self.subscription.fed = self._wake
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()

    async def _start(self) -> None:
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self.subscription.options.max_workers)]

    def _wake(self) -> None:
        self._loop.call_soon_threadsafe(self._more.set)

    async def _work(self) -> None:
        calls = 0
        while True:
            events = self.buffer.take(self.most)
            if events:
                await self._handle(events)
                calls += 1
                if calls % CALLS_IN_A_ROW == 0:
                    await asyncio.sleep(0)
            elif self.closed.is_set():
                return
            else:
                await self._wait()

    async def _wait(self) -> None:
        """Wait for more events. Check the buffer after clearing the flag, so that no wake-up is lost."""
        self._more.clear()
        if not self.buffer.queued and not self.closed.is_set():
            await self._more.wait()

    async def _handle(self, events: Sequence[Received]) -> None:
        if self._first:
            accepted = await asyncio.to_thread(self.accept, events)
        else:
            accepted = self.accept(events)
        if not accepted:
            return
        try:
            error = await self.handling.call_async(accepted)
        except asyncio.CancelledError as cancelled:
            task = asyncio.current_task()
            self.finish(accepted, TimeoutError("the worker stopped before the handler was done"))
            if task is not None and task.cancelling():
                raise cancelled
            return
        self.finish(accepted, error)

    def give_up_on_late(self) -> None:
        """Do nothing: `asyncio.timeout` ends late calls."""

    def stop(self, until: float) -> None:
        """Start no more calls and wait for running ones. At `until`, cancel the rest, which count as failed."""
        self.closed.set()
        self._wake()
        asyncio.run_coroutine_threadsafe(self._stop(until), self._loop).result()

    async def _stop(self, until: float) -> None:
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=max(0.0, until - monotonic()))
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
