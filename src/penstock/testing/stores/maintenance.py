"""Conformance tests for stores: replays, purges and maintenance."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from penstock.model import lifecycle
from penstock.model.errors import UsageError
from penstock.model.event import EventId
from penstock.model.lifecycle import State
from penstock.model.outcome import PUBLISHED, Dead
from penstock.model.selection import Selection
from penstock.store.api import Store
from penstock.testing.stores.scenario import (
    EVERYTHING,
    STARTED_AT,
    ManualClock,
    StoreScenario,
    claim,
    emit,
    history,
    ids,
    life,
    lives,
    publish,
    record,
    records,
    settle,
    states,
)

DEAD = frozenset({State.DEAD})
SETTLED = frozenset({State.PUBLISHED, State.DEAD})

Choose = Callable[[list[EventId]], Selection]
# Each selects the last two of six settled events: dead, of queue "b" and type "late", created ten seconds later.
CHOICES: dict[str, Choose] = {
    "ids": lambda emitted: Selection(ids=frozenset(emitted[4:])),
    "state": lambda _: Selection(states=DEAD),
    "queue": lambda _: Selection(queue="b"),
    "type": lambda _: Selection(event_type="late"),
    "since": lambda _: Selection(since=STARTED_AT + timedelta(seconds=10)),
    "until": lambda _: Selection(until=STARTED_AT + timedelta(seconds=11), states=DEAD),
    "error": lambda _: Selection(error="disk full"),
    "all of them": lambda emitted: Selection(
        ids=frozenset(emitted), states=SETTLED, queue="b", event_type="late", since=STARTED_AT, error="full"
    ),
}


def six_settled(store: Store, clock: ManualClock) -> list[EventId]:
    emitted = settle(store, PUBLISHED, 4, queue="a", event_type="early")
    clock.advance(10)
    return emitted + settle(store, Dead("the disk full"), 2, queue="b", event_type="late")


class Replaying(StoreScenario):
    @pytest.mark.parametrize("choice", CHOICES)
    def test_replay_takes_only_selected_events(self, store: Store, clock: ManualClock, choice: str) -> None:
        emitted = six_settled(store, clock)
        selection = CHOICES[choice](emitted)
        before = records(store)
        assert store.replay(selection, dry_run=True) == 2
        assert records(store) == before
        assert store.replay(selection) == 2
        assert states(store) == {State.PENDING: 2, State.PUBLISHED: 4}
        assert ids(claim(store, queue="b")) == emitted[4:]

    def test_replay_resets_event_as_lifecycle_defines(self, store: Store, clock: ManualClock) -> None:
        settle(store, Dead("x"), max_attempts=5)
        emit(store)
        claim(store)
        clock.expire_leases()
        store.reap()
        publish(store, claim(store))
        before = records(store)
        assert [(one.attempts, one.deliveries, one.suspect) for one in before] == [(1, 1, 0), (1, 2, 1)]
        at = clock.advance(1_000)
        assert store.replay(EVERYTHING) == 2
        for old, new in zip(before, records(store), strict=True):
            assert life(new) == lifecycle.replay(life(old))
            assert (new.available_at, new.settled_at, new.published_at) == (at, None, None)
            assert (new.created_at, new.seq, new.payload) == (old.created_at, old.seq, old.payload)
            assert (old.state, new.state) in lifecycle.TRANSITIONS
        assert store.ready("outbox")

    def test_replay_is_recorded_in_history(self, store: Store, clock: ManualClock) -> None:
        (dead,), (published,) = settle(store, Dead("no disk")), settle(store, PUBLISHED)
        at = clock.advance(5)
        store.replay(EVERYTHING, by="anna")
        entry = store.history(dead)[-1]
        assert (entry.what, entry.at, entry.by, entry.detail) == ("replayed", at, "anna", "was DEAD: no disk")
        assert [entry.detail for entry in store.history(published)] == ["was PUBLISHED"]
        assert history(store, dead) == ["died", "replayed"]

    def test_replay_takes_only_settled_events(self, store: Store) -> None:
        emit(store, 3)
        claim(store, 1)
        before = records(store)
        assert store.replay(EVERYTHING, dry_run=True) == store.replay(EVERYTHING) == 0
        assert store.replay(Selection(states=frozenset({State.PENDING, State.CLAIMED}))) == 0
        assert records(store) == before

    def test_replays_are_counted(self, store: Store) -> None:
        (emitted,) = settle(store, PUBLISHED)
        for replays in (1, 2, 3):
            assert store.replay(EVERYTHING) == 1
            assert record(store, emitted).replays == replays
            publish(store, claim(store))

    def test_replay_requires_selection(self, store: Store) -> None:
        settle(store, PUBLISHED)
        with pytest.raises(UsageError, match="missing selection for replay"):
            store.replay(Selection())
        assert states(store) == {State.PUBLISHED: 1}


class Purging(StoreScenario):
    def test_purge_keeps_dead_events_unless_selected(self, store: Store, clock: ManualClock) -> None:
        emitted = six_settled(store, clock)
        assert store.purge(EVERYTHING, dry_run=True) == 4
        assert len(records(store)) == 6
        assert store.purge(EVERYTHING) == 4
        assert [one.event_id for one in records(store)] == emitted[4:]
        assert store.purge(Selection(queue="b")) == 0
        assert store.purge(Selection(ids=frozenset(emitted[4:5]))) == 1
        assert store.purge(Selection(states=DEAD)) == 1
        assert records(store) == []

    @pytest.mark.parametrize("choice", ["ids", "state", "until", "all of them"])
    def test_purge_takes_only_selected_events(self, store: Store, clock: ManualClock, choice: str) -> None:
        emitted = six_settled(store, clock)
        assert store.purge(CHOICES[choice](emitted)) == 2
        assert [one.event_id for one in records(store)] == emitted[:4]

    def test_purge_takes_only_settled_events(self, store: Store) -> None:
        emit(store, 2)
        held = claim(store, 1)
        assert store.purge(Selection(states=frozenset(State))) == 0
        assert store.purge(Selection(ids=frozenset(one.event_id for one in records(store)))) == 0
        publish(store, held)

    @pytest.mark.parametrize("batch", [1, 2, 3, 100])
    def test_purge_continues_until_all_batches_are_deleted(self, store: Store, batch: int) -> None:
        kept = settle(store, Dead("kept"), 3)
        settle(store, PUBLISHED, 7)
        assert store.purge(EVERYTHING, batch=batch) == 7
        assert [one.event_id for one in records(store)] == kept

    def test_purge_deletes_history_of_event(self, store: Store) -> None:
        (gone,), (kept,) = settle(store, Dead("x")), settle(store, Dead("y"))
        assert store.purge(Selection(ids=frozenset({gone}))) == 1
        assert history(store, gone) == []
        assert history(store, kept) == ["died"]
        assert emit(store, event_id=gone) == [gone]
        assert history(store, gone) == []

    def test_purge_requires_selection(self, store: Store) -> None:
        settle(store, PUBLISHED)
        with pytest.raises(UsageError, match="missing selection for purge"):
            store.purge(Selection())
        assert states(store) == {State.PUBLISHED: 1}

    def test_stats_count_purged_published_events(self, store: Store) -> None:
        settle(store, PUBLISHED, 3)
        settle(store, PUBLISHED, 2, queue="other")
        settle(store, Dead("x"))
        assert store.stats().purged == {}
        store.purge(Selection(queue="other"))
        store.purge(EVERYTHING, batch=2)
        store.purge(Selection(states=frozenset({State.DEAD})))
        assert store.stats().purged == {"outbox": 3, "other": 2}
        settle(store, PUBLISHED)
        store.pause("outbox")
        store.pause("new")
        store.purge(EVERYTHING)
        assert store.stats().purged == {"outbox": 4, "other": 2}
        assert [control.queue for control in store.controls()] == ["new", "outbox"]


class Tending(StoreScenario):
    def test_maintenance_changes_no_events(self, store: Store, clock: ManualClock) -> None:
        six_settled(store, clock)
        emit(store, 3)
        held = claim(store, 2)
        before = lives(store)
        clock.advance(10 * 86_400)
        store.maintain()
        assert lives(store) == before
        publish(store, held)

    def test_closed_lease_is_remembered_for_one_day(self, store: Store, clock: ManualClock) -> None:
        emit(store)
        held = claim(store)
        publish(store, held)
        emitted = emit(store)
        clock.advance(86_400)
        store.maintain()
        assert not claim(store, lease_id=held.lease.lease_id)
        assert ids(claim(store)) == emitted

    def test_maintenance_keeps_open_deduplication_windows(self, store: Store, clock: ManualClock) -> None:
        first = emit(store, dedupe_key="x", dedupe_seconds=100)
        clock.advance(99)
        store.maintain()
        assert emit(store, dedupe_key="x") == first
        clock.advance(10)
        store.maintain()
        assert emit(store, dedupe_key="x") != first
