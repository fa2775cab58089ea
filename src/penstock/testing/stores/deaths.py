"""Conformance tests for stores: dead letters, listed by time of death and counted by queue and kind of error."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from penstock.model.dead_letters import Death, DeathCount, DeathMark
from penstock.model.error_kinds import BEGINNING
from penstock.model.event import EventId
from penstock.model.lifecycle import State
from penstock.model.outcome import PUBLISHED, Dead, Retry
from penstock.model.selection import Selection
from penstock.store.api import Store
from penstock.testing.stores.scenario import (
    EVERYTHING,
    STARTED_AT,
    ManualClock,
    StoreScenario,
    all_to,
    claim,
    emit,
    ids,
    needs,
    record,
    settle,
)

Choose = Callable[[list[EventId]], Selection]
# Each selects the last two of four dead events.
CHOICES: dict[str, Choose] = {
    "ids": lambda dead: Selection(ids=frozenset(dead[2:])),
    "queue": lambda _: Selection(queue="b"),
    "type": lambda _: Selection(event_type="late"),
    "since": lambda _: Selection(since=STARTED_AT + timedelta(seconds=10)),
    "error": lambda _: Selection(error="FULL"),
    "all of them": lambda dead: Selection(
        ids=frozenset(dead),
        states=frozenset({State.DEAD}),
        queue="b",
        event_type="late",
        since=STARTED_AT,
        error="disk",
    ),
}


def four_dead(store: Store, clock: ManualClock) -> list[EventId]:
    """Create four dead events, beside events in every other state."""
    settle(store, PUBLISHED, queue="b", event_type="late")
    settle(store, Retry("the disk is full", 900), queue="b", event_type="late")
    dead = settle(store, Dead("no route"), 2, queue="a", event_type="early")
    clock.advance(10)
    dead += settle(store, Dead("the disk is full"), 2, queue="b", event_type="late")
    emit(store, queue="b", event_type="late")
    assert claim(store, queue="b")
    return dead


def listed(store: Store, selection: Selection = EVERYTHING) -> list[EventId]:
    return [death.event_id for death in store.deaths(selection).deaths]


class ListingDeaths(StoreScenario):
    def test_deaths_are_listed_latest_first(self, store: Store, clock: ManualClock) -> None:
        old, middle, new = (emit(store, queue=queue)[0] for queue in "abc")
        for queue in "cab":
            clock.advance(1)
            claimed = claim(store, queue=queue)
            store.settle(claimed.lease, all_to(Dead("x"), claimed))
        assert listed(store) == [middle, old, new]

    def test_death_has_all_listed_fields(self, store: Store, clock: ManualClock) -> None:
        (event_id,) = settle(store, Retry("first", 0), queue="q", event_type="t", payload=b"large")
        clock.advance(60)
        claimed = claim(store, queue="q")
        store.settle(claimed.lease, all_to(Dead("why\n" + "x" * 2 * BEGINNING), claimed))
        (death,) = store.deaths(EVERYTHING).deaths
        assert death == Death(
            seq=record(store, event_id).seq,
            event_id=event_id,
            event_type="t",
            queue="q",
            attempts=2,
            replays=0,
            created_at=STARTED_AT,
            died_at=STARTED_AT + timedelta(seconds=60),
            error=("why\n" + "x" * 2 * BEGINNING)[:BEGINNING],
        )

    @pytest.mark.parametrize("choice", CHOICES)
    def test_selection_narrows_deaths(self, store: Store, clock: ManualClock, choice: str) -> None:
        dead = four_dead(store, clock)
        assert listed(store) == dead[::-1]
        assert listed(store, CHOICES[choice](dead)) == dead[:1:-1]

    def test_deaths_contain_only_dead_events(self, store: Store, clock: ManualClock) -> None:
        four_dead(store, clock)
        others = frozenset(State) - {State.DEAD}
        assert listed(store, Selection(states=others)) == []
        assert list(store.death_counts(Selection(states=others))) == []
        assert len(listed(store, Selection(states=frozenset(State)))) == 4
        assert listed(store, Selection(ids=frozenset())) == []

    def test_death_pages_continue_among_equal_times(self, store: Store, clock: ManualClock) -> None:
        dead = settle(store, Dead("x"), 5)
        clock.advance(0.000001)
        dead += settle(store, Dead("x"), 4)
        after: DeathMark | None = None
        pages = []
        for _ in range(4):
            page = store.deaths(EVERYTHING, after=after, limit=3)
            pages.append([death.event_id for death in page.deaths])
            after = page.after
            if after is None:
                break
        assert [len(page) for page in pages] == [3, 3, 3]
        assert [one for page in pages for one in page] == dead[::-1]

    def test_death_pages_are_stable_under_deaths_and_replays(self, store: Store, clock: ManualClock) -> None:
        dead = settle(store, Dead("x"), 6)
        first = store.deaths(EVERYTHING, limit=2)
        clock.advance(1)
        settle(store, Dead("new"), 2, queue="q")
        store.replay(Selection(ids=frozenset({dead[3], dead[5]})))
        rest = store.deaths(EVERYTHING, after=first.after, limit=10)
        assert [death.event_id for death in rest.deaths] == [dead[2], dead[1], dead[0]]
        assert rest.after is None

    def test_event_that_dies_again_is_listed_with_last_death(self, store: Store, clock: ManualClock) -> None:
        (event_id,) = settle(store, Dead("first"))
        store.replay(EVERYTHING)
        at = clock.advance(30)
        claimed = claim(store)
        store.settle(claimed.lease, all_to(Dead("second"), claimed))
        (death,) = store.deaths(EVERYTHING).deaths
        assert (death.event_id, death.died_at, death.replays, death.error) == (event_id, at, 1, "second")

    @needs("routing")
    def test_each_copy_of_event_has_separate_death(self, store: Store) -> None:
        (event_id,) = emit(store)
        claimed = claim(store)
        store.route(claimed.lease, {claimed.events[0].seq: ["a", "b"]})
        for queue in "ab":
            copy = claim(store, queue=queue)
            assert ids(copy) == [event_id]
            store.settle(copy.lease, all_to(Dead(f"in {queue}"), copy))
        found = [(death.event_id, death.queue, death.error) for death in store.deaths(EVERYTHING).deaths]
        assert sorted(found) == [(event_id, "a", "in a"), (event_id, "b", "in b")]


class CountingDeaths(StoreScenario):
    def test_death_counts_group_by_queue_and_error_kind(self, store: Store) -> None:
        for number in (7, 12, 1_999):
            settle(store, Dead(f"order {number} is unknown\n  File x, line {number}"), queue="orders")
        settle(store, Dead("order 8 is unknown"), queue="returns")
        settle(store, Dead("Order 8 is unknown"), queue="returns")
        assert list(store.death_counts(EVERYTHING)) == [
            DeathCount("orders", "order # is unknown", 3),
            DeathCount("returns", "Order # is unknown", 1),
            DeathCount("returns", "order # is unknown", 1),
        ]

    def test_death_counts_start_with_most_common(self, store: Store) -> None:
        for error, count in (("rare", 1), ("common", 3), ("some", 2)):
            settle(store, Dead(error), count)
        assert [(one.error, one.count) for one in store.death_counts(EVERYTHING)] == [
            ("common", 3),
            ("some", 2),
            ("rare", 1),
        ]

    @pytest.mark.parametrize("choice", CHOICES)
    def test_selection_narrows_death_counts(self, store: Store, clock: ManualClock, choice: str) -> None:
        selection = CHOICES[choice](four_dead(store, clock))
        assert list(store.death_counts(selection)) == [DeathCount("b", "the disk is full", 2)]

    def test_deaths_are_empty_without_dead_letters(self, store: Store) -> None:
        settle(store, PUBLISHED)
        assert list(store.death_counts(EVERYTHING)) == []
        assert list(store.deaths(EVERYTHING).deaths) == []
