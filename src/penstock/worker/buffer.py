"""What a subscription holds: the leases it has claimed under, the events that wait for a hand, and the outcomes that
wait to be written. All of it behind one lock; nothing here talks to the store."""

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
class Holding:
    """One lease: how many of its events are undecided, and the outcomes that are not yet written."""

    lease: Lease
    undecided: int
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    since: float = 0.0
    """When the oldest of the outcomes came."""
    writing: bool = False


class Holdings:
    """Events come in by `add`, go to a hand by `take`, and end by `finish`; outcomes leave by `due` and `written`."""

    def __init__(self, order_policy: OrderPolicy) -> None:
        lock = threading.RLock()
        self.changed = threading.Condition(lock)
        self.roomy = threading.Condition(lock)
        """Told when a hand has taken something, so that there may be room for another claim."""
        self.running: set[Received] = set()
        self._order_policy = order_policy
        self._waiting: deque[Received] = deque()
        # Of an ordering key only the first event waits for a hand; the others stand in its line until it is done.
        self._lines: dict[str, deque[Received]] = {}
        self._open: dict[str, int] = {}
        """How many events of a key were handed out and are undecided: several only in a batch."""
        self._queued = 0
        self._held: dict[LeaseId, Holding] = {}
        self.done: Callable[[], object] = _nothing
        """Called when all of a lease is decided: its outcomes need not wait for others."""

    @property
    def queued(self) -> int:
        """How many events wait for a hand."""
        return self._queued

    @property
    def leases(self) -> list[Lease]:
        with self.changed:
            return [holding.lease for holding in self._held.values()]

    @property
    def undecided(self) -> int:
        with self.changed:
            return sum(holding.undecided for holding in self._held.values())

    def add(self, lease: Lease, events: Sequence[Received]) -> None:
        """Events that were just claimed, in their order."""
        with self.changed:
            self._held[lease.lease_id] = Holding(lease, len(events))
            for event in events:
                self._enqueue(event)
            self._queued += len(events)
            self.changed.notify(len(events))

    def _enqueue(self, event: Received) -> None:
        key = event.ordering_key
        if key is None:
            self._waiting.append(event)
        elif key in self._lines:
            self._lines[key].append(event)
        else:
            self._lines[key] = deque()
            self._waiting.append(event)

    def take(self, most: int = 1) -> list[Received]:
        """Up to `most` events for a hand; none if none waits."""
        with self.changed:
            return self._take(most)

    def await_some(self, most: int, closed: threading.Event) -> list[Received]:
        """The same, for a thread that waits; nothing once `closed` is set."""
        with self.changed:
            while not closed.is_set():
                taken = self._take(most)
                if taken:
                    return taken
                self.changed.wait(1.0)
            return []

    def _take(self, most: int) -> list[Received]:
        taken: list[Received] = []
        while self._waiting and len(taken) < most:
            event = self._waiting.popleft()
            taken.append(event)
            if event.ordering_key is not None:
                self._take_along(event.ordering_key, taken, most)
        if taken:
            for event in taken:
                event.begin()
            self._queued -= len(taken)
            self.running.update(taken)
            self.roomy.notify()
        return taken

    def _take_along(self, key: str, taken: list[Received], most: int) -> None:
        """Into the same batch goes what follows in the line: one hand keeps its order."""
        line, before = self._lines[key], len(taken)
        while line and len(taken) < most:
            taken.append(line.popleft())
        self._open[key] = 1 + len(taken) - before

    def abandon(self, begun_before: float) -> list[Received]:
        """Events whose handlers have run for too long: nobody waits for these any more."""
        with self.changed:
            late = [event for event in self.running if event.started < begun_before]
            for event in late:
                event.abandoned = True
            return late

    def finish(self, event: Received, outcome: Outcome | None) -> None:
        """A hand is done with an event. Without an outcome the store knows already, or is to learn it later."""
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
        holding = self._held.get(event.lease.lease_id)
        if holding is None:
            return
        if outcome is not None:
            if not holding.outcomes:
                holding.since = monotonic()
            holding.outcomes[event.seq] = outcome
        holding.undecided -= 1
        if not holding.undecided and holding.outcomes:
            self.done()
        self._close_if_empty(holding)

    def _move_up(self, key: str, outcome: Outcome | None) -> None:
        """The next of its key's line may go; behind an event that keeps its place, the line goes back."""
        self._open[key] = self._open.get(key, 1) - 1
        line = self._lines.get(key, deque())
        blocks = isinstance(outcome, Retry) and self._order_policy is OrderPolicy.BLOCK
        if blocks or isinstance(outcome, Released):
            self._queued -= len(line)
            for behind in line:
                self._record(behind, RELEASED)
            line.clear()
        if self._open[key] > 0:
            return
        del self._open[key]
        if line:
            self._waiting.append(line.popleft())
        else:
            self._lines.pop(key, None)

    def _close_if_empty(self, holding: Holding) -> None:
        if not holding.undecided and not holding.outcomes and not holding.writing:
            self._held.pop(holding.lease.lease_id, None)

    def await_quiet(self, until: float | None) -> bool:
        """Wait until no hand is at work and nothing waits for one; says whether it came to that."""
        with self.changed:
            timeout = None if until is None else max(0.0, until - monotonic())
            return self.changed.wait_for(lambda: not self.running and not self._queued, timeout)

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
                holding
                for holding in self._held.values()
                if holding.outcomes
                and not holding.writing
                and (all_of_it or not holding.undecided or now - holding.since >= flush_interval)
            ]
            taken = [(holding.lease, holding.outcomes) for holding in ripe]
            for holding in ripe:
                holding.outcomes, holding.writing = {}, True
            return taken

    def written(self, lease: Lease) -> None:
        """The store has the outcomes of a lease that `due` gave."""
        with self.changed:
            holding = self._held.get(lease.lease_id)
            if holding is not None:
                holding.writing = False
                self._close_if_empty(holding)
            self.changed.notify_all()

    def put_back(self, lease: Lease, outcomes: dict[int, Outcome]) -> None:
        """The store could not be told: they are due again."""
        with self.changed:
            holding = self._held.get(lease.lease_id)
            if holding is not None:
                holding.outcomes = {**outcomes, **holding.outcomes}
                holding.writing = False
                holding.since = monotonic()

    @property
    def unwritten(self) -> int:
        with self.changed:
            return sum(len(holding.outcomes) + holding.writing for holding in self._held.values())

    def still_needed(self, lease_ids: Iterable[LeaseId]) -> list[LeaseId]:
        """Those of these leases that are held for something yet, and not just because their last outcomes are being
        written: the store has closed these itself."""
        with self.changed:
            known = ((lease_id, self._held.get(lease_id)) for lease_id in lease_ids)
            return [lease_id for lease_id, held in known if held and (held.undecided or held.outcomes)]

    # -- giving up what is held -------------------------------------------------------------------------------

    def drain(self) -> int:
        """Give back all that waits for a hand: it was never started."""
        with self.changed:
            idle = [*self._waiting, *(event for line in self._lines.values() for event in line)]
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
            before = self._queued
            self._forget(lambda event: event.lease.lease_id in gone)
            self.changed.notify_all()
            return before - self._queued

    def _forget(self, chosen: Callable[[Received], bool]) -> None:
        """Take events out of the waiting and the lines. A key that is in nobody's hands any more has no line."""
        self._waiting = deque(event for event in self._waiting if not chosen(event))
        waiting = {event.ordering_key for event in self._waiting}
        for key, line in list(self._lines.items()):
            self._lines[key] = deque(event for event in line if not chosen(event))
            if key not in waiting and key not in self._open:
                del self._lines[key]
        self._queued = len(self._waiting) + sum(map(len, self._lines.values()))


def _nothing() -> None:
    """Nobody needs to know."""
