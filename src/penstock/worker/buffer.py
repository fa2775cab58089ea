"""What a subscription holds: the leases it has claimed under, the events that wait for an executor, and the outcomes
that wait to be written. All of it behind one lock; nothing here talks to the store."""

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
    """One lease: how many of its events are undecided, and the outcomes that are not yet written."""

    lease: Lease
    undecided: int
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    since: float = 0.0
    """When the oldest of the outcomes came."""
    writing: bool = False


class EventBuffer:
    """Events come in by `add`, go out by `take`, and end by `finish`; outcomes leave by `due` and `written`."""

    def __init__(self, order_policy: OrderPolicy) -> None:
        lock = threading.RLock()
        self.changed = threading.Condition(lock)
        self.roomy = threading.Condition(lock)
        """Notified when an executor has taken something, so that there may be room for another claim."""
        self.running: set[Received] = set()
        self._order_policy = order_policy
        self._waiting: deque[Received] = deque()
        # Of an ordering key only the first event waits for an executor; the others follow when it is done.
        self._followers: dict[str, deque[Received]] = {}
        self._open: dict[str, int] = {}
        """How many events of a key were handed out and are undecided: several only in a batch."""
        self.queued = 0
        """How many events wait for an executor."""
        self._held: dict[LeaseId, HeldLease] = {}
        self.done: Callable[[], object] = lambda: None
        """Called when all of a lease is decided: its outcomes need not wait for others."""

    @property
    def leases(self) -> list[Lease]:
        with self.changed:
            return [held.lease for held in self._held.values()]

    @property
    def undecided(self) -> int:
        with self.changed:
            return sum(held.undecided for held in self._held.values())

    def add(self, lease: Lease, events: Sequence[Received]) -> None:
        """Events that were just claimed, in their order."""
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
        """Up to `most` events for an executor; none if none waits."""
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
        """The same, for a thread that waits; nothing once `closed` is set."""
        with self.changed:
            while not closed.is_set():
                if taken := self.take(most):
                    return taken
                self.changed.wait(1.0)
            return []

    def _take_along(self, key: str, taken: list[Received], most: int) -> None:
        """Into the same batch goes what follows of its key: one call keeps the order."""
        followers, before = self._followers[key], len(taken)
        while followers and len(taken) < most:
            taken.append(followers.popleft())
        self._open[key] = 1 + len(taken) - before

    def abandon(self, begun_before: float) -> list[Received]:
        """Events whose handlers have run for too long: nobody waits for these any more."""
        with self.changed:
            late = [event for event in self.running if event.started < begun_before]
            for event in late:
                event.abandoned = True
            return late

    def finish(self, event: Received, outcome: Outcome | None) -> None:
        """An executor is done with an event. Without an outcome the store knows already, or is to learn it later."""
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
        """The next event of its key may go; behind one that keeps its place, all followers go back."""
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
        """Wait until no executor is at work and nothing waits for one; says whether it came to that."""
        with self.changed:
            timeout = None if until is None else max(0.0, until - monotonic())
            return self.changed.wait_for(lambda: not self.running and not self.queued, timeout)

    def await_written(self, seconds: float) -> None:
        """Wait for whoever is writing outcomes now."""
        with self.changed:
            self.changed.wait_for(lambda: not self.unwritten, seconds)

    # -- outcomes on their way to the store -------------------------------------------------------------------

    def due(self, flush_interval: float, *, all_of_it: bool = False) -> list[tuple[Lease, dict[int, Outcome]]]:
        """Outcomes to write: of leases that are done with, and those that have waited long enough."""
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
        """The store has the outcomes of a lease that `due` gave."""
        with self.changed:
            held = self._held.get(lease.lease_id)
            if held is not None:
                held.writing = False
                self._close_if_empty(held)
            self.changed.notify_all()

    def put_back(self, lease: Lease, outcomes: dict[int, Outcome]) -> None:
        """The store could not be told: they are due again."""
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
        """Those of these leases that are held for something yet, and not just because their last outcomes are being
        written: the store has closed these itself."""
        with self.changed:
            known = ((lease_id, self._held.get(lease_id)) for lease_id in lease_ids)
            return [lease_id for lease_id, held in known if held and (held.undecided or held.outcomes)]

    # -- giving up what is held -------------------------------------------------------------------------------

    def drain(self) -> int:
        """Give back all that waits for an executor: it was never started."""
        with self.changed:
            idle = [*self._waiting, *(event for queue in self._followers.values() for event in queue)]
            self._forget(lambda _: True)
            for event in idle:
                self._record(event, RELEASED)
            return len(idle)

    def lose(self, lost: Iterable[LeaseId]) -> int:
        """These leases are no longer ours: what waits is forgotten, what runs is told."""
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
        """Take events out of those that wait. A key of which none waits or runs has no followers."""
        self._waiting = deque(event for event in self._waiting if not chosen(event))
        waiting = {event.ordering_key for event in self._waiting}
        for key, queue in list(self._followers.items()):
            self._followers[key] = deque(event for event in queue if not chosen(event))
            if key not in waiting and key not in self._open:
                del self._followers[key]
        self.queued = len(self._waiting) + sum(map(len, self._followers.values()))
