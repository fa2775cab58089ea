"""One task's turn of the relay, on an executor: probe, claim, dispatch, settle, in a loop until its slice is over.

The store, the publisher and the heartbeats open once per worker process, lazily, and stay open from slice to slice.
The driver's side is `penstock.pipeline.relay`.
"""

import gc
import os
import random
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from penstock.errors import PenstockError, StoreConflict, StoreUnavailable
from penstock.event import Delivery
from penstock.lifecycle import RELEASED, OrderPolicy, Outcome, Released, Retry, State
from penstock.pipeline.slices import Slice
from penstock.publish import open_publisher
from penstock.publish.base import Publisher
from penstock.publish.dispatch import dispatch
from penstock.publish.routing import Routing
from penstock.retry import RetryPolicy
from penstock.routes import Routes
from penstock.store import Store, StoreOptions, open_store
from penstock.store.base import Claim, Lease, Selection, Settlement

MIN_IDLE_SECONDS = 0.002
MAX_IDLE_SECONDS = 0.05
IDLE_GROWTH = 1.5
MAX_BACKOFF_SECONDS = 2.0
# Between pieces of a claim a task looks whether it is to stop: a slow destination must not hold it for a whole batch.
FIRST_PIECE = 20
PIECE = 1_000
QUICK_SECONDS = 0.5
SLOW_SECONDS = 2.0
# How long a relay that is to stop goes on trying to settle what it published.
LAST_SETTLE_SECONDS = 3.0
MAX_ERRANDS = 16
MAX_TROUBLES = 5
# Python's collector looks after every 700 new objects whether some refer to each other in circles. A claim makes
# thousands that don't, and the looking was a third of a worker's time.
COLLECT_AFTER = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """What a relay's tasks are to do: small, frozen, and all that travels to the executors."""

    store: str
    destination: str
    queue: str
    batch: int
    lease_seconds: float
    retry: RetryPolicy
    routing: Routing
    order_policy: OrderPolicy = OrderPolicy.BLOCK
    max_deliveries: int | None = None
    routes: Routes | None = None
    """For a router, which publishes nothing: where its events go on to."""
    until: datetime | None = None
    """For a relay that drains: it ends with the events emitted before this moment."""


@dataclass(slots=True)
class Tally:
    """What came of a turn."""

    claimed: int = 0
    published: int = 0
    retried: int = 0
    dead: int = 0
    released: int = 0
    lost: int = 0
    routed: int = 0
    drained: bool = False
    troubles: list[str] = field(default_factory=list)
    deaths: list[str] = field(default_factory=list)

    def count(self, settlement: Settlement) -> None:
        self.published += len(settlement.published)
        self.retried += len(settlement.retried)
        self.dead += len(settlement.dead)
        self.released += len(settlement.released)
        self.lost += len(settlement.lost)

    def trouble(self, error: Exception | str) -> None:
        _note(self.troubles, str(error) or type(error).__name__)

    def explain(self, settlement: Settlement, outcomes: Mapping[int, Outcome]) -> None:
        """Keep an example of why events failed, for the log."""
        if settlement.retried:
            self.trouble(f"publishing failed: {_first_error(settlement.retried, outcomes)}")
        if settlement.dead:
            _note(self.deaths, _first_error(settlement.dead, outcomes))


def _note(lines: list[str], line: str) -> None:
    """Each line once, and of a thousand different ones only the first few."""
    if line not in lines and len(lines) < MAX_TROUBLES:
        lines.append(line)


def _first_error(failed: frozenset[int], outcomes: Mapping[int, Outcome]) -> str:
    return next(str(getattr(outcome, "error", "")) for seq, outcome in outcomes.items() if seq in failed)


class Heart:
    """Heartbeats for whatever leases this process holds, from one thread, so that slow publishing keeps its lease."""

    def __init__(self, store: Store, every_seconds: float) -> None:
        self._store = store
        self._every_seconds = every_seconds
        self._held: dict[Lease, float] = {}
        self._changed = threading.Lock()
        self._over = threading.Event()
        threading.Thread(target=self._beat, name="penstock-heart", daemon=True).start()

    @contextmanager
    def beating(self, lease: Lease) -> Iterator[None]:
        with self._changed:
            self._held[lease] = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                self._held.pop(lease, None)

    def stop(self) -> None:
        self._over.set()

    def _beat(self) -> None:
        while not self._over.wait(self._every_seconds / 2):
            due = time.monotonic() - self._every_seconds / 2
            with self._changed:
                old = [lease for lease, since in self._held.items() if since <= due]
            if old:
                self._extend(old)

    def _extend(self, leases: list[Lease]) -> None:
        try:
            self._store.extend(leases)
        except PenstockError:
            return  # the next beat tries again; if none comes through, settling says what was lost


class Pace:
    """How many events a publisher is handed in one call: few at first, and more while calls are quick."""

    def __init__(self) -> None:
        self.size = FIRST_PIECE
        self._rate = 0.0

    def learn(self, count: int, seconds: float) -> None:
        before, self._rate = self._rate, count / max(seconds, 1e-6)
        if seconds < QUICK_SECONDS:
            self.size = min(PIECE, max(self.size, count * 2))
        elif seconds > SLOW_SECONDS:
            # Half as many are no better where a call takes its time whatever is in it.
            helps = self._rate > before * 0.7
            self.size = max(1, self.size // 2) if helps else min(PIECE, self.size * 2)


@dataclass(frozen=True, slots=True)
class Hands:
    """What a worker process keeps open for an errand."""

    store: Store
    publisher: Publisher
    heart: Heart
    claimant: str
    pace: Pace = field(default_factory=Pace)

    def let_go(self) -> None:
        self.heart.stop()
        self.publisher.close()
        self.store.close()


_hands: OrderedDict[str, Hands] = OrderedDict()


Handle = Callable[[Hands, Errand, Claim, Slice, Tally], None]


def carry(errand: Errand, turn: Slice) -> Tally:
    """Publish events until the slice is over, or, for an errand with an end, until there are none left."""
    return take_turn(errand, turn, _publish)


def take_turn(errand: Errand, turn: Slice, handle: Handle) -> Tally:
    """Claim, and hand over what was claimed, in a loop."""
    hands = open_hands(errand)
    tally = Tally()
    idle, backoff, probe = MIN_IDLE_SECONDS, MIN_IDLE_SECONDS, False
    while not turn.over and not tally.drained:
        try:
            claim = _next_claim(hands, errand, probe)
            if claim:
                handle(hands, errand, claim, turn, tally)
                idle = MIN_IDLE_SECONDS
            elif errand.until is None:
                turn.pause(idle)
                idle = min(idle * IDLE_GROWTH, MAX_IDLE_SECONDS)
            tally.drained = errand.until is not None and not _any_left(hands.store, errand, errand.until, claim)
            probe = claim is None or len(claim) < errand.batch
            backoff = MIN_IDLE_SECONDS
        except (StoreUnavailable, StoreConflict) as error:
            tally.trouble(error)
            turn.pause(backoff * (1 + random.random()))
            backoff = min(backoff * 2, MAX_BACKOFF_SECONDS)
    return tally


def _next_claim(hands: Hands, errand: Errand, probe: bool) -> Claim | None:
    """A claim, after a cheap probe if the last one brought less than it might have."""
    claim = None if probe and not hands.store.ready(errand.queue) else _claim(hands, errand)
    if claim or errand.until is None:
        return claim
    hands.store.look_at_all()  # before it ends, a relay that drains leaves no corner out
    return _claim(hands, errand)


def _any_left(store: Store, errand: Errand, until: datetime, claim: Claim | None) -> bool:
    """Whether events from before `until` may be waiting, after a claim that brought what there was."""
    if not claim:
        return False
    if any(event.created_at <= until for event in claim.events):
        return True
    return len(claim) >= errand.batch and any_starving(store, errand.queue, until)


def any_starving(store: Store, queue: str, until: datetime) -> bool:
    """Whether older events wait behind a flood of newer ones with a higher priority."""
    waiting = Selection(states=frozenset({State.PENDING}), queue=queue, until=until)
    now, after = store.now(), None
    while True:
        page = store.find(waiting, after=after)
        if any(record.available_at <= now for record in page.records):
            return True
        if page.after is None:
            return False
        after = page.after


def open_hands(errand: Errand) -> Hands:
    """What this process keeps open for the errand; of errands long past it lets go."""
    name = repr(errand)
    if name not in _hands:
        gc.set_threshold(COLLECT_AFTER)
        store = open_store(errand.store, StoreOptions(order_policy=errand.order_policy))
        heart = Heart(store, errand.lease_seconds / 3)
        claimant = f"{socket.gethostname()}:{os.getpid()}"
        _hands[name] = Hands(store, open_publisher(errand.destination), heart, claimant)
        while len(_hands) > MAX_ERRANDS:
            _hands.popitem(last=False)[1].let_go()
    _hands.move_to_end(name)
    return _hands[name]


def _claim(hands: Hands, errand: Errand) -> Claim:
    return hands.store.claim(
        errand.queue,
        limit=errand.batch,
        claimant=hands.claimant,
        lease_seconds=errand.lease_seconds,
        max_attempts=errand.retry.max_attempts,
    )


def _publish(hands: Hands, errand: Errand, claim: Claim, turn: Slice, tally: Tally) -> None:
    tally.claimed += len(claim)
    with hands.heart.beating(claim.lease):
        outcomes = dispatch_pieces(hands, errand, claim.events, turn)
        settlement = insist(lambda: hands.store.settle(claim.lease, outcomes), errand, turn, tally)
    tally.count(settlement)
    tally.explain(settlement, outcomes)


def dispatch_pieces(hands: Hands, errand: Errand, events: Sequence[Delivery], turn: Slice) -> dict[int, Outcome]:
    """Publish piece by piece; what is not begun when the relay stops is given back."""
    outcomes: dict[int, Outcome] = {}
    blocked: set[str] = set()
    start = 0
    while start < len(events):
        size = hands.pace.size
        piece = [event for event in events[start : start + size] if event.ordering_key not in blocked]
        began = time.monotonic()
        sent = dispatch(
            hands.publisher,
            errand.routing,
            errand.retry,
            piece,
            now=datetime.now(UTC),
            roll=random.random,
            max_deliveries=errand.max_deliveries,
            order_policy=errand.order_policy,
            stopped=lambda: turn.stopped,
        )
        hands.pace.learn(len(piece), time.monotonic() - began)
        outcomes |= sent
        start += size
        if start < len(events):
            blocked |= blocked_keys(piece, sent, errand.order_policy)
            if turn.stopped:
                break
    return (
        {event.seq: outcomes.get(event.seq, RELEASED) for event in events} if len(outcomes) < len(events) else outcomes
    )


def blocked_keys(events: Sequence[Delivery], outcomes: dict[int, Outcome], policy: OrderPolicy) -> set[str]:
    """Keys whose later events have to wait: for what was released, and, unless it leaves the line, for what failed."""
    kinds = Released if policy is OrderPolicy.SKIP else Retry | Released
    return {
        event.ordering_key
        for event in events
        if event.ordering_key is not None and isinstance(outcomes.get(event.seq), kinds)
    }


def insist(settle: Callable[[], Settlement], errand: Errand, turn: Slice, tally: Tally) -> Settlement:
    """Settle, through an outage if need be: what was published must not be published again for want of patience.

    A settle that may have been committed is safe to repeat: the store answers "already settled".
    """
    began = time.monotonic()
    backoff = 0.05
    while True:
        try:
            return settle()
        except (StoreUnavailable, StoreConflict) as error:
            tally.trouble(error)
            patience = min(errand.lease_seconds, LAST_SETTLE_SECONDS) if turn.stopped else errand.lease_seconds
            if time.monotonic() - began > patience:
                return Settlement()
            time.sleep(backoff * (1 + random.random()))
            backoff = min(backoff * 2, 1.0)
