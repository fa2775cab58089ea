"""The claimed events of a subscription: its leases, its waiting events and its unwritten outcomes.

One lock protects all of them. Nothing here accesses the store.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from penstock.model.lease import Lease, LeaseId
from penstock.model.lifecycle import OrderPolicy
from penstock.model.outcome import RELEASED, Outcome, Released, Retry
from penstock.worker.received import Received


@dataclass(slots=True)
class HeldLease:
    """A lease with the number of its undecided events and its unwritten outcomes."""

    lease: Lease
    undecided: int
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    since: float = 0.0
    """Monotonic time at which the oldest outcome was recorded."""
    writing: bool = False


class EventBuffer:
    """Events between claim and settlement: `add`, `take` and `finish` for events, `due` and `written` for outcomes."""

    def __init__(self, order_policy: OrderPolicy) -> None:
        lock = threading.RLock()
        self.changed = threading.Condition(lock)
        self.roomy = threading.Condition(lock)
        """Notified when an executor takes events, which may make room for another claim."""
        self.running: set[Received] = set()
        self._order_policy = order_policy
        self._waiting: deque[Received] = deque()
        # Only the first event of an ordering key is in `_waiting`. Its followers move there one after the other.
        self._followers: dict[str, deque[Received]] = {}
        self._open: dict[str, int] = {}
        """Number of taken and undecided events by ordering key; more than one only within a batch."""
        self.queued = 0
        """Number of events that wait for an executor."""
        self._held: dict[LeaseId, HeldLease] = {}
        self.done: Callable[[], object] = lambda: None
        """Called when all events of a lease are decided: its outcomes can be written at once."""

    @property
    def leases(self) -> list[Lease]:
        with self.changed:
            return [held.lease for held in self._held.values()]

    @property
    def undecided(self) -> int:
        with self.changed:
            return sum(held.undecided for held in self._held.values())

    def add(self, lease: Lease, events: Sequence[Received]) -> None:
        """Add the events of a new claim, in delivery order."""
        with self.changed:
            self._held[lease.lease_id] = HeldLease(lease, len(events))
            for event in events:
                self._enqueue(event)
            self.queued += len(events)
            self.changed.notify(len(events))

    def _enqueue(self, event: Received) -> None:
        key = event.ordering_key
        if key is None:
            self._waiting.append(event)
        elif key in self._followers:
            self._followers[key].append(event)
        else:
            self._followers[key] = deque()
            self._waiting.append(event)

    def take(self, most: int = 1) -> list[Received]:
        """Mark up to `most` waiting events as running and return them; an empty list if none waits."""
        with self.changed:
            taken: list[Received] = []
            while self._waiting and len(taken) < most:
                event = self._waiting.popleft()
                taken.append(event)
                if event.ordering_key is not None:
                    self._take_along(event.ordering_key, taken, most)
            if taken:
                for event in taken:
                    event.begin()
                self.queued -= len(taken)
                self.running.update(taken)
                self.roomy.notify()
            return taken

    def await_some(self, most: int, closed: threading.Event) -> list[Received]:
        """Block until events are waiting, then take them; return an empty list once `closed` is set."""
        with self.changed:
            while not closed.is_set():
                if taken := self.take(most):
                    return taken
                self.changed.wait(1.0)
            return []

    def _take_along(self, key: str, taken: list[Received], most: int) -> None:
        """Take followers of the key into the same batch: one call keeps their order."""
        followers, before = self._followers[key], len(taken)
        while followers and len(taken) < most:
            taken.append(followers.popleft())
        self._open[key] = 1 + len(taken) - before

    def abandon(self, begun_before: float) -> list[Received]:
        """Mark the events whose calls began before `begun_before` as abandoned, and return them."""
        with self.changed:
            late = [event for event in self.running if event.started < begun_before]
            for event in late:
                event.abandoned = True
            return late

    def finish(self, event: Received, outcome: Outcome | None) -> None:
        """Record that an executor has finished an event.

        Without an outcome, the event is settled already or its handler will decide later.
        """
        with self.changed:
            if event.finished:
                return
            self.running.discard(event)
            event.running = False
            if outcome is not None or event.settled:
                event.finished = True
                self._record(event, outcome)
                if event.ordering_key is not None:
                    self._move_up(event.ordering_key, outcome)
            if not self.running or event.ordering_key is not None:
                self.changed.notify_all()

    def _record(self, event: Received, outcome: Outcome | None) -> None:
        held = self._held.get(event.lease.lease_id)
        if held is None:
            return
        if outcome is not None:
            if not held.outcomes:
                held.since = monotonic()
            held.outcomes[event.seq] = outcome
        held.undecided -= 1
        if not held.undecided and held.outcomes:
            self.done()
        self._close_if_empty(held)

    def _move_up(self, key: str, outcome: Outcome | None) -> None:
        """Make the next event of the key available, or release all its followers if `outcome` blocks the key."""
        self._open[key] = self._open.get(key, 1) - 1
        followers = self._followers.get(key, deque())
        blocks = isinstance(outcome, Retry) and self._order_policy is OrderPolicy.BLOCK
        if blocks or isinstance(outcome, Released):
            self.queued -= len(followers)
            for event in followers:
                self._record(event, RELEASED)
            followers.clear()
        if self._open[key] > 0:
            return
        del self._open[key]
        if followers:
            self._waiting.append(followers.popleft())
        else:
            self._followers.pop(key, None)

    def _close_if_empty(self, held: HeldLease) -> None:
        if not held.undecided and not held.outcomes and not held.writing:
            self._held.pop(held.lease.lease_id, None)

    def await_quiet(self, until: float | None) -> bool:
        """Wait until no event is running or waiting; return False on time-out."""
        with self.changed:
            timeout = None if until is None else max(0.0, until - monotonic())
            return self.changed.wait_for(lambda: not self.running and not self.queued, timeout)

    def await_written(self, seconds: float) -> None:
        """Wait up to `seconds` until all outcomes are written, by any thread."""
        with self.changed:
            self.changed.wait_for(lambda: not self.unwritten, seconds)

    # -- outcomes to be written -------------------------------------------------------------------------------

    def due(self, flush_interval: float, *, all_of_it: bool = False) -> list[tuple[Lease, dict[int, Outcome]]]:
        """Return the outcomes to write: of fully decided leases, and outcomes older than `flush_interval`.

        The caller must report each returned lease with `written` or `put_back`.
        """
        now = monotonic()
        with self.changed:
            ripe = [
                held
                for held in self._held.values()
                if held.outcomes
                and not held.writing
                and (all_of_it or not held.undecided or now - held.since >= flush_interval)
            ]
            taken = [(held.lease, held.outcomes) for held in ripe]
            for held in ripe:
                held.outcomes, held.writing = {}, True
            return taken

    def written(self, lease: Lease) -> None:
        """Record that the store has the outcomes that `due` returned for a lease."""
        with self.changed:
            held = self._held.get(lease.lease_id)
            if held is not None:
                held.writing = False
                self._close_if_empty(held)
            self.changed.notify_all()

    def put_back(self, lease: Lease, outcomes: dict[int, Outcome]) -> None:
        """Make outcomes due again after a failed settle."""
        with self.changed:
            held = self._held.get(lease.lease_id)
            if held is not None:
                held.outcomes = {**outcomes, **held.outcomes}
                held.writing = False
                held.since = monotonic()

    @property
    def unwritten(self) -> int:
        with self.changed:
            return sum(len(held.outcomes) + held.writing for held in self._held.values())

    def still_needed(self, lease_ids: Iterable[LeaseId]) -> list[LeaseId]:
        """Return the leases that still have undecided events or outcomes to be returned by `due`.

        The store closes a lease with its last outcomes, so a lease of which only those are being written is left out.
        """
        with self.changed:
            known = ((lease_id, self._held.get(lease_id)) for lease_id in lease_ids)
            return [lease_id for lease_id, held in known if held and (held.undecided or held.outcomes)]

    # -- drop held events -------------------------------------------------------------------------------------

    def drain(self) -> int:
        """Release all events that wait for an executor; their handlers were never called. Return their number."""
        with self.changed:
            idle = [*self._waiting, *(event for queue in self._followers.values() for event in queue)]
            self._forget(lambda _: True)
            for event in idle:
                self._record(event, RELEASED)
            return len(idle)

    def lose(self, lost: Iterable[LeaseId]) -> int:
        """Drop the waiting events of lost leases, and return their number. Mark the running ones as lost."""
        gone = set(lost)
        with self.changed:
            for lease_id in gone:
                self._held.pop(lease_id, None)
            for event in self.running:
                event.lost = event.lost or event.lease.lease_id in gone
            before = self.queued
            self._forget(lambda event: event.lease.lease_id in gone)
            self.changed.notify_all()
            return before - self.queued

    def _forget(self, chosen: Callable[[Received], bool]) -> None:
        """Remove the chosen events from the waiting ones. A key with no waiting or running event has no followers."""
        self._waiting = deque(event for event in self._waiting if not chosen(event))
        waiting = {event.ordering_key for event in self._waiting}
        for key, queue in list(self._followers.items()):
            self._followers[key] = deque(event for event in queue if not chosen(event))
            if key not in waiting and key not in self._open:
                del self._followers[key]
        self.queued = len(self._waiting) + sum(map(len, self._followers.values()))
