"""Conformance tests for stores: reaping of expired leases and isolation of poison events.

Events of an expired lease become pending with an attempt counted. An event that kills every process must not take other
events to death.
"""

from collections.abc import Callable

import pytest

from penstock.model.event import EventId
from penstock.model.lease import Claim
from penstock.model.lifecycle import Life, State, expire
from penstock.model.selection import Selection
from penstock.store.api import Store
from penstock.testing.stores.scenario import (
    LEASE_SECONDS,
    ManualClock,
    StoreScenario,
    claim,
    emit,
    event,
    history,
    ids,
    life,
    lives,
    needs,
    publish,
    record,
    records,
    states,
)


class Reaping(StoreScenario):
    def test_only_expired_leases_are_reaped(self, store: Store, clock: ManualClock) -> None:
        emit(store, 2)
        claim(store, 1)
        clock.advance(LEASE_SECONDS / 2)
        later = claim(store, 1)
        assert store.reap() == 0
        clock.advance(LEASE_SECONDS / 2)
        assert store.reap() == 0
        clock.advance(0.001)
        assert store.reap() == 1
        assert states(store) == {State.PENDING: 1, State.CLAIMED: 1}
        publish(store, later)

    def test_reap_follows_lifecycle(self, store: Store, clock: ManualClock, ordering_key: str | None) -> None:
        emitted = emit(store, 3, ordering_key=ordering_key)
        available = records(store)[0].available_at
        for _ in range(2):
            claim(store, claimant="sleeper")
            before = lives(store)
            at = clock.expire_leases()
            assert store.reap() == sum(each.state is State.CLAIMED for each in before.values())
            assert lives(store) == {one: _expired(each) for one, each in before.items()}
            for found in records(store):
                assert (found.claimed_at, found.claimed_by, found.lease_expires_at) == (None, None, None)
                assert found.available_at == available
            entry = store.history(emitted[0])[-1]
            assert (entry.what, entry.at, entry.by, entry.detail) == ("reaped", at, "sleeper", "lease expired")
        assert store.ready("outbox")

    @pytest.mark.parametrize("own_limit", [None, 2])
    def test_reap_makes_exhausted_event_dead(self, store: Store, clock: ManualClock, own_limit: int | None) -> None:
        """The limit is the one of the lease, independent of the reaper, unless the event has its own."""
        (emitted,) = emit(store, max_attempts=own_limit)
        for state in (State.PENDING, State.DEAD):
            claim(store, max_attempts=2 if own_limit is None else 9)
            before = life(record(store, emitted))
            at = clock.expire_leases()
            assert store.reap() == 1
            found = record(store, emitted)
            assert life(found) == expire(before, max_attempts=2)
            assert (found.state, found.settled_at) == (state, at if state is State.DEAD else None)
            assert found.published_at is None
        assert history(store, emitted) == ["reaped", "died"]
        assert not claim(store)

    def test_reap_takes_whole_leases_up_to_limit(self, store: Store, clock: ManualClock) -> None:
        emit(store, 100)
        for _ in range(10):
            claim(store, 10)
            clock.advance(1)
        clock.expire_leases()
        assert [store.reap(limit=35) for _ in range(5)] == [30, 30, 30, 10, 0]
        assert states(store) == {State.PENDING: 100}

    def test_lease_larger_than_limit_is_reaped_whole(self, store: Store, clock: ManualClock) -> None:
        emit(store, 100)
        claim(store, 50)
        claim(store, 50)
        clock.expire_leases()
        assert [store.reap(limit=1) for _ in range(3)] == [50, 50, 0]

    def test_reap_leaves_settled_events_unchanged(self, store: Store, clock: ManualClock) -> None:
        emit(store, 2)
        publish(store, claim(store, 1))
        claim(store, 1)
        clock.expire_leases()
        assert store.reap() == 1
        assert states(store) == {State.PENDING: 1, State.PUBLISHED: 1}


def _expired(each: Life) -> Life:
    return expire(each) if each.state is State.CLAIMED else each


Crash = Callable[[Store, ManualClock, Claim], Claim | None]


def _reaped(store: Store, clock: ManualClock, held: Claim) -> Claim | None:
    """Simulate a dead claimant whose events are reaped."""
    clock.expire_leases()
    assert store.reap() == len(held)
    return None


def _repeated(store: Store, clock: ManualClock, held: Claim) -> Claim | None:
    """Simulate a dead claimant whose claim another attempt of the same task repeats."""
    claimant = f"attempt at {clock.advance(1)}"
    return claim(store, 1_000, claimant=claimant, lease_id=held.lease.lease_id, max_attempts=5)


CRASHES: dict[str, Crash] = {"reap": _reaped, "repeat": _repeated}
KEYS: dict[str, Callable[[int], str | None]] = {
    "plain": lambda _: None,
    "keyed": lambda number: f"k{number % 50}",
    "one key": lambda _: "k",
    "mixed": lambda number: f"k{number % 50}" if number % 2 else None,
}


class Poison(StoreScenario):
    """One event among many kills every process that handles it."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        super().pytest_generate_tests(metafunc)
        if "keys" in metafunc.fixturenames:
            metafunc.parametrize("keys", ["plain"] if "ordering" in self.lacks else KEYS)

    @pytest.mark.parametrize("crash", CRASHES)
    def test_only_poison_event_dies(self, store: Store, clock: ManualClock, keys: str, crash: str) -> None:
        emitted = store.append([event(ordering_key=KEYS[keys](number)) for number in range(1_200)])
        poison = emitted[501]
        for _ in range(200):
            if not self._handle(store, clock, poison, CRASHES[crash]):
                break
        assert [one.event_id for one in records(store, Selection(states=frozenset({State.DEAD})))] == [poison]
        stats = store.stats()
        assert (stats.total("published") + sum(stats.purged.values()), stats.total("dead")) == (1_199, 1)

    def _handle(self, store: Store, clock: ManualClock, poison: EventId, crash: Crash) -> bool:
        """Claim events; crash while the poison event is among them, else publish.

        Return whether the claim found any.
        """
        clock.advance(1)
        held: Claim | None = claim(store, 1_000, max_attempts=5)
        found = bool(held)
        while held and poison in ids(held):
            held = crash(store, clock, held)
        if held:
            publish(store, held)
        return found

    def test_claims_of_suspects_shrink_after_each_reap(self, store: Store, clock: ManualClock) -> None:
        emit(store, 1_000)
        company = []
        for _ in range(5):
            company.append(len(claim(store, 1_000)))
            clock.expire_leases()
            store.reap()
        assert company == [1_000, 100, 10, 1, 1]

    @needs("ordering")
    @pytest.mark.parametrize("innocent", [30, 200])
    @pytest.mark.parametrize("suspect_key", [None, "k"])
    def test_suspect_is_claimed_alone_beside_keyed_or_plain_events(
        self, store: Store, clock: ManualClock, suspect_key: str | None, innocent: int
    ) -> None:
        """Events with and without an ordering key share the limit of a claim."""
        suspect = emit(store, ordering_key=suspect_key)
        for _ in range(2):
            assert ids(claim(store, 100)) == suspect
            clock.expire_leases()
            assert store.reap() == 1
        emit(store, innocent, ordering_key="other" if suspect_key is None else None)
        found = []
        for _ in range(6):
            clock.advance(1)
            held = claim(store, 100)
            assert ids(held) == suspect or suspect[0] not in ids(held)
            found += ids(held)
            store.release(held.lease)
        assert suspect[0] in found
        assert len(set(found)) > 1
