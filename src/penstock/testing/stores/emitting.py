"""Conformance tests for stores: emitted events come out unchanged, once, and in order."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from penstock.model.errors import InvalidEvent
from penstock.model.event import EventId
from penstock.model.lifecycle import State
from penstock.model.outcome import PUBLISHED, Dead
from penstock.model.selection import Selection
from penstock.store.api import Store
from penstock.testing.stores.scenario import (
    STARTED_AT,
    ManualClock,
    StoreScenario,
    claim,
    emit,
    event,
    ids,
    needs,
    publish,
    record,
    records,
    settle,
    states,
)

# A backend may write small and large batches in different ways.
BATCHES = [1, 19, 20, 500]
PAYLOADS = [
    pytest.param(b"", id="empty"),
    pytest.param(b'{"order": 1}', id="json"),
    pytest.param("Füße, 水, 🚰".encode(), id="unicode"),
    pytest.param(b"\xff\x00\\N\\.\t\n\r not text", id="not text"),
    pytest.param(bytes(range(256)) * 400, id="100 kB"),
]
HEADERS = [
    pytest.param({}, id="none"),
    pytest.param({"content-type": "application/json", "traceparent": "00-ab-cd-01"}, id="plain"),
    pytest.param({"Grüße": "水 🚰", "quoted": '"{}",\\', "empty": ""}, id="unicode"),
]


class EmittingEvents(StoreScenario):
    @pytest.mark.parametrize("batch", BATCHES)
    def test_events_keep_given_ids(self, store: Store, batch: int) -> None:
        given = [EventId(uuid4()) for _ in range(batch)]
        assert store.append([event(event_id=one) for one in given]) == given
        assert [one.event_id for one in records(store)] == given

    @pytest.mark.parametrize("batch", BATCHES)
    def test_generated_ids_sort_by_time(self, store: Store, batch: int) -> None:
        first, second = emit(store, batch), emit(store, batch)
        assert all(one.version == 7 for one in first + second)
        assert len(set(first + second)) == 2 * batch
        assert max(first) < min(second)

    @pytest.mark.parametrize("batch", [1, 20])
    @pytest.mark.parametrize("payload", PAYLOADS)
    def test_payloads_are_delivered_unchanged(self, store: Store, payload: bytes, batch: int) -> None:
        emit(store, batch, payload=payload)
        assert [one.payload for one in records(store)] == [payload] * batch
        delivered = [one.payload for one in claim(store, batch).events]
        assert delivered == [payload] * batch
        assert all(isinstance(one, bytes) for one in delivered)

    @pytest.mark.parametrize("batch", [1, 20])
    @pytest.mark.parametrize("headers", HEADERS)
    def test_headers_are_delivered_unchanged(self, store: Store, headers: Mapping[str, str], batch: int) -> None:
        emit(store, batch, headers=headers)
        assert [one.headers for one in records(store)] == [headers] * batch
        assert [dict(one.headers) for one in claim(store, batch).events] == [headers] * batch

    @pytest.mark.parametrize("batch", [1, 20])
    def test_other_fields_are_delivered_unchanged(self, store: Store, batch: int) -> None:
        fields: dict[str, Any] = {
            "event_type": "Bestellung.größer\n'",
            "queue": "queue \\ %s :now ${x}",
            "partition_key": "customer ä",
            "priority": -7,
            "max_attempts": 3,
            "available_at": STARTED_AT - timedelta(microseconds=1),
        }
        if store.capabilities.ordering:
            fields["ordering_key"] = "order 'é'"
        emit(store, batch, **fields)
        for found in (*records(store), *claim(store, batch, queue="queue \\ %s :now ${x}").events):
            assert {name: getattr(found, name) for name in fields} == fields

    @pytest.mark.parametrize("batch", BATCHES)
    def test_new_event_is_pending_without_attempts(self, store: Store, batch: int) -> None:
        emit(store, batch)
        for found in records(store):
            assert (found.state, found.attempts, found.deliveries, found.replays) == (State.PENDING, 0, 0, 0)
            assert (found.suspect, found.last_error, found.max_attempts) == (0, None, None)
            assert (found.claimed_at, found.claimed_by, found.lease_expires_at) == (None, None, None)
            assert (found.published_at, found.settled_at) == (None, None)
            assert (found.created_at, found.available_at) == (STARTED_AT, STARTED_AT)

    @pytest.mark.parametrize("batch", [1, 20])
    def test_delay_and_time_set_when_event_is_available(self, store: Store, batch: int) -> None:
        emit(store, batch, delay_seconds=90.5)
        emit(store, batch, available_at=STARTED_AT + timedelta(days=400))
        expected = [timedelta(seconds=90.5)] * batch + [timedelta(days=400)] * batch
        assert [one.available_at - STARTED_AT for one in records(store)] == expected

    def test_events_are_numbered_in_order_of_emit(self, store: Store) -> None:
        emitted = [one for batch in (3, 25, 1) for one in emit(store, batch)]
        assert [one.event_id for one in records(store)] == emitted

    def test_empty_append_writes_nothing(self, store: Store) -> None:
        assert store.append([]) == []
        assert records(store) == []

    @pytest.mark.parametrize("batch", [2, 30])
    def test_existing_id_is_refused(self, store: Store, batch: int) -> None:
        (taken,) = emit(store)
        with pytest.raises(InvalidEvent, match="event_id"):
            store.append([*(event() for _ in range(batch - 1)), event(event_id=taken)])
        assert [one.event_id for one in records(store)] == [taken]

    def test_duplicate_ids_in_batch_are_refused(self, store: Store) -> None:
        shared = EventId(uuid4())
        with pytest.raises(InvalidEvent, match="event_id"):
            store.append([event(event_id=shared), event(event_id=shared)])
        assert records(store) == []


class Deduplicating(StoreScenario):
    def test_emit_within_window_returns_first_id(self, store: Store, clock: ManualClock) -> None:
        first = emit(store, dedupe_key="order-1", dedupe_seconds=100)
        clock.advance(99.9)
        assert emit(store, dedupe_key="order-1", dedupe_seconds=100) == first
        assert [one.event_id for one in records(store)] == first

    def test_emit_after_window_starts_new_window(self, store: Store, clock: ManualClock) -> None:
        first = emit(store, dedupe_key="order-1", dedupe_seconds=100)
        clock.advance(100)
        second = emit(store, dedupe_key="order-1", dedupe_seconds=100)
        clock.advance(99)
        assert emit(store, dedupe_key="order-1") == second != first
        assert [one.event_id for one in records(store)] == first + second

    def test_default_window_is_one_day(self, store: Store, clock: ManualClock) -> None:
        first = emit(store, dedupe_key="order-1")
        clock.advance(86_399)
        assert emit(store, dedupe_key="order-1") == first
        clock.advance(1)
        assert emit(store, dedupe_key="order-1") != first

    def test_windows_are_separate_per_queue(self, store: Store) -> None:
        first, other = emit(store, queue="a", dedupe_key="x"), emit(store, queue="b", dedupe_key="x")
        assert first != other
        assert emit(store, queue="a", dedupe_key="x") == first
        assert emit(store, queue="b", dedupe_key="x") == other
        assert len(records(store)) == 2

    @pytest.mark.parametrize("size", [4, 40])
    def test_duplicates_within_batch_are_ignored(self, store: Store, size: int) -> None:
        keys = ["x", None, "y", "x"] * (size // 4)
        returned = store.append([event(dedupe_key=key) for key in keys])
        assert len({one for one, key in zip(returned, keys, strict=True) if key == "x"}) == 1
        assert len({one for one, key in zip(returned, keys, strict=True) if key == "y"}) == 1
        assert len(set(returned)) == 2 + size // 4
        assert sorted(one.event_id for one in records(store)) == sorted(set(returned))

    def test_batch_can_be_partly_new(self, store: Store) -> None:
        (first,) = emit(store, dedupe_key="x")
        again, new = store.append([event(dedupe_key="x"), event(dedupe_key="y")])
        assert again == first
        assert [one.event_id for one in records(store)] == [first, new]

    def test_repeated_emit_with_same_id_adds_nothing(self, store: Store) -> None:
        given = EventId(uuid4())
        for _ in range(2):
            assert emit(store, event_id=given, dedupe_key="x") == [given]
        assert [one.event_id for one in records(store)] == [given]

    def test_window_outlives_purged_event(self, store: Store) -> None:
        first = settle(store, PUBLISHED, dedupe_key="x")
        assert emit(store, dedupe_key="x") == first
        assert states(store) == {State.PUBLISHED: 1}
        assert store.purge(Selection(states=frozenset({State.PUBLISHED}))) == 1
        assert emit(store, dedupe_key="x") == first
        assert records(store) == []

    def test_replay_leaves_window_unchanged(self, store: Store, clock: ManualClock) -> None:
        (first,) = settle(store, Dead("no"), dedupe_key="x", dedupe_seconds=100)
        clock.advance(60)
        assert store.replay(Selection(ids=frozenset({first}))) == 1
        assert emit(store, dedupe_key="x", dedupe_seconds=100) == [first]
        publish(store, claim(store))
        clock.advance(40)
        (second,) = emit(store, dedupe_key="x", dedupe_seconds=100)
        assert second != first
        assert store.replay(Selection(ids=frozenset({first}))) == 1
        assert record(store, first).replays == 2
        assert emit(store, dedupe_key="x") == [second]

    @needs("ordering")
    def test_ignored_duplicate_does_not_block_key(self, store: Store) -> None:
        first, *_ = (emit(store, dedupe_key="x", ordering_key="k")[0] for _ in range(2))
        claimed = claim(store)
        assert ids(claimed) == [first]
        publish(store, claimed)
        assert not claim(store)
        assert not store.ready("outbox")
