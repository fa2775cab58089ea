"""Conformance tests for stores: routing moves an event to another queue, or copies it to several.

Each copy has an independent state.
"""

from typing import Any

import pytest

from penstock.model.errors import UsageError
from penstock.model.lease import Claim, Settlement
from penstock.model.lifecycle import State
from penstock.model.outcome import PUBLISHED, Dead, Retry
from penstock.model.selection import Selection
from penstock.store.api import Store
from penstock.testing.stores.scenario import (
    ManualClock,
    StoreScenario,
    all_to,
    claim,
    emit,
    event,
    ids,
    needs,
    publish,
    records,
    seqs,
)


def route(store: Store, held: Claim, *queues: str) -> Settlement:
    """Route all events of a claim to all of these queues."""
    return store.route(held.lease, dict.fromkeys(seqs(held), queues))


@needs("routing")
class RoutingEvents(StoreScenario):
    def test_routed_event_moves_to_target_queue(self, store: Store) -> None:
        emitted = emit(store, 3)
        held = claim(store)
        assert route(store, held, "there").released == set(seqs(held))
        assert not claim(store)
        assert ids(claim(store, queue="there")) == emitted

    def test_copies_keep_id_and_fields(self, store: Store) -> None:
        fields: dict[str, Any] = {
            "payload": b"\x00body",
            "headers": {"a": "b"},
            "partition_key": "p",
            "priority": 7,
            "max_attempts": 4,
        }
        (emitted,) = emit(store, **fields)
        route(store, claim(store), "one", "two", "three")
        for queue in ("one", "two", "three"):
            (copy,) = claim(store, queue=queue).events
            assert copy.event_id == emitted
            assert {name: getattr(copy, name) for name in fields} == fields
            assert (copy.event_type, copy.queue, copy.attempts, copy.deliveries) == ("orders.created", queue, 0, 1)

    def test_copies_are_settled_independently(self, store: Store) -> None:
        (emitted,) = emit(store)
        route(store, claim(store), "good", "bad", "late")
        publish(store, claim(store, queue="good"))
        bad, late = claim(store, queue="bad"), claim(store, queue="late")
        store.settle(bad.lease, all_to(Dead("no"), bad))
        store.settle(late.lease, all_to(Retry("later", 5), late))
        found = {one.queue: one for one in store.find(Selection(ids=frozenset({emitted}))).records}
        assert {queue: one.state for queue, one in found.items()} == {
            "good": State.PUBLISHED,
            "bad": State.DEAD,
            "late": State.PENDING,
        }
        assert [found[queue].last_error for queue in ("good", "bad", "late")] == [None, "no", "later"]
        assert sorted(entry.what for entry in store.history(emitted)) == ["died", "retried"]

    def test_one_copy_can_be_replayed_alone(self, store: Store) -> None:
        (emitted,) = emit(store)
        route(store, claim(store), "one", "two")
        for queue in ("one", "two"):
            publish(store, claim(store, queue=queue))
        assert store.replay(Selection(ids=frozenset({emitted}), queue="two")) == 1
        assert not claim(store, queue="one")
        assert ids(claim(store, queue="two")) == [emitted]

    def test_purge_by_id_deletes_all_copies(self, store: Store) -> None:
        (emitted,) = emit(store)
        route(store, claim(store), "one", "two")
        for queue in ("one", "two"):
            publish(store, claim(store, queue=queue))
        assert store.purge(Selection(ids=frozenset({emitted}))) == 2
        assert records(store) == []

    def test_routed_event_starts_with_fresh_counts(self, store: Store, clock: ManualClock) -> None:
        emit(store)
        claim(store)
        clock.expire_leases()
        assert store.reap() == 1
        route(store, claim(store), "there", "elsewhere")
        for queue in ("there", "elsewhere"):
            (moved,) = claim(store, queue=queue).events
            assert (moved.attempts, moved.deliveries, moved.suspect, moved.last_error) == (0, 1, 0, None)

    def test_routed_event_can_be_routed_again(self, store: Store) -> None:
        (emitted,) = emit(store)
        route(store, claim(store), "one", "two")
        route(store, claim(store, queue="two"), "three", "four")
        assert [ids(claim(store, queue=queue)) for queue in ("one", "three", "four")] == [[emitted]] * 3

    def test_queue_named_twice_gets_one_copy(self, store: Store) -> None:
        emit(store)
        route(store, claim(store), "one", "two", "one")
        assert len(claim(store, queue="one")) == 1

    def test_route_requires_target_queue(self, store: Store) -> None:
        emit(store)
        held = claim(store)
        with pytest.raises(UsageError, match="at least one queue"):
            route(store, held)
        assert route(store, held, "there").released == set(seqs(held))

    def test_claim_can_be_partly_routed_and_partly_settled(self, store: Store) -> None:
        emit(store, 2)
        held = claim(store)
        first, second = seqs(held)
        assert store.route(held.lease, {first: ["there"]}).released == {first}
        assert store.settle(held.lease, {second: PUBLISHED}).published == {second}
        assert not store.extend([held.lease])

    def test_older_token_routes_nothing(self, store: Store) -> None:
        emit(store, 2)
        old = claim(store)
        claim(store, lease_id=old.lease.lease_id, claimant="another")
        assert route(store, old, "there", "elsewhere") == Settlement(lost=frozenset(seqs(old)))
        assert not claim(store, queue="there")
        assert len(records(store)) == 2

    def test_repeated_route_copies_nothing_twice(self, store: Store) -> None:
        emit(store, 2)
        held = claim(store)
        route(store, held, "one", "two")
        assert route(store, held, "one", "two").lost == set(seqs(held))
        assert len(records(store)) == 4

    def test_route_reports_events_of_other_leases_as_lost(self, store: Store) -> None:
        emit(store, 2)
        mine, other = claim(store, 1), claim(store, 1)
        settlement = store.route(mine.lease, dict.fromkeys([*seqs(mine), *seqs(other)], ("there",)))
        assert settlement == Settlement(released=frozenset(seqs(mine)), lost=frozenset(seqs(other)))

    def test_routed_keys_keep_order_in_each_queue(self, store: Store) -> None:
        emitted = store.append([event(ordering_key=f"k{number % 2}") for number in range(12)])
        for _ in range(2):
            route(store, claim(store, 6), "one", "two")
        for queue in ("one", "two"):
            found = ids(claim(store, queue=queue))
            for key in (0, 1):
                assert [one for one in found if one in emitted[key::2]] == emitted[key::2]

    def test_route_moves_key_to_target_queue(self, store: Store) -> None:
        first, second = emit(store, 2, ordering_key="k")
        route(store, claim(store, 1), "there")
        held = claim(store, queue="there")
        assert ids(held) == [first]
        route(store, claim(store), "there")
        assert not claim(store, queue="there")
        publish(store, held)
        assert ids(claim(store, queue="there")) == [second]

    def test_failed_copy_blocks_key_only_in_its_queue(self, store: Store, clock: ManualClock) -> None:
        emitted = emit(store, 2, ordering_key="k")
        route(store, claim(store), "one", "two")
        failing = claim(store, 1, queue="one")
        store.settle(failing.lease, all_to(Retry("no", 30), failing))
        assert not claim(store, queue="one")
        assert ids(claim(store, queue="two")) == emitted
        clock.advance(31)
        assert ids(claim(store, queue="one")) == emitted

    def test_thousands_of_events_are_routed_at_once(self, store: Store) -> None:
        emit(store, 2_000)
        held = claim(store, 2_000)
        assert len(route(store, held, "one", "two").released) == 2_000
        assert [len(claim(store, 2_000, queue=queue)) for queue in ("one", "two")] == [2_000, 2_000]
