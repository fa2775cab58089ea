"""A handler's subscription to a queue: claims events and settles their outcomes.

The threads that drive a subscription are in `penstock.worker.loops` and `penstock.worker.executors`.
"""

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from time import monotonic

from sqlalchemy import Connection

from penstock.model.errors import LeaseLost, NotSupported, StoreConflict, StoreError, StoreUnavailable
from penstock.model.lease import Claim, Settlement
from penstock.model.lifecycle import OrderPolicy
from penstock.model.outcome import PUBLISHED, RELEASED, Dead, Outcome, Published, Retry
from penstock.store.api import Store
from penstock.store.sql.store import SqlStore
from penstock.telemetry import log
from penstock.worker.buffer import EventBuffer
from penstock.worker.handler import Handling
from penstock.worker.received import Received

FAST_IDLE_SECONDS = 0.1
SLOW_IDLE_SECONDS = 1.0


class Subscription:
    """A queue and its handler in one process."""

    def __init__(self, queue: str, handling: Handling, store: Store, claimant: str, order_policy: OrderPolicy) -> None:
        self.queue = queue
        self.handling = handling
        self.options = handling.options
        self.store = store
        self.claimant = claimant
        self.buffer = EventBuffer(order_policy)
        self.woken = threading.Event()
        self.fetched_at: float | None = None
        self.counts = {"handled": 0, "failed": 0, "dead": 0, "lost": 0}
        self.fed: Callable[[], None] = lambda: None
        """Called when events are available, for an executor that does not wait on the buffer."""

    # -- fetch -------------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Number of events that the next claim may take; 0 while less than half a batch would fit."""
        free = self.options.capacity - self.buffer.queued
        room = min(self.options.fetch_batch_size, free)
        return room if room * 2 >= self.options.fetch_batch_size else 0

    def idle_seconds(self, *, wakes: bool) -> float:
        """Return the seconds to wait after a claim that was not full."""
        if self.options.max_fetch_interval is not None:
            return self.options.max_fetch_interval
        return SLOW_IDLE_SECONDS if wakes else FAST_IDLE_SECONDS

    def ready(self) -> bool:
        """Return whether a claim would return events. Cheaper than a claim, which writes even if it returns no
        events."""
        found = self.store.ready(self.queue, types=self.options.types)
        self.fetched_at = monotonic()
        return found

    def claim(self, limit: int) -> Claim:
        claim = self.store.claim(
            self.queue,
            limit=limit,
            claimant=self.claimant,
            lease_seconds=self.options.release_stuck_timeout,
            types=self.options.types,
            max_attempts=self.options.retry.max_attempts,
        )
        self.fetched_at = monotonic()
        return claim

    def feed(self, claim: Claim) -> None:
        """Add the events of a claim to the buffer."""
        self.buffer.add(claim.lease, [Received.of(event, claim.lease, self) for event in claim.events])
        self.fed()

    def settle_first(self, events: Sequence[Received]) -> list[Received]:
        """Settle events before handling (at-most-once delivery). Return the events whose settlement was accepted."""
        mine: list[Received] = []
        for lease in {event.lease for event in events}:
            under = [event for event in events if event.lease == lease]
            settlement = self.store.settle(lease, dict.fromkeys((event.seq for event in under), self.published(None)))
            self._count(settlement)
            mine += [event for event in under if event.seq in settlement.published]
        for event in events:
            event.settled = True
        return mine

    # -- decisions (`penstock.worker.received.DecisionSink`) -----------------------------------------------------------

    def published(self, result: bytes | None) -> Outcome:
        if result is None and self.options.keep_on_ack:
            return PUBLISHED
        return Published(result, self.options.keep_on_ack)

    def failed(self, event: Received, error: str, delay: float | None = None) -> Outcome:
        keep = self.options.keep_on_reject
        if delay is not None:
            return Retry(error, delay, keep)
        age = (datetime.now(UTC) - event.created_at).total_seconds()
        decided = self.options.retry.decide(
            error,
            attempts=event.attempts,
            age_seconds=age,
            roll=random.random(),
            event_max_attempts=event.max_attempts,
        )
        return Retry(error, decided.delay_seconds, keep) if isinstance(decided, Retry) else Dead(decided.error, keep)

    def rejected(self, reason: str) -> Outcome:
        return Dead(reason, self.options.keep_on_reject)

    def decided(self, event: Received) -> None:
        """Record a decision made after the handler returned."""
        self.buffer.finish(event, event.decision)
        self.fed()

    @contextmanager
    def transaction(self, event: Received) -> Iterator[Connection]:
        store = self.store
        if not isinstance(store, SqlStore):
            raise NotSupported(f"{store.url} does not support event.transaction(); use a SQL database")
        ours = True
        try:
            with store.transaction() as connection:
                try:
                    yield connection
                finally:
                    ours = connection.invalidated
                ours = True
                settlement = store.settle_in(connection, event.lease, {event.seq: self.published(None)})
                if event.seq not in settlement.published:
                    raise LeaseLost(
                        f"event {event.event_id} is no longer claimed by this worker: its transaction is rolled back"
                    )
        except (StoreConflict, StoreUnavailable) as error:
            if ours:
                # The store failed, not the handler. If the commit succeeded after all, the store rejects the release.
                event.decision = RELEASED
                log.warn("transaction_retried", event_id=event.event_id, error=error)
            raise
        event.settled = True
        self.counts["handled"] += 1

    # -- flush -------------------------------------------------------------------------------------------------

    def flush(self, *, all_of_it: bool = False) -> bool:
        """Write the outcomes that are due. Return True if there were any and the store accepted them.

        After an error of the store, the remaining outcomes stay due.
        """
        due = self.buffer.due(self.options.flush_interval, all_of_it=all_of_it)
        for position, (lease, outcomes) in enumerate(due):
            try:
                settlement = self.store.settle(lease, outcomes)
            except BaseException as error:
                for later, left in due[position:]:
                    self.buffer.put_back(later, left)
                if isinstance(error, StoreError):
                    log.warn("settle_failed", queue=self.queue, error=error)
                    return False
                raise
            self.buffer.written(lease)
            self._count(settlement)
        return bool(due)

    def _count(self, settlement: Settlement) -> None:
        self.counts["handled"] += len(settlement.published)
        self.counts["failed"] += len(settlement.retried)
        self.counts["dead"] += len(settlement.dead)
        self.counts["lost"] += len(settlement.lost)
        if settlement.lost:
            log.warn("lease_lost", queue=self.queue, count=len(settlement.lost))

    # -- heartbeat ---------------------------------------------------------------------------------------------

    def beat(self) -> None:
        """Extend all held leases; drop events whose lease was lost."""
        leases = self.buffer.leases
        if not leases:
            return
        kept = {lease.lease_id for lease in self.store.extend(leases)}
        lost = self.buffer.still_needed(lease.lease_id for lease in leases if lease.lease_id not in kept)
        if lost:
            forgotten = self.buffer.lose(lost)
            log.warn("leases_lost", queue=self.queue, count=len(lost), events=forgotten)
