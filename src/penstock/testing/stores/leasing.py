"""Conformance tests for stores: leases, their holders and expiry, and the fencing of stale tokens."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from penstock.model import lifecycle
from penstock.model.lease import Claim, Held, Lease, LeaseId, Settlement, Token
from penstock.model.lifecycle import State, expire
from penstock.model.outcome import PUBLISHED, Outcome, Retry
from penstock.store.api import Store, StoreOptions
from penstock.testing.stores.scenario import (
    LEASE_SECONDS,
    STARTED_AT,
    ManualClock,
    OpenStore,
    StoreScenario,
    all_to,
    claim,
    emit,
    event,
    history,
    ids,
    life,
    lives,
    publish,
    record,
    records,
    seqs,
    states,
)

Ending = Callable[[Store, Claim, ManualClock], object]
ENDINGS: dict[str, Ending] = {
    "settled": lambda store, held, _: publish(store, held),
    "released": lambda store, held, _: store.release(held.lease),
    "reaped": lambda store, _, clock: (clock.expire_leases(), store.reap()),
    "retried": lambda store, held, _: store.settle(held.lease, all_to(Retry("no", 0), held)),
}


def again(store: Store, held: Claim, claimant: str = "claimant", limit: int = 100) -> Claim:
    """Repeat a claim."""
    repeated = claim(store, limit, claimant=claimant, lease_id=held.lease.lease_id)
    assert repeated.repeated
    return repeated


def loses(store: Store, stale: Lease, held: Claim) -> None:
    """Check that a stale token changes nothing, and that a settle reports its events as lost or already settled."""
    before = records(store)
    for outcome in (PUBLISHED, Retry("late", 0)):
        settlement = store.settle(stale, all_to(outcome, held))
        assert settlement == Settlement(already_settled=settlement.already_settled, lost=settlement.lost)
        assert settlement.already_settled | settlement.lost == set(seqs(held))
    assert store.extend([stale]) == []
    assert store.release(stale) == 0
    assert records(store) == before


class FencingLeases(StoreScenario):
    def test_older_token_is_fenced(self, store: Store) -> None:
        emit(store, 3)
        first = claim(store)
        second = again(store, first)
        assert second.lease.lease_id == first.lease.lease_id
        assert second.lease.token != first.lease.token
        loses(store, first.lease, first)
        publish(store, second)

    def test_older_token_cannot_extend_lease(self, store: Store, clock: ManualClock) -> None:
        emit(store)
        first = claim(store)
        again(store, first)
        clock.advance(LEASE_SECONDS - 1)
        assert store.extend([first.lease]) == []
        clock.advance(2)
        assert store.reap() == 1

    def test_older_token_sees_events_as_already_settled(self, store: Store) -> None:
        emit(store, 2)
        first = claim(store)
        publish(store, again(store, first))
        settlement = store.settle(first.lease, all_to(PUBLISHED, first))
        assert settlement == Settlement(already_settled=frozenset(seqs(first)))

    @pytest.mark.parametrize("ending", ENDINGS)
    def test_token_of_ended_lease_is_fenced(self, store: Store, clock: ManualClock, ending: str) -> None:
        emit(store, 3)
        held = claim(store)
        ENDINGS[ending](store, held, clock)
        loses(store, held.lease, held)

    def test_reaped_event_is_lost_to_old_claimant(self, store: Store, clock: ManualClock) -> None:
        (emitted,) = emit(store)
        slept = claim(store, claimant="slept")
        clock.expire_leases()
        assert store.reap() == 1
        awake = claim(store, claimant="awake")
        assert store.settle(slept.lease, all_to(PUBLISHED, slept)) == Settlement(lost=frozenset(seqs(slept)))
        assert (record(store, emitted).state, record(store, emitted).claimed_by) == (State.CLAIMED, "awake")
        publish(store, awake)

    def test_token_cannot_settle_events_of_another_lease(self, store: Store) -> None:
        emit(store, 4)
        mine, theirs = claim(store, 2), claim(store, 2)
        settlement = store.settle(mine.lease, all_to(PUBLISHED, mine) | all_to(Retry("no"), theirs))
        assert settlement == Settlement(published=frozenset(seqs(mine)), lost=frozenset(seqs(theirs)))
        assert states(store) == {State.CLAIMED: 2, State.PUBLISHED: 2}
        crossed = replace(mine.lease, lease_id=theirs.lease.lease_id)
        loses(store, crossed, theirs)
        publish(store, theirs)

    def test_unknown_lease_is_fenced(self, store: Store) -> None:
        emit(store)
        held = claim(store)
        loses(store, Lease(LeaseId(uuid4()), Token(uuid4()), "outbox"), held)


class Repeating(StoreScenario):
    def test_repeated_claim_returns_unsettled_events(self, store: Store) -> None:
        emit(store, 5)
        first = claim(store, 3)
        before = records(store)
        store.settle(first.lease, {seqs(first)[0]: PUBLISHED})
        second = again(store, first)
        assert list(second.events) == list(first.events[1:])
        assert records(store)[1:] == before[1:]
        assert history(store, ids(first)[1]) == []

    def test_repeated_claim_never_adds_events(self, store: Store) -> None:
        emit(store, 2, ordering_key="k" if store.capabilities.ordering else None)
        emit(store, 3)
        first = claim(store, 2)
        emit(store, 3)
        for claimant in ("claimant", "another", "a third"):
            assert set(seqs(again(store, first, claimant))) <= set(seqs(first))

    def test_repeat_by_another_claimant_counts_lost_attempt(self, store: Store) -> None:
        emit(store, 3)
        first = claim(store, claimant="first")
        before = lives(store)
        second = again(store, first, "second")
        assert sorted(ids(second)) == sorted(ids(first))
        expected = {one: lifecycle.claim(expire(each, error="attempt lost")) for one, each in before.items()}
        assert lives(store) == expected
        assert {one.event_id: (one.attempts, one.deliveries, one.suspect) for one in second.events} == dict.fromkeys(
            expected, (1, 2, 1)
        )
        assert {one.claimed_by for one in records(store)} == {"second"}
        assert [history(store, one) for one in ids(first)] == [["lost"]] * 3

    def test_only_change_of_claimant_counts_attempt(self, store: Store) -> None:
        (emitted,) = emit(store)
        held = claim(store, claimant="a")
        for claimant, attempts in (("a", 0), ("b", 1), ("b", 1), ("a", 2)):
            again(store, held, claimant)
            assert record(store, emitted).attempts == attempts

    def test_repeat_of_lost_claim_shrinks_claim(self, store: Store) -> None:
        emit(store, 50)
        held = claim(store, 50)
        assert [len(again(store, held, f"claimant-{number}", limit=50)) for number in range(3)] == [5, 1, 1]
        assert states(store) == {State.PENDING: 49, State.CLAIMED: 1}
        assert sorted(one.attempts for one in records(store)) == [1] * 45 + [2] * 4 + [3]

    def test_events_freed_by_repeat_can_be_claimed_at_once(self, store: Store, clock: ManualClock) -> None:
        """A process whose last claim found no event of that age also finds the released events."""
        emit(store, 20)
        held = claim(store, 20)
        clock.advance(30)
        assert not claim(store)
        assert len(again(store, held, "another", limit=20)) == 2
        assert len(claim(store, 1)) == 1

    @pytest.mark.parametrize("own_limit", [None, 2])
    def test_repeat_makes_exhausted_event_dead(self, store: Store, own_limit: int | None) -> None:
        """The limit is the one of the original lease, unless the event has its own."""
        (emitted,) = emit(store, max_attempts=own_limit)
        held = claim(store, claimant="0", max_attempts=2 if own_limit is None else 9)
        assert len(claim(store, claimant="1", lease_id=held.lease.lease_id, max_attempts=9)) == 1
        before = record(store, emitted)
        assert not claim(store, claimant="2", lease_id=held.lease.lease_id, max_attempts=9)
        assert life(record(store, emitted)) == expire(life(before), max_attempts=2, error="attempt lost")
        assert record(store, emitted).state is State.DEAD
        assert history(store, emitted) == ["lost", "died"]

    def test_dead_events_do_not_count_in_repeated_claim(self, store: Store) -> None:
        """An event that dies in a repeat no longer counts in the size of the claim."""
        store.append([event(max_attempts=2 if number < 5 else None) for number in range(10)])
        held = claim(store, 10, claimant="0")
        assert len(again(store, held, "1", limit=100)) == 10
        assert len(again(store, held, "2", limit=500)) == 5
        assert states(store) == {State.CLAIMED: 5, State.DEAD: 5}

    def test_repeated_claim_extends_and_never_shortens_lease(self, store: Store, clock: ManualClock) -> None:
        emit(store)
        held = claim(store)
        expiry = records(store)[0].lease_expires_at
        store.claim("outbox", limit=1, claimant="claimant", lease_seconds=1, lease_id=held.lease.lease_id)
        assert records(store)[0].lease_expires_at == expiry
        clock.advance(LEASE_SECONDS / 2)
        again(store, held)
        clock.advance(LEASE_SECONDS - 1)
        assert store.reap() == 0
        clock.advance(2)
        assert store.reap() == 1

    @pytest.mark.parametrize("ending", ENDINGS)
    def test_closed_lease_never_yields_events(self, store: Store, clock: ManualClock, ending: str) -> None:
        emit(store, 2)
        held = claim(store)
        ENDINGS[ending](store, held, clock)
        emit(store, 2)
        for _ in range(3):
            clock.advance(3_600)
            assert len(again(store, held)) == len(again(store, held, "another")) == 0
        assert State.CLAIMED not in states(store)

    def test_empty_claim_closes_lease(self, store: Store) -> None:
        nothing = claim(store)
        emit(store)
        assert not again(store, nothing)
        assert not again(store, nothing, "another")
        assert states(store) == {State.PENDING: 1}


class Heartbeats(StoreScenario):
    def test_extended_lease_is_not_reaped(self, store: Store, clock: ManualClock) -> None:
        emit(store)
        held = claim(store)
        for _ in range(5):
            clock.advance(LEASE_SECONDS - 1)
            assert store.extend([held.lease]) == [held.lease]
            assert store.reap() == 0
        publish(store, held)

    def test_extend_returns_only_open_leases(self, store: Store, clock: ManualClock) -> None:
        emit(store, 5)
        kept, settled, reaped, released, repeated = (claim(store, 1) for _ in range(5))
        publish(store, settled)
        store.release(released.lease)
        newer = again(store, repeated)
        stranger = Lease(LeaseId(uuid4()), Token(uuid4()), "outbox")
        leases = [one.lease for one in (kept, settled, released, repeated, newer)]
        assert store.extend([*leases, stranger]) == [kept.lease, newer.lease]
        clock.advance(LEASE_SECONDS - 1)
        assert store.extend([kept.lease, newer.lease]) == [kept.lease, newer.lease]
        clock.advance(2)
        assert store.reap() == 1
        assert store.extend([reaped.lease, kept.lease]) == [kept.lease]

    def test_leases_of_different_lengths_are_extended_together(self, store: Store, clock: ManualClock) -> None:
        emit(store, 2)
        longer, shorter = claim(store, 1), claim(store, 1)
        clock.advance(50)
        leases = [replace(longer.lease, lease_seconds=100), replace(shorter.lease, lease_seconds=20.5)]
        assert store.extend(leases) == leases
        expiries = [one.lease_expires_at for one in records(store)]
        assert expiries == [clock.now + timedelta(seconds=100), clock.now + timedelta(seconds=20.5)]

    def test_extend_without_leases_returns_nothing(self, store: Store) -> None:
        assert store.extend([]) == []

    def test_expired_lease_can_be_extended_until_reaped(self, store: Store, clock: ManualClock) -> None:
        emit(store)
        held = claim(store)
        clock.expire_leases()
        assert store.extend([held.lease]) == [held.lease]
        assert store.reap() == 0
        clock.expire_leases()
        assert store.reap() == 1
        assert store.extend([held.lease]) == []

    def test_heartbeat_never_exceeds_maximum_lease_age(self, open_store: OpenStore, clock: ManualClock) -> None:
        store = open_store(StoreOptions(max_lease_age_seconds=100), clock)
        emit(store)
        held = claim(store)
        clock.advance(59)
        assert store.extend([held.lease]) == [held.lease]
        assert records(store)[0].lease_expires_at == STARTED_AT + timedelta(seconds=100)
        clock.advance(40)
        assert store.extend([held.lease]) == [held.lease]
        clock.advance(1)
        assert store.extend([held.lease]) == []
        clock.advance(0.001)
        assert store.reap() == 1
        store.close()

    def test_heartbeat_never_shortens_lease(self, store: Store, clock: ManualClock) -> None:
        emit(store)
        held = claim(store)
        assert store.extend([replace(held.lease, lease_seconds=1)])
        clock.advance(LEASE_SECONDS - 1)
        assert store.reap() == 0


class HeldLeases(StoreScenario):
    """Reading leases of other processes: open leases, their claimants and tokens."""

    def test_held_shows_token_and_claimant_of_open_lease(self, store: Store) -> None:
        emit(store, 2)
        mine, theirs = claim(store, 1, claimant="me"), claim(store, 1, claimant="they")
        assert store.held([theirs.lease.lease_id, mine.lease.lease_id]) == [
            Held(theirs.lease, "they"),
            Held(mine.lease, "me"),
        ]
        assert store.held([mine.lease.lease_id] * 2) == [Held(mine.lease, "me")]

    def test_held_shows_newest_token_and_claimant_after_repeat(self, store: Store) -> None:
        emit(store, 2)
        first = claim(store, claimant="older")
        second = again(store, first, "newer")
        assert store.held([first.lease.lease_id]) == [Held(second.lease, "newer")]

    @pytest.mark.parametrize("ending", ENDINGS)
    def test_held_omits_closed_lease(self, store: Store, clock: ManualClock, ending: str) -> None:
        emit(store, 2)
        held = claim(store)
        ENDINGS[ending](store, held, clock)
        assert store.held([held.lease.lease_id]) == []

    def test_held_omits_unknown_and_empty_leases(self, store: Store) -> None:
        nothing = claim(store)
        assert store.held([nothing.lease.lease_id, LeaseId(uuid4())]) == []
        assert store.held([]) == []

    def test_held_shows_expired_lease_until_reaped(self, store: Store, clock: ManualClock) -> None:
        emit(store)
        held = claim(store)
        clock.expire_leases()
        assert store.held([held.lease.lease_id]) == [Held(held.lease, "claimant")]
        store.reap()
        assert store.held([held.lease.lease_id]) == []

    def test_held_changes_nothing(self, store: Store) -> None:
        emit(store, 3)
        held = claim(store)
        before = records(store)
        (seen,) = store.held([held.lease.lease_id])
        assert records(store) == before
        assert store.settle(seen.lease, all_to(PUBLISHED, held)).published == set(seqs(held))


class Releasing(StoreScenario):
    def test_release_counts_no_attempt_or_delivery(self, store: Store) -> None:
        emitted = emit(store, 2)
        before = records(store)
        held = claim(store)
        assert store.release(held.lease) == 2
        assert records(store) == before
        assert [history(store, one) for one in emitted] == [["released"]] * 2
        assert [one.deliveries for one in claim(store).events] == [1, 1]

    def test_release_affects_only_unsettled_events(self, store: Store) -> None:
        emit(store, 3)
        held = claim(store)
        outcomes: dict[int, Outcome] = {seqs(held)[0]: PUBLISHED, seqs(held)[1]: Retry("no", 0)}
        store.settle(held.lease, outcomes)
        assert store.release(held.lease) == 1
        assert store.release(held.lease) == 0
        assert states(store) == {State.PENDING: 2, State.PUBLISHED: 1}

    def test_release_keeps_earlier_counts(self, store: Store, clock: ManualClock) -> None:
        (emitted,) = emit(store)
        claim(store)
        clock.expire_leases()
        store.reap()
        before = record(store, emitted)
        assert store.release(claim(store).lease) == 1
        assert record(store, emitted) == before
        assert (before.attempts, before.deliveries, before.suspect) == (1, 1, 1)
