"""Conformance tests for stores: which events a claim takes, how many, and in which order."""

from datetime import timedelta

import pytest

from penstock.model.errors import UsageError
from penstock.model.lifecycle import State
from penstock.model.outcome import RELEASED, Retry
from penstock.store.api import Store
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
    ids,
    needs,
    publish,
    record,
    records,
    states,
)


class Claiming(StoreScenario):
    def test_claim_records_claimant_and_lease_expiry(self, store: Store, clock: ManualClock) -> None:
        (emitted,) = emit(store)
        at = clock.advance(5)
        claimed = claim(store, claimant="relay-1")
        (delivery,) = claimed.events
        assert (delivery.event_id, delivery.deliveries, delivery.attempts) == (emitted, 1, 0)
        assert not claimed.repeated
        found = record(store, emitted)
        assert (found.state, found.claimed_at, found.claimed_by) == (State.CLAIMED, at, "relay-1")
        assert found.lease_expires_at == at + timedelta(seconds=LEASE_SECONDS)
        assert (found.deliveries, found.attempts) == (1, 0)

    @pytest.mark.parametrize("limit", [1, 2, 7, 1_000])
    def test_claims_respect_limit_and_never_overlap(self, store: Store, limit: int, ordering_key: str | None) -> None:
        emitted = store.append([event(ordering_key=ordering_key and f"{ordering_key}{n}") for n in range(20)])
        claims = [claim(store, limit) for _ in range(20 // limit + 2)]
        assert [len(one) for one in claims] == [limit] * (20 // limit) + [20 % limit] * (20 % limit > 0) + [0] * (
            1 + (20 % limit == 0)
        )
        assert sorted(found for one in claims for found in ids(one)) == sorted(emitted)

    @needs("ordering")
    def test_keyed_and_plain_events_share_claim_limit(self, store: Store) -> None:
        store.append([event(ordering_key=None if number % 2 else f"k{number}") for number in range(20)])
        assert [len(claim(store, 6)) for _ in range(5)] == [6, 6, 6, 2, 0]

    def test_claim_from_empty_queue_is_empty(self, store: Store) -> None:
        emit(store, queue="other")
        assert not claim(store)
        assert not store.ready("outbox")
        assert store.ready("other")
        assert len(claim(store, queue="other")) == 1

    def test_delayed_event_is_not_claimed_early(
        self, store: Store, clock: ManualClock, ordering_key: str | None
    ) -> None:
        emitted = emit(store, delay_seconds=10, ordering_key=ordering_key)
        assert not claim(store)
        clock.advance(9.999)
        assert not claim(store)
        assert not store.ready("outbox")
        clock.advance(0.001)
        assert store.ready("outbox")
        assert ids(claim(store)) == emitted

    def test_higher_priority_is_claimed_before_older_event(self, store: Store, clock: ManualClock) -> None:
        expected = []
        for priority in (-1, 0, 5):
            expected.append(emit(store, priority=priority)[0])
            clock.advance(1)
        later = emit(store, priority=5)[0]
        assert [ids(claim(store, 1))[0] for _ in range(4)] == [expected[2], later, expected[1], expected[0]]

    def test_claim_is_ordered_by_priority_time_and_seq(self, store: Store) -> None:
        times = [3, 1, 2, 1]
        emitted = store.append(
            [event(priority=p, available_at=STARTED_AT - timedelta(seconds=t)) for p in (0, 9) for t in times]
        )
        assert ids(claim(store)) == [emitted[place] for place in (4, 6, 5, 7, 0, 2, 1, 3)]

    def test_old_events_are_claimed_after_higher_priority(self, store: Store, clock: ManualClock) -> None:
        """Events of lower priority are claimed next, even if they are much older than a full claim of newer events."""
        old = emit(store, 30, priority=0)
        clock.advance(3_600)
        urgent = emit(store, 10, priority=9)
        assert sorted(ids(claim(store, 10))) == sorted(urgent)
        assert store.ready("outbox")
        assert ids(claim(store, 100)) == old

    def test_event_released_late_is_claimed_next(self, store: Store, clock: ManualClock) -> None:
        (old,) = emit(store)
        held = claim(store)
        clock.advance(50)
        new = emit(store, 2)
        assert ids(claim(store, 2)) == new
        store.settle(held.lease, all_to(RELEASED, held))
        assert store.ready("outbox")
        assert ids(claim(store)) == [old]

    def test_claim_takes_only_requested_types(self, store: Store) -> None:
        emitted = store.append([event(event_type=f"type-{number % 3}") for number in range(9)])
        assert ids(claim(store, types=["type-1"])) == emitted[1::3]
        assert ids(claim(store, 2, types=["type-2", "type-0"])) == [emitted[0], emitted[2]]
        assert not claim(store, types=["type-1"])
        assert not claim(store, types=["type"])
        assert not claim(store, types=[])
        assert ids(claim(store)) == [emitted[place] for place in (3, 5, 6, 8)]

    def test_claim_finds_rare_type_behind_many_events(self, store: Store, clock: ManualClock) -> None:
        emit(store, 30, event_type="common")
        clock.advance(3_600)
        rare = emit(store, event_type="rare")
        assert not claim(store, types=["unknown"])
        assert len(claim(store, 5, types=["common"])) == 5
        assert ids(claim(store, 5, types=["rare"])) == rare
        assert len(claim(store, 100)) == 25

    @needs("ordering")
    def test_claim_by_type_keeps_order_of_key(self, store: Store) -> None:
        """The event at the head of an ordering key blocks later events, even if a claim excludes its type."""
        first, second = store.append([event(event_type=name, ordering_key="k") for name in ("a", "b")])
        assert not claim(store, types=["b"])
        held = claim(store, types=["a"])
        assert ids(held) == [first]
        assert not claim(store, types=["b"])
        publish(store, held)
        assert ids(claim(store, types=["b"])) == [second]

    def test_ready_agrees_with_claim(self, store: Store, clock: ManualClock) -> None:
        assert not store.ready("outbox")
        emit(store, event_type="a", priority=3)
        assert store.ready("outbox")
        assert store.ready("outbox", types=["a", "b"])
        assert not store.ready("outbox", types=["b"])
        assert not store.ready("other")
        held = claim(store)
        assert not store.ready("outbox")
        store.settle(held.lease, all_to(Retry("later", 30), held))
        assert not store.ready("outbox")
        clock.advance(30)
        assert store.ready("outbox")

    @needs("ordering")
    def test_ready_respects_ordering_keys(self, store: Store) -> None:
        emit(store, 2, ordering_key="k", event_type="a")
        assert store.ready("outbox")
        assert store.ready("outbox", types=["a"])
        assert not store.ready("outbox", types=["b"])
        held = claim(store, 1)
        assert not store.ready("outbox")
        publish(store, held)
        assert store.ready("outbox")

    def test_ready_changes_no_events(self, store: Store) -> None:
        emit(store, 2)
        emit(store, 2, ordering_key="k" if store.capabilities.ordering else None)
        before = records(store)
        assert all(store.ready("outbox") for _ in range(3))
        assert records(store) == before
        assert len(claim(store)) == 4

    def test_events_emitted_by_another_process_are_claimed(
        self, store: Store, open_store: OpenStore, clock: ManualClock
    ) -> None:
        other = open_store(clock=clock)
        emit(store, 2)
        publish(store, claim(store))
        emitted = emit(other)
        assert store.ready("outbox")
        assert ids(claim(store)) == emitted
        other.close()

    def test_claim_refuses_nonpositive_arguments(self, store: Store) -> None:
        emit(store)
        for wrong in ({"limit": 0}, {"lease_seconds": 0}, {"lease_seconds": -1}, {"max_attempts": 0}):
            with pytest.raises(UsageError, match="greater than 0"):
                store.claim("outbox", claimant="me", **{"limit": 1, **wrong})  # type: ignore[arg-type]
        assert states(store) == {State.PENDING: 1}

    def test_thousands_of_events_are_claimed_at_once(self, store: Store) -> None:
        emitted = emit(store, 5_000)
        claimed = claim(store, 5_000)
        assert ids(claimed) == emitted
        publish(store, claimed)
        stats = store.stats()
        assert stats.total("published") + sum(stats.purged.values()) == 5_000
