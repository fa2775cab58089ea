"""Test harness for handlers: runs them for emitted events in the test's own thread, at once and in order.

    from penstock.testing.workers import InProcessWorker
    from shop.workers import worker

    @pytest.fixture
    def working(tmp_path):
        with InProcessWorker(worker, f"sqlite:///{tmp_path}/events.db") as working:
            yield working

    def test_receipt_is_sent_on_payment(working, mailbox):
        working.outbox.emit("order.paid", {"order": 7}, queue="emails")
        (handled,) = working.drain()
        assert handled.outcome == PUBLISHED
        assert mailbox == ["receipt for order 7"]

    def test_delayed_reminder_is_sent_despite_mail_server_failure(working, mailbox):
        mailbox.fail_once(ConnectionError())
        working.outbox.emit("order.unpaid", {"order": 7}, queue="emails", delay=86_400)
        assert working.drain() == []
        first, second = working.drain(delayed=True)
        assert isinstance(first.error, ConnectionError) and second.error is None

There are no threads, no sleeps and no Spark. Nothing is mocked: the events are in a real store, and claims, arguments,
middlewares, ack policies and retries are the worker's own.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self

from penstock.model.errors import StoreError, UsageError
from penstock.model.event import EventId
from penstock.model.lifecycle import OrderPolicy, State
from penstock.model.outcome import Outcome
from penstock.model.records import Record
from penstock.model.selection import Selection
from penstock.outbox import Outbox
from penstock.store.api import Store
from penstock.store.registry import open_store
from penstock.worker import Received, Worker
from penstock.worker.buffer import EventBuffer
from penstock.worker.executors import Executor
from penstock.worker.subscription import Subscription

PAGE = 1_000


@dataclass(frozen=True, slots=True)
class HandledEvent:
    """A handled event, its outcome, and the exception raised by its handler.

    Without an outcome the event is still claimed, because its handler will settle it later.
    """

    event: Received
    outcome: Outcome | None
    error: BaseException | None = None


class InProcessWorker:
    """Runs a worker's handlers only while `drain` is called.

    It uses the worker's own store, or the one at `store_url`, where it creates the tables. The time limit of a plain
    handler is not enforced: nothing can interrupt the test's own thread.
    """

    def __init__(self, worker: Worker, store_url: str | None = None) -> None:
        url = store_url or worker.url
        self._worker = worker
        self._clock = JumpingClock(_ahead(url, initialise=store_url is not None))
        self._running = worker.prepare(url=url, clock=self._clock)
        policy = worker.order_policy
        self._lanes = [_Lane(subscription, policy) for subscription in self._running.subscriptions]

    @property
    def store(self) -> Store:
        """The store with this worker's clock, to inspect events."""
        return self._running.store

    @property
    def outbox(self) -> Outbox:
        """An outbox on the same store."""
        return self._running.outbox

    def drain(self, *, delayed: bool = False, most: int = 10_000, raise_errors: bool = False) -> list[HandledEvent]:
        """Handle ready events, including those that handlers emit, until none is ready. Return them in the order of
        handling.

        With `delayed`, the clock jumps to the next event that is scheduled or waits for a retry. `most` limits the
        number of handled events, which ends an infinite chain of events. With `raise_errors`, the first exception of a
        handler is raised, after its outcome is recorded.
        """
        self._refuse_running_loop()
        done: list[HandledEvent] = []
        with self._worker.lent_to(self._running), asyncio.Runner() as runner:
            while len(done) < most:
                fresh = self._round(runner, most - len(done), raise_errors)
                done += fresh
                if not fresh and not (delayed and self._move_on()):
                    break
        return done

    def fire_periodic(self) -> list[EventId]:
        """Emit each periodic event of the worker once, as if it were due. Return the event ids."""
        now = self._clock()
        return self.outbox.emit_many([periodic.event(self.outbox, now) for periodic in self._worker.periodics])

    def close(self) -> None:
        """Write outcomes decided after the last `drain`, and close the store."""
        for lane in self._lanes:
            lane.subscription.flush(all_of_it=True)
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _refuse_running_loop(self) -> None:
        if not any(lane.handling.is_async for lane in self._lanes):
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise UsageError("drain() cannot run async handlers in a running event loop; call it from a synchronous test")

    def _round(self, runner: asyncio.Runner, most: int, raise_errors: bool) -> list[HandledEvent]:
        """Make one claim for each handler."""
        while self.store.reap():
            pass
        done: list[HandledEvent] = []
        for lane in self._lanes:
            if len(done) < most:
                done += lane.work(runner, most - len(done), raise_errors)
        return done

    def _move_on(self) -> bool:
        """Advance the clock to the next event that is not yet due. Return whether there is one."""
        now = self._clock()
        times = (record.available_at for record in self._pending() if record.available_at > now)
        following = min(times, default=None)
        if following is None:
            return False
        self._clock.jump_to(following)
        for lane in self._lanes:
            lane.subscription.beat()  # extend leases as heartbeats would have done meanwhile
        return True

    def _pending(self) -> list[Record]:
        """Return the pending events of the handlers."""
        queues = frozenset(lane.subscription.queue for lane in self._lanes)
        selection = Selection(queues=queues, states=frozenset({State.PENDING}))
        page = self.store.find(selection, limit=PAGE)
        records = list(page.records)
        while page.after is not None:
            page = self.store.find(selection, after=page.after, limit=PAGE)
            records += page.records
        return [record for record in records if any(lane.wants(record) for lane in self._lanes)]


class JumpingClock:
    """The real time plus an offset."""

    def __init__(self, ahead: timedelta) -> None:
        self._ahead = ahead

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self._ahead

    def jump_to(self, when: datetime) -> None:
        self._ahead = max(self._ahead, when - datetime.now(UTC))


class _Lane:
    """One handler with the worker's subscription and settlement rules, run without the worker's threads."""

    def __init__(self, subscription: Subscription, order_policy: OrderPolicy) -> None:
        self.subscription = subscription
        self.handling = subscription.handling
        self._buffer = subscription.buffer = _Noted(order_policy)
        self._executor = Executor(subscription)

    def wants(self, record: Record) -> bool:
        types = self.subscription.options.types
        return record.queue == self.subscription.queue and (types is None or record.event_type in types)

    def work(self, runner: asyncio.Runner, most: int, raise_errors: bool) -> list[HandledEvent]:
        """Claim once and handle the claimed events."""
        subscription = self.subscription
        claim = subscription.claim(min(most, subscription.options.fetch_batch_size))
        if claim:
            subscription.feed(claim)
        called: dict[Received, BaseException | None] = {}
        try:
            while taken := self._buffer.take(self._executor.most):
                error = self._handle(runner, taken, called)
                if error is not None and raise_errors:
                    raise error
        finally:
            self._write()
            finished, self._buffer.finished = self._buffer.finished, []
        return [
            HandledEvent(event, self._outcome(event, outcome, called), called.get(event)) for event, outcome in finished
        ]

    def _handle(
        self, runner: asyncio.Runner, events: Sequence[Received], called: dict[Received, BaseException | None]
    ) -> BaseException | None:
        accepted = self._executor.accept(events)
        if not accepted:
            return None
        if self.handling.is_async:
            error = runner.run(self.handling.call_async(accepted))
        else:
            error = self.handling.call(accepted)
        called |= dict.fromkeys(accepted, error)
        self._executor.finish(accepted, error)
        return error

    def _write(self) -> None:
        self._buffer.drain()
        self.subscription.flush(all_of_it=True)
        if self._buffer.unwritten:
            raise StoreError(f"cannot store the outcomes of events in queue {self.subscription.queue}; see the log")

    def _outcome(
        self, event: Received, outcome: Outcome | None, called: dict[Received, BaseException | None]
    ) -> Outcome | None:
        """Return the outcome of an event. An event settled before its handler returned counts as published."""
        return self.subscription.published(None) if event.settled and event in called else outcome


class _Noted(EventBuffer):
    """Event buffer that also records the finished events, in order."""

    def __init__(self, order_policy: OrderPolicy) -> None:
        super().__init__(order_policy)
        self.finished: list[tuple[Received, Outcome | None]] = []

    def finish(self, event: Received, outcome: Outcome | None) -> None:
        super().finish(event, outcome)
        self.finished.append((event, outcome))


def _ahead(url: str, *, initialise: bool) -> timedelta:
    """Return how far the store's clock is ahead of ours, rather too much than too little.

    An event that was just emitted by the store's clock must be ready by ours.
    """
    store = open_store(url)
    try:
        if initialise:
            store.initialise()
        before = datetime.now(UTC)
        return max(store.now() - before, timedelta(0))
    finally:
        store.close()
