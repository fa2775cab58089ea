"""Conformance tests for stores: staged rows become events together and once, or never."""

from datetime import timedelta
from threading import Thread
from typing import Any
from uuid import UUID, uuid4

import pytest

from penstock.model.errors import InvalidEvent, StoreError
from penstock.model.event import EventId
from penstock.model.selection import Selection
from penstock.store.api import Committed, StagedPart, Store
from penstock.testing.stores.scenario import (
    STARTED_AT,
    ManualClock,
    OpenStore,
    StoreScenario,
    claim,
    emit,
    event,
    ids,
    needs,
    records,
)

WEEK = 7 * 86_400


def stage(store: Store, write: UUID, count: int = 1, *, batch: int = 0, place: int = 0, **fields: Any) -> UUID:
    """Stage rows of one attempt, numbered in their payloads. Return the id of the staged part."""
    part = StagedPart(uuid4(), write, batch, place)
    rows = [event(**{"payload": f"{place}/{number}".encode(), **fields}) for number in range(count)]
    assert store.stage(part, rows) == count
    return part.part_id


def payloads(store: Store) -> list[str]:
    """Return the payloads of the emitted events, oldest first."""
    return [one.payload.decode() for one in records(store)]


@needs("staging")
class StagingEvents(StoreScenario):
    def test_staged_rows_become_events_only_on_commit(self, store: Store) -> None:
        write = uuid4()
        part = stage(store, write, 3)
        assert records(store) == []
        assert not claim(store)
        assert store.commit_staged(write, 0, {part: 3}, once=False) == Committed(3)
        assert payloads(store) == ["0/0", "0/1", "0/2"]
        assert len(claim(store)) == 3

    def test_staged_fields_are_delivered_unchanged(self, store: Store, clock: ManualClock) -> None:
        fields: dict[str, Any] = {
            "event_id": EventId(uuid4()),
            "event_type": "Bestellung.größer\n'",
            "queue": "queue \\ %s :now ${x}",
            "payload": b"\xff\x00\\N\\.\t\n\r not text",
            "headers": {"Grüße": "水 🚰", "quoted": '"{}",\\', "empty": ""},
            "partition_key": "customer ä",
            "ordering_key": "order 'é'",
            "priority": -7,
            "max_attempts": 3,
            "available_at": STARTED_AT - timedelta(microseconds=1),
        }
        write = uuid4()
        part = stage(store, write, **fields)
        clock.advance(10)
        store.commit_staged(write, 0, {part: 1}, once=False)
        (found,) = records(store)
        assert {name: getattr(found, name) for name in fields} == fields
        assert found.created_at == STARTED_AT + timedelta(seconds=10)
        assert (found.attempts, found.deliveries, found.replays, found.suspect) == (0, 0, 0, 0)
        assert ids(claim(store, queue="queue \\ %s :now ${x}")) == [fields["event_id"]]

    def test_delay_of_staged_row_starts_at_commit(self, store: Store, clock: ManualClock) -> None:
        write = uuid4()
        parts = {stage(store, write): 1, stage(store, write, place=1, delay_seconds=90.5): 1}
        committed_at = clock.advance(100)
        store.commit_staged(write, 0, parts, once=False)
        assert [one.available_at - committed_at for one in records(store)] == [timedelta(), timedelta(seconds=90.5)]

    def test_staged_parts_are_ordered_by_place(self, store: Store) -> None:
        write = uuid4()
        parts = {stage(store, write, 2, place=place): 2 for place in (2, 0, 1)}
        store.commit_staged(write, 0, parts, once=False)
        assert payloads(store) == ["0/0", "0/1", "1/0", "1/1", "2/0", "2/1"]

    def test_staged_part_can_be_written_in_pieces(self, store: Store) -> None:
        part = StagedPart(uuid4(), uuid4())
        start = store.stage(part, [event(payload=b"1"), event(payload=b"2")])
        assert store.stage(part, [], start=start) == 2
        assert store.stage(part, [event(payload=b"3")], start=start) == 3
        store.commit_staged(part.write_id, 0, {part.part_id: 3}, once=False)
        assert payloads(store) == ["1", "2", "3"]

    def test_commit_emits_named_parts_and_drops_others(self, store: Store) -> None:
        write = uuid4()
        stage(store, write, 5)
        again, other = stage(store, write, 2), stage(store, uuid4(), 1, place=7)
        assert store.commit_staged(write, 0, {again: 2}, once=True) == Committed(2)
        assert payloads(store) == ["0/0", "0/1"]
        assert store.drop_staged(write) == 0
        assert store.drop_staged(write, parts=[other]) == 0

    def test_large_staged_batch_is_committed_completely(self, store: Store) -> None:
        write = uuid4()
        parts = {stage(store, write, 1_500, place=place): 1_500 for place in range(2)}
        assert store.commit_staged(write, 0, parts, once=True).events == 3_000
        assert payloads(store) == [f"{place}/{number}" for place in range(2) for number in range(1_500)]

    def test_missing_rows_fail_commit_without_events(self, store: Store) -> None:
        write = uuid4()
        part = stage(store, write, 3)
        with pytest.raises(StoreError, match="3 of 4 staged rows remain, no event was emitted"):
            store.commit_staged(write, 0, {part: 3, uuid4(): 1}, once=True)
        assert records(store) == []
        assert store.commit_staged(write, 0, {part: 3}, once=True) == Committed(3)

    def test_existing_id_fails_whole_staged_batch(self, store: Store) -> None:
        (taken,) = emit(store)
        write = uuid4()
        parts = {stage(store, write, 3): 3, stage(store, write, place=1, event_id=taken): 1}
        with pytest.raises(InvalidEvent, match="event_id"):
            store.commit_staged(write, 0, parts, once=True)
        assert [one.event_id for one in records(store)] == [taken]


@needs("staging")
class CommittingOnce(StoreScenario):
    def test_repeated_batch_is_dropped_without_events(self, store: Store) -> None:
        query = uuid4()
        first = stage(store, query, 3, batch=7)
        assert store.commit_staged(query, 7, {first: 3}, once=True) == Committed(3)
        again = stage(store, query, 3, batch=7)
        assert store.commit_staged(query, 7, {again: 3}, once=True) == Committed(repeated=True)
        assert store.commit_staged(query, 7, {first: 3}, once=True) == Committed(repeated=True)
        assert len(records(store)) == 3
        assert store.drop_staged(query) == 0

    def test_older_batch_is_never_committed_again(self, store: Store) -> None:
        query = uuid4()
        for batch in (0, 1):
            store.commit_staged(query, batch, {stage(store, query, batch=batch): 1}, once=True)
        late = stage(store, query, 5, batch=0)
        assert store.commit_staged(query, 0, {late: 5}, once=True).repeated
        assert len(records(store)) == 2

    def test_commit_keeps_later_batches_and_other_queries(self, store: Store) -> None:
        query, other = uuid4(), uuid4()
        old, later = stage(store, query, 1, batch=1), stage(store, query, 2, batch=3)
        foreign = stage(store, other, 4, batch=2)
        store.commit_staged(query, 2, {}, once=True)
        with pytest.raises(StoreError):
            store.commit_staged(query, 4, {old: 1}, once=True)
        assert store.commit_staged(query, 3, {later: 2}, once=True) == Committed(2)
        assert store.commit_staged(other, 2, {foreign: 4}, once=True) == Committed(4)

    def test_empty_batch_counts_as_committed(self, store: Store) -> None:
        query = uuid4()
        assert store.commit_staged(query, 0, {uuid4(): 0}, once=True) == Committed()
        assert store.commit_staged(query, 0, {}, once=True) == Committed(repeated=True)

    def test_failed_commit_can_be_repeated(self, store: Store) -> None:
        query = uuid4()
        with pytest.raises(StoreError):
            store.commit_staged(query, 0, {uuid4(): 1}, once=True)
        assert store.commit_staged(query, 0, {stage(store, query): 1}, once=True) == Committed(1)

    def test_concurrent_commits_emit_once(self, store: Store, open_store: OpenStore, clock: ManualClock) -> None:
        query, done = uuid4(), list[Committed]()
        other = open_store(clock=clock)
        tries = [(one, stage(one, query, 200, batch=5)) for one in (store, other) for _ in range(2)]

        def commit(one: Store, part: UUID) -> None:
            done.append(one.commit_staged(query, 5, {part: 200}, once=True))

        threads = [Thread(target=commit, args=one) for one in tries]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        other.close()
        assert sorted(one.events for one in done) == [0, 0, 0, 200]
        assert len(records(store)) == 200


@needs("staging")
class StagedKeys(StoreScenario):
    def test_staged_events_of_key_are_claimed_in_row_order(self, store: Store) -> None:
        write = uuid4()
        parts = {stage(store, write, 3, place=place, ordering_key="c1"): 3 for place in (1, 0)}
        parts[stage(store, write, 2, place=2, ordering_key="c2", queue="mail")] = 2
        store.commit_staged(write, 0, parts, once=True)
        first = claim(store, 2)
        assert [one.payload for one in first.events] == [b"0/0", b"0/1"]
        assert not claim(store), "the key is held by the first lease"
        assert store.release(first.lease) == 2
        assert [one.payload for one in claim(store).events] == [b"0/0", b"0/1", b"0/2", b"1/0", b"1/1", b"1/2"]
        assert len(claim(store, queue="mail")) == 2

    def test_staged_events_follow_earlier_events_of_key(self, store: Store) -> None:
        emit(store, 1, ordering_key="c1", payload=b"before")
        write = uuid4()
        store.commit_staged(write, 0, {stage(store, write, 1, ordering_key="c1"): 1}, once=False)
        emit(store, 1, ordering_key="c1", payload=b"after")
        assert [one.payload for one in claim(store).events] == [b"before", b"0/0", b"after"]

    def test_first_staged_row_of_deduplication_key_is_emitted(self, store: Store) -> None:
        write = uuid4()
        parts = {
            stage(store, write, 3, place=1, dedupe_key="x"): 3,
            stage(store, write, 2, place=0, dedupe_key="x"): 2,
            stage(store, write, 2, place=2, dedupe_key="x", queue="mail"): 2,
            stage(store, write, 2, place=3): 2,
        }
        assert store.commit_staged(write, 0, parts, once=True) == Committed(4, duplicates=5)
        assert payloads(store) == ["0/0", "2/0", "3/0", "3/1"]

    def test_staged_and_appended_events_share_window(self, store: Store, clock: ManualClock) -> None:
        first = emit(store, dedupe_key="x", dedupe_seconds=100)
        write = uuid4()
        part = stage(store, write, 1, dedupe_key="x")
        assert store.commit_staged(write, 0, {part: 1}, once=True) == Committed(0, duplicates=1)
        clock.advance(100)
        part = stage(store, write, 1, batch=1, dedupe_key="x", dedupe_seconds=50)
        assert store.commit_staged(write, 1, {part: 1}, once=True) == Committed(1)
        clock.advance(49)
        second = emit(store, dedupe_key="x")
        assert [one.event_id for one in records(store)] == first + second

    def test_staged_row_with_same_id_and_key_is_duplicate(self, store: Store) -> None:
        (first,) = emit(store, dedupe_key="x")
        write = uuid4()
        part = stage(store, write, dedupe_key="x", event_id=first)
        assert store.commit_staged(write, 0, {part: 1}, once=True) == Committed(0, duplicates=1)
        assert [one.event_id for one in records(store)] == [first]


@needs("staging")
class DroppingStaged(StoreScenario):
    def test_drop_removes_all_rows_of_write(self, store: Store) -> None:
        write, other = uuid4(), uuid4()
        stage(store, write, 3)
        stage(store, write, 2, batch=1)
        kept = stage(store, other)
        assert store.drop_staged(write) == 5
        assert store.commit_staged(other, 0, {kept: 1}, once=False) == Committed(1)

    def test_drop_can_select_parts(self, store: Store) -> None:
        write = uuid4()
        gone, kept = stage(store, write, 3), stage(store, write, 2)
        assert store.drop_staged(write, parts=[gone, uuid4()]) == 3
        assert store.drop_staged(write, parts=[]) == 0
        assert store.commit_staged(write, 0, {kept: 2}, once=True) == Committed(2)

    def test_maintenance_drops_rows_staged_over_one_week_ago(self, store: Store, clock: ManualClock) -> None:
        write = uuid4()
        old = stage(store, write, 3)
        clock.advance(WEEK)
        store.maintain()
        new = stage(store, write, 2, batch=1)
        clock.advance(1)
        store.maintain()
        with pytest.raises(StoreError, match="0 of 3 staged rows remain"):
            store.commit_staged(write, 0, {old: 3}, once=True)
        assert store.commit_staged(write, 1, {new: 2}, once=True) == Committed(2)

    def test_maintenance_keeps_last_batch_of_query(self, store: Store, clock: ManualClock) -> None:
        query = uuid4()
        store.commit_staged(query, 3, {stage(store, query, batch=3): 1}, once=True)
        clock.advance(100 * WEEK)
        store.maintain()
        again = stage(store, query, batch=3)
        assert store.commit_staged(query, 3, {again: 1}, once=True).repeated


class FindingSeveral(StoreScenario):
    def test_find_by_several_queues_and_types(self, store: Store) -> None:
        for queue in ("a", "b", "c"):
            for kind in ("x", "y", "z"):
                emit(store, queue=queue, event_type=kind, payload=f"{queue}{kind}".encode())
        found = records(store, Selection(queues=frozenset("ab"), event_types=frozenset("yz")))
        assert [one.payload for one in found] == [b"ay", b"az", b"by", b"bz"]
        assert len(records(store, Selection(queue="a", queues=frozenset("ab")))) == 3
        assert records(store, Selection(queue="c", queues=frozenset("ab"))) == []
        assert records(store, Selection(event_types=frozenset())) == []
