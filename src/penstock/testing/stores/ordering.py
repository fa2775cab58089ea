"""Conformance tests for stores: events of an ordering key are delivered in order, never under two leases at once."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from penstock.model.event import EventId
from penstock.model.lifecycle import OrderPolicy, State
from penstock.model.outcome import PUBLISHED, RELEASED, Dead, Outcome, Retry
from penstock.model.selection import Selection
from penstock.store.api import Store, StoreOptions
from penstock.testing.stores.scenario import (
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
    needs,
    publish,
    record,
    seqs,
    states,
)


@needs("ordering")
class Ordering(StoreScenario):
    def test_events_of_key_are_claimed_in_order(self, store: Store) -> None:
        emitted = store.append([event(ordering_key=f"k{number % 3}", priority=number % 5) for number in range(30)])
        by_id = {one: place % 3 for place, one in enumerate(emitted)}
        found = ids(claim(store))
        assert len(found) == 30
        for key in range(3):
            assert [one for one in found if by_id[one] == key] == emitted[key::3]

    def test_key_is_never_under_two_leases(self, store: Store) -> None:
        first, second, third = emit(store, 3, ordering_key="k")
        held = claim(store, 1)
        assert ids(held) == [first]
        assert not claim(store)
        emit(store, ordering_key="k")
        assert not claim(store)
        publish(store, held)
        assert ids(claim(store, 2)) == [second, third]
        assert not claim(store)

    def test_keys_are_separate_per_queue(self, store: Store) -> None:
        emit(store, ordering_key="k")
        other = emit(store, queue="other", ordering_key="k")
        assert len(claim(store)) == 1
        assert ids(claim(store, queue="other")) == other

    def test_claim_limit_applies_within_key(self, store: Store) -> None:
        emitted = emit(store, 25, ordering_key="k")
        for start in range(0, 25, 10):
            held = claim(store, 10)
            assert ids(held) == emitted[start : start + 10]
            publish(store, held)

    def test_key_stays_with_lease_until_all_events_are_settled(self, store: Store) -> None:
        emitted = emit(store, 4, ordering_key="k")
        held = claim(store, 3)
        for seq in seqs(held):
            assert not claim(store)
            store.settle(held.lease, {seq: PUBLISHED})
        assert ids(claim(store)) == emitted[3:]

    def test_delayed_event_blocks_later_events_of_key(self, store: Store, clock: ManualClock) -> None:
        first = emit(store, ordering_key="k")
        delayed = emit(store, ordering_key="k", delay_seconds=30)
        last = emit(store, ordering_key="k")
        held = claim(store)
        assert ids(held) == first
        publish(store, held)
        assert not claim(store)
        assert not store.ready("outbox")
        clock.advance(30)
        assert ids(claim(store)) == delayed + last

    def test_dead_event_unblocks_key(self, store: Store) -> None:
        emitted = emit(store, 3, ordering_key="k")
        held = claim(store, 1)
        store.settle(held.lease, all_to(Dead("x"), held))
        assert ids(claim(store)) == emitted[1:]

    def test_exhausted_retry_unblocks_key(self, store: Store) -> None:
        emitted = emit(store, 2, ordering_key="k", max_attempts=1)
        held = claim(store, 1)
        assert store.settle(held.lease, all_to(Retry("x", 900), held)).dead
        assert ids(claim(store)) == emitted[1:]

    @pytest.mark.parametrize("way", ["settled", "released", "reaped"])
    def test_returned_events_keep_place_in_key(self, store: Store, clock: ManualClock, way: str) -> None:
        emitted = emit(store, 5, ordering_key="k")
        held = claim(store, 3)
        match way:
            case "settled":
                store.settle(held.lease, all_to(RELEASED, held))
            case "released":
                store.release(held.lease)
            case "reaped":
                clock.expire_leases()
                assert store.reap() == 3
        assert store.ready("outbox")
        assert ids(claim(store, 50)) == emitted

    def test_replayed_event_returns_to_old_place_in_key(self, store: Store) -> None:
        emitted = emit(store, 3, ordering_key="k")
        publish(store, claim(store, 2))
        assert store.replay(Selection(ids=frozenset(emitted[:2]))) == 2
        assert ids(claim(store)) == emitted

    def test_replayed_event_waits_while_key_is_claimed(self, store: Store) -> None:
        emitted = emit(store, 3, ordering_key="k")
        publish(store, claim(store, 1))
        held = claim(store, 1)
        store.replay(Selection(ids=frozenset(emitted[:1])))
        assert not claim(store)
        publish(store, held)
        assert ids(claim(store)) == [emitted[0], emitted[2]]

    def test_replayed_event_precedes_waiting_retry(self, store: Store) -> None:
        emitted = emit(store, 2, ordering_key="k")
        publish(store, claim(store, 1))
        held = claim(store)
        store.settle(held.lease, all_to(Retry("later", 900), held))
        assert not claim(store)
        store.replay(Selection(ids=frozenset(emitted[:1])))
        assert store.ready("outbox")
        assert ids(claim(store)) == emitted[:1]

    def test_repeated_claim_keeps_key(self, store: Store) -> None:
        emit(store, 3, ordering_key="k")
        held = claim(store, 2, claimant="first")
        repeated = claim(store, 20, claimant="second", lease_id=held.lease.lease_id)
        assert ids(repeated) == ids(held)
        assert not claim(store)
        publish(store, repeated)
        assert len(claim(store)) == 1

    def test_repeated_claim_frees_end_of_key_not_head(self, store: Store) -> None:
        """The order of a key is independent of the times at which its events became available."""
        emitted = store.append(
            [event(ordering_key="k", available_at=STARTED_AT - timedelta(seconds=number)) for number in range(5)]
        )
        held = claim(store, 5, claimant="first")
        assert ids(held) == emitted
        held = claim(store, 20, claimant="second", lease_id=held.lease.lease_id)
        assert ids(held) == emitted[:2]
        assert not claim(store)
        publish(store, held)
        assert ids(claim(store, 100)) == emitted[2:]

    def test_repeated_claim_frees_keys_of_released_events(self, store: Store) -> None:
        first, second = store.append([event(ordering_key=key) for key in ("a", "b")])
        held = claim(store, 2, claimant="0")
        held = claim(store, 10, claimant="1", lease_id=held.lease.lease_id)
        assert ids(held) == [first]
        assert ids(claim(store, 100)) == [second]

    def test_long_keys_do_not_starve_other_keys(self, store: Store, clock: ManualClock) -> None:
        """A key with more events than a claim can take does not block other keys."""
        store.append([event(ordering_key=key) for key in "abc" for _ in range(150)])
        served = set()
        for _ in range(6):
            clock.advance(1)
            held = claim(store, 10)
            served |= {one.ordering_key for one in held.events}
            clock.advance(1)
            publish(store, held)
        assert served == {"a", "b", "c"}

    @pytest.mark.parametrize("many", [None, "k"])
    def test_keyed_and_plain_events_do_not_starve_each_other(
        self, store: Store, clock: ManualClock, many: str | None
    ) -> None:
        store.append([event(ordering_key=many and f"{many}{number}") for number in range(100)])
        (rare,) = emit(store, ordering_key=None if many else "k")
        found: list[EventId] = []
        for _ in range(3):
            clock.advance(1)
            found += ids(claim(store, 10))
        assert rare in found

    def test_long_key_is_delivered_completely_in_order(self, store: Store, clock: ManualClock) -> None:
        emitted = emit(store, 1_000, ordering_key="k")
        delivered: list[EventId] = []
        for _ in range(30):
            clock.advance(1)
            held = claim(store, 1_000)
            delivered += ids(held)
            if held:
                publish(store, held)
        assert delivered == emitted
        assert not store.ready("outbox")

    def test_key_can_be_reused(self, store: Store) -> None:
        for _ in range(3):
            emitted = emit(store, 2, ordering_key="k")
            held = claim(store)
            assert ids(held) == emitted
            publish(store, held)


@needs("ordering")
class Blocking(StoreScenario):
    """The order policy `block`, which is the default."""

    def test_failed_event_blocks_later_events_of_key(self, store: Store, clock: ManualClock) -> None:
        emitted = emit(store, 3, ordering_key="k")
        held = claim(store, 2)
        outcomes: dict[int, Outcome] = {seqs(held)[0]: Retry("later", 30), seqs(held)[1]: RELEASED}
        store.settle(held.lease, outcomes)
        assert not claim(store)
        assert not store.ready("outbox")
        emit(store, ordering_key="k")
        assert not claim(store)
        clock.advance(30)
        assert store.ready("outbox")
        assert ids(claim(store))[:3] == emitted

    @pytest.mark.parametrize("outcome", [Retry("later", 30), RELEASED])
    def test_later_events_of_key_are_released_with_failed_event(
        self, store: Store, clock: ManualClock, outcome: Outcome
    ) -> None:
        """If the later events stayed under the lease, a repeat of the claim would return them before the failed one."""
        emitted = emit(store, 4, ordering_key="k")
        (other,) = emit(store, ordering_key="other")
        held = claim(store)
        store.settle(held.lease, {seqs(held)[0]: PUBLISHED, seqs(held)[1]: outcome})
        repeated = claim(store, claimant="another", lease_id=held.lease.lease_id)
        assert ids(repeated) == [other]
        publish(store, repeated)
        clock.advance(30)
        found = claim(store)
        assert ids(found) == emitted[1:]
        assert [one.deliveries for one in found.events[1:]] == [1, 1]
        assert history(store, emitted[3]) == ["released"]

    def test_failed_event_does_not_block_other_keys(self, store: Store) -> None:
        store.append([event(ordering_key=key) for key in "ab"])
        held = claim(store)
        store.settle(held.lease, {seqs(held)[0]: Retry("later", 30), seqs(held)[1]: PUBLISHED})
        emitted = emit(store, ordering_key="b")
        assert ids(claim(store)) == emitted


@needs("ordering")
class Skipping(StoreScenario):
    """The order policy `skip`."""

    @pytest.fixture
    def skipping(self, open_store: OpenStore, clock: ManualClock) -> Iterator[Store]:
        store = open_store(StoreOptions(order_policy=OrderPolicy.SKIP), clock)
        yield store
        store.close()

    def test_failed_event_leaves_key_under_skip(self, skipping: Store, clock: ManualClock) -> None:
        first, second, third = emit(skipping, 3, ordering_key="k")
        held = claim(skipping, 2)
        outcomes: dict[int, Outcome] = {seqs(held)[0]: Retry("later", 30), seqs(held)[1]: RELEASED}
        skipping.settle(held.lease, outcomes)
        rest = claim(skipping)
        assert ids(rest) == [second, third]
        clock.advance(30)
        late = claim(skipping)
        assert ids(late) == [first]
        assert late.events[0].ordering_key is None
        assert record(skipping, first).ordering_key == "k"
        publish(skipping, rest)
        publish(skipping, late)

    def test_later_events_stay_claimed_under_skip(self, skipping: Store) -> None:
        emitted = emit(skipping, 3, ordering_key="k")
        held = claim(skipping)
        skipping.settle(held.lease, {seqs(held)[0]: Retry("later", 30)})
        assert ids(claim(skipping, lease_id=held.lease.lease_id)) == emitted[1:]

    def test_expired_lease_keeps_order_under_skip(self, skipping: Store, clock: ManualClock) -> None:
        emitted = emit(skipping, 3, ordering_key="k")
        claim(skipping, 1)
        clock.expire_leases()
        skipping.reap()
        assert ids(claim(skipping)) == emitted

    def test_replay_restores_skipped_event_to_key(self, skipping: Store) -> None:
        first, second = emit(skipping, 2, ordering_key="k")
        held = claim(skipping, 1)
        skipping.settle(held.lease, all_to(Retry("later", 0), held))
        publish(skipping, claim(skipping))
        assert states(skipping) == {State.PUBLISHED: 2}
        assert skipping.replay(Selection(queue="outbox")) == 2
        held = claim(skipping, 1)
        assert ids(held) == [first]
        assert held.events[0].ordering_key == "k"
        assert not claim(skipping)
        publish(skipping, held)
        assert ids(claim(skipping)) == [second]
