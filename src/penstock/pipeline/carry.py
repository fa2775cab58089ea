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
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from penstock.config.routes import Routes
from penstock.model.errors import NotInitialised, PenstockError, StoreConflict, StoreError, StoreUnavailable
from penstock.model.lease import Claim, Lease, Settlement
from penstock.model.lifecycle import State
from penstock.model.outcome import Outcome
from penstock.model.selection import Selection
from penstock.pipeline.sender import Dispatch, Sender
from penstock.pipeline.slices import Slice
from penstock.store.api import Store, StoreOptions
from penstock.store.registry import open_store

MIN_IDLE_SECONDS = 0.002
MAX_IDLE_SECONDS = 0.05
IDLE_GROWTH = 1.5
MAX_BACKOFF_SECONDS = 2.0
# How long a relay that is to stop goes on trying to settle what it published.
LAST_SETTLE_SECONDS = 3.0
# A relay that drains gives up after this many errors of the store in a row, other than outages and conflicts.
MAX_REFUSALS = 5
MAX_ERRANDS = 16
MAX_TROUBLES = 5
# Python's collector looks after every 700 new objects whether some refer to each other in circles. A claim makes
# thousands that don't, and the looking was a third of a worker's time.
COLLECT_AFTER = 50_000
STEP_FAILED = "step failed: "

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """What a relay's tasks are to do: small, frozen, and all that travels to the executors."""

    store: str
    queue: str
    batch: int
    lease_seconds: float
    dispatch: Dispatch
    routes: Routes | None = None
    """For a router, which publishes nothing: where its events go on to."""
    until: datetime | None = None
    """For a relay that drains: it ends with the events emitted before this moment."""


@dataclass(slots=True)
class Tally:
    """What came of a turn."""

    claimed: int = 0
    published: int = 0
    discarded: int = 0
    """Settled as published without being sent, because the step dropped them."""
    retried: int = 0
    dead: int = 0
    released: int = 0
    lost: int = 0
    routed: int = 0
    drained: bool = False
    troubles: list[str] = field(default_factory=list)
    deaths: list[str] = field(default_factory=list)

    def count(self, settlement: Settlement, discarded: Set[int] = frozenset()) -> None:
        self.published += len(settlement.published - discarded)
        self.discarded += len(settlement.published & discarded)
        self.retried += len(settlement.retried)
        self.dead += len(settlement.dead)
        self.released += len(settlement.released)
        self.lost += len(settlement.lost)

    def trouble(self, error: Exception | str) -> None:
        _note(self.troubles, str(error) or type(error).__name__)

    def explain(self, settlement: Settlement, outcomes: Mapping[int, Outcome]) -> None:
        """Keep an example of why events failed, for the log."""
        if settlement.retried:
            error = _first_error(settlement.retried, outcomes)
            self.trouble(error if error.startswith(STEP_FAILED) else f"publishing failed: {error}")
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


@dataclass(frozen=True, slots=True)
class Hands:
    """What a worker process keeps open for an errand."""

    store: Store
    sender: Sender
    heart: Heart
    claimant: str

    def let_go(self) -> None:
        self.heart.stop()
        self.sender.close()
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
    refusals = 0
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
            backoff, refusals = MIN_IDLE_SECONDS, 0
        except StoreError as error:
            refusals = 0 if isinstance(error, StoreUnavailable | StoreConflict) else refusals + 1
            if isinstance(error, NotInitialised) or (errand.until is not None and refusals == MAX_REFUSALS):
                raise
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
        store = open_store(errand.store, StoreOptions(order_policy=errand.dispatch.order_policy))
        heart = Heart(store, errand.lease_seconds / 3)
        claimant = f"{socket.gethostname()}:{os.getpid()}"
        _hands[name] = Hands(store, Sender(errand.dispatch), heart, claimant)
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
        max_attempts=errand.dispatch.retry.max_attempts,
    )


def _publish(hands: Hands, errand: Errand, claim: Claim, turn: Slice, tally: Tally) -> None:
    tally.claimed += len(claim)
    with hands.heart.beating(claim.lease):
        outcomes = hands.sender.send(claim.events, lambda: turn.stopped)
        settlement = insist(lambda: hands.store.settle(claim.lease, outcomes), errand, lambda: turn.stopped, tally)
    if settlement is None:
        return
    tally.count(settlement)
    tally.explain(settlement, outcomes)


def insist(verb: Callable[[], Result], errand: Errand, stopped: Callable[[], bool], tally: Tally) -> Result | None:
    """Call a verb of the store, through an outage for as long as a lease; return None if the outage lasts longer.

    A published event must not be published again because its settle was given up early. A settle that may have been
    committed is safe to repeat: the store answers "already settled".
    """
    began = time.monotonic()
    backoff = 0.05
    while True:
        try:
            return verb()
        except (StoreUnavailable, StoreConflict) as error:
            tally.trouble(error)
            patience = min(errand.lease_seconds, LAST_SETTLE_SECONDS) if stopped() else errand.lease_seconds
            if time.monotonic() - began > patience:
                return None
            time.sleep(backoff * (1 + random.random()))
            backoff = min(backoff * 2, 1.0)
