"""Fixtures and helpers of the conformance tests for stores.

The clock stands still until a test advances it. Helpers have defaults, so that a test passes only the arguments that
matter to it.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Protocol, TypeVar

import pytest

from penstock.model.event import DEFAULT_QUEUE, Event, EventId
from penstock.model.lease import Claim, LeaseId
from penstock.model.lifecycle import DEFAULT_MAX_ATTEMPTS, Life, State
from penstock.model.outcome import PUBLISHED, Outcome
from penstock.model.records import Record
from penstock.model.selection import Selection
from penstock.model.times import Clock
from penstock.store.api import Store, StoreOptions

T = TypeVar("T")

STARTED_AT = datetime(2026, 1, 1, 12, tzinfo=UTC)
LEASE_SECONDS = 60.0
EVERYTHING = Selection(everything=True)


class ManualClock:
    """Time of a test. Only `advance` moves it, so that no test has to wait."""

    def __init__(self, start: datetime = STARTED_AT) -> None:
        self.now = start

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now

    def expire_leases(self) -> datetime:
        """Advance to just after the expiry of every lease that `claim` took."""
        return self.advance(LEASE_SECONDS + 1)


def needs(*capabilities: str) -> Callable[[T], T]:
    """Mark a test, or all tests of a class, as a test of these capabilities."""

    def marked(target: T) -> T:
        tests = vars(target).items() if isinstance(target, type) else [("test", target)]
        for name, test in tests:
            if name.startswith("test"):
                setattr(test, "needs", (*getattr(test, "needs", ()), *capabilities))  # noqa: B010
        return target

    return marked


class OpenStore(Protocol):
    """Opens a store on the test's database. May be called several times."""

    def __call__(self, options: StoreOptions | None = None, clock: Clock | None = None) -> Store: ...


class StoreScenario:
    """Fixtures of a suite. Override `open_store`: see `penstock.testing.stores`."""

    lacks: ClassVar[Collection[str]] = ()
    """Capabilities that the store does not declare. Their tests are not collected."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in dir(cls):
            if name.startswith("test") and set(cls.lacks).intersection(getattr(getattr(cls, name), "needs", ())):
                setattr(cls, name, None)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run a test that takes `ordering_key` without a key and, if the store has ordering, also with a key."""
        if "ordering_key" in metafunc.fixturenames:
            metafunc.parametrize("ordering_key", [None] if "ordering" in self.lacks else [None, "k"])

    @pytest.fixture
    def open_store(self) -> OpenStore:
        raise NotImplementedError("override the fixture `open_store`")

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def store(self, open_store: OpenStore, clock: ManualClock) -> Iterator[Store]:
        store = open_store(clock=clock)
        yield store
        store.close()


def event(**fields: Any) -> Event:
    return Event(**{"event_type": "orders.created", **fields})


def emit(store: Store, count: int = 1, **fields: Any) -> list[EventId]:
    """Emit `count` equal events in one batch."""
    return store.append([event(**fields) for _ in range(count)])


def claim(
    store: Store,
    limit: int = 100,
    *,
    queue: str = DEFAULT_QUEUE,
    claimant: str = "claimant",
    lease_id: LeaseId | None = None,
    types: Sequence[str] | None = None,
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
) -> Claim:
    return store.claim(
        queue,
        limit=limit,
        claimant=claimant,
        lease_seconds=LEASE_SECONDS,
        lease_id=lease_id,
        types=types,
        max_attempts=max_attempts,
    )


def ids(claimed: Claim) -> list[EventId]:
    return [event.event_id for event in claimed.events]


def seqs(claimed: Claim) -> list[int]:
    return [event.seq for event in claimed.events]


def all_to(outcome: Outcome, claimed: Claim) -> dict[int, Outcome]:
    """Return the same outcome for every event of a claim."""
    return dict.fromkeys(seqs(claimed), outcome)


def publish(store: Store, claimed: Claim) -> None:
    """Settle a whole claim as published."""
    assert store.settle(claimed.lease, all_to(PUBLISHED, claimed)).published == set(seqs(claimed))


def settle(store: Store, outcome: Outcome, count: int = 1, **fields: Any) -> list[EventId]:
    """Emit, claim and settle events at once, in an otherwise empty queue."""
    emitted = emit(store, count, **fields)
    claimed = claim(store, count, queue=fields.get("queue", DEFAULT_QUEUE))
    assert sorted(ids(claimed)) == sorted(emitted)
    store.settle(claimed.lease, all_to(outcome, claimed))
    return emitted


def record(store: Store, event_id: EventId) -> Record:
    """Return the record of the event with this id."""
    (found,) = store.find(Selection(ids=frozenset({event_id}))).records
    return found


def records(store: Store, selection: Selection = EVERYTHING) -> list[Record]:
    """Return all records of a selection, oldest first."""
    page = store.find(selection, limit=10_000)
    assert page.after is None
    return list(reversed(page.records))


def states(store: Store) -> dict[State, int]:
    """Return the number of events in each state, without states that have none."""
    found = [one.state for one in records(store)]
    return {state: found.count(state) for state in State if state in found}


def life(of: Record) -> Life:
    """Return the mutable fields of an event, as the model represents them."""
    return Life(
        state=of.state,
        attempts=of.attempts,
        deliveries=of.deliveries,
        replays=of.replays,
        suspect=of.suspect,
        max_attempts=of.max_attempts,
        last_error=of.last_error,
    )


def lives(store: Store) -> dict[EventId, Life]:
    return {one.event_id: life(one) for one in records(store)}


def history(store: Store, event_id: EventId) -> list[str]:
    """Return the names of the event's history entries, oldest first."""
    return [entry.what for entry in store.history(event_id)]
