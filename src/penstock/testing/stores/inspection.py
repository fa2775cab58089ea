"""Conformance tests for stores: finding events by selection and page, statistics, relays, declared capabilities."""

from datetime import timedelta
from uuid import uuid4

import pytest

from penstock.model.errors import UsageError
from penstock.model.event import EventId
from penstock.model.lifecycle import State
from penstock.model.outcome import PUBLISHED, Dead, Retry
from penstock.model.selection import Selection
from penstock.model.stats import QueueStats, Relay
from penstock.store.api import StagedPart, Store
from penstock.testing.stores.scenario import (
    EVERYTHING,
    STARTED_AT,
    ManualClock,
    StoreScenario,
    claim,
    emit,
    event,
    publish,
    record,
    records,
    seqs,
    settle,
    states,
)

CAPABILITIES = ("insert_into_view", "limits", "ordering", "routing", "staging")


def one_of_each(store: Store) -> dict[State, EventId]:
    """Create an event in every state, each with a different queue and type."""
    found = {
        State.PUBLISHED: settle(store, PUBLISHED, queue="q-PUBLISHED", event_type="t-PUBLISHED")[0],
        State.DEAD: settle(store, Dead("the Disk is 100% full"), queue="q-DEAD", event_type="t-DEAD")[0],
        State.CLAIMED: emit(store, queue="q-CLAIMED", event_type="t-CLAIMED")[0],
        State.PENDING: emit(store, queue="q-PENDING", event_type="t-PENDING")[0],
    }
    assert claim(store, queue="q-CLAIMED")
    return found


def found_by(store: Store, selection: Selection) -> set[EventId]:
    return {one.event_id for one in records(store, selection)}


class FindingEvents(StoreScenario):
    @pytest.mark.parametrize("state", State)
    def test_find_by_state_queue_type_or_id(self, store: Store, state: State) -> None:
        there = one_of_each(store)
        for selection in (
            Selection(states=frozenset({state})),
            Selection(queue=f"q-{state}"),
            Selection(event_type=f"t-{state}"),
            Selection(ids=frozenset({there[state], EventId(uuid4())})),
        ):
            assert found_by(store, selection) == {there[state]}, selection
        assert record(store, there[state]).state is state

    def test_find_by_several_states(self, store: Store) -> None:
        there = one_of_each(store)
        for wanted_states in (set(State), {State.PENDING, State.DEAD}, {State.PUBLISHED, State.CLAIMED}, set()):
            wanted = {there[state] for state in wanted_states}
            assert found_by(store, Selection(states=frozenset(wanted_states))) == wanted

    def test_find_returns_everything_by_default(self, store: Store) -> None:
        there = one_of_each(store)
        assert found_by(store, EVERYTHING) == found_by(store, Selection()) == set(there.values())

    def test_find_by_time_includes_since_and_excludes_until(self, store: Store, clock: ManualClock) -> None:
        emitted = []
        for _ in range(4):
            emitted += emit(store)
            clock.advance(10)
        since, until = STARTED_AT + timedelta(seconds=10), STARTED_AT + timedelta(seconds=30)
        assert found_by(store, Selection(since=since)) == set(emitted[1:])
        assert found_by(store, Selection(until=until)) == set(emitted[:3])
        assert found_by(store, Selection(since=since, until=until)) == set(emitted[1:3])

    @pytest.mark.parametrize("error", ["100% full", "disk IS", "the Disk is 100% full", "%"])
    def test_find_by_error_matches_substring_in_any_case(self, store: Store, error: str) -> None:
        there = one_of_each(store)
        assert found_by(store, Selection(error=error)) == {there[State.DEAD]}

    @pytest.mark.parametrize("error", ["100_", "Disk%full", "no such", "\\"])
    def test_find_by_error_has_no_wildcards(self, store: Store, error: str) -> None:
        one_of_each(store)
        assert found_by(store, Selection(error=error)) == set()

    @pytest.mark.parametrize("text", ["Größe fehlt", "ОШИБКА сети", "ΛΆΘΟΣ", "1\n2[3](4){5}|6^7$8.9*+?", "c:\\new 🚰"])
    def test_find_by_error_ignores_case_in_every_script(self, store: Store, text: str) -> None:
        (dead,) = settle(store, Dead(f"before {text} after"))
        settle(store, Dead("something else"))
        for error in (text, text.lower(), text.upper().replace("SS", "ß")):
            assert found_by(store, Selection(error=error)) == {dead}, error

    @pytest.mark.parametrize("error", ["grosse", "GRÖSSE", "große", "größe "])
    def test_find_by_error_respects_accents_and_spaces(self, store: Store, error: str) -> None:
        settle(store, Dead("Größe"))
        assert found_by(store, Selection(error=error)) == set()

    def test_find_by_empty_error_matches_every_error(self, store: Store) -> None:
        dead = one_of_each(store)[State.DEAD]
        assert found_by(store, Selection(error="")) == {dead}

    def test_find_combines_all_criteria(self, store: Store) -> None:
        dead = one_of_each(store)[State.DEAD]
        both = Selection(queue="q-DEAD", event_type="t-DEAD", states=frozenset({State.DEAD}), error="full")
        assert found_by(store, both) == {dead}
        assert found_by(store, Selection(queue="q-DEAD", event_type="t-PENDING")) == set()
        assert found_by(store, Selection(ids=frozenset())) == set()

    def test_pages_are_newest_first_and_end(self, store: Store) -> None:
        emitted = emit(store, 7)
        publish(store, claim(store, 3))
        claim(store, 2)
        after, pages = None, []
        for _ in range(4):
            page = store.find(EVERYTHING, after=after, limit=2)
            pages.append([one.event_id for one in page.records])
            after = page.after
        assert pages == [emitted[6:4:-1], emitted[4:2:-1], emitted[2:0:-1], emitted[:1]]
        assert after is None

    def test_exactly_full_page_is_last(self, store: Store) -> None:
        emit(store, 4)
        assert store.find(EVERYTHING, limit=4).after is None
        assert store.find(EVERYTHING, limit=3).after is not None
        assert list(store.find(Selection(queue="none")).records) == []

    def test_pages_are_stable_while_events_change(self, store: Store) -> None:
        emitted = emit(store, 30)
        seen: list[EventId] = []
        after = None
        for _ in range(10):
            page = store.find(EVERYTHING, after=after, limit=3)
            seen += [one.event_id for one in page.records]
            after = page.after
            emit(store, 2)
            publish(store, claim(store, 3))
        assert seen == emitted[::-1]
        assert after is None

    def test_claim_fields_are_set_only_while_claimed(self, store: Store) -> None:
        one_of_each(store)
        for found in records(store):
            claimed = found.state is State.CLAIMED
            assert (found.claimed_at is not None) == claimed
            assert (found.claimed_by is not None) == claimed
            assert (found.lease_expires_at is not None) == claimed
            assert (found.published_at is not None) == (found.state is State.PUBLISHED)
            assert (found.settled_at is not None) == (found.state in (State.PUBLISHED, State.DEAD))


class Counting(StoreScenario):
    def test_stats_of_empty_store_are_zero(self, store: Store) -> None:
        stats = store.stats()
        assert (list(stats.queues), stats.open_leases, stats.expired_leases) == ([], 0, 0)
        assert (list(stats.relays), list(stats.dead_errors), stats.oldest_pending_seconds) == ([], [], None)
        assert stats.total("pending") == 0

    def test_stats_count_states_per_queue(self, store: Store, clock: ManualClock) -> None:
        settle(store, PUBLISHED, 4, queue="a")
        settle(store, Dead("x"), 3, queue="a")
        emit(store, 7, queue="a")
        claim(store, 2, queue="a")
        emit(store, 2, queue="a", delay_seconds=500)
        emit(store, 1, queue="b", ordering_key="k" if store.capabilities.ordering else None)
        clock.advance(30)
        assert list(store.stats().queues) == [
            QueueStats("a", pending=7, ready=5, claimed=2, published=4, dead=3, oldest_pending_seconds=30.0),
            QueueStats("b", pending=1, ready=1, oldest_pending_seconds=30.0),
        ]
        assert store.stats().total("pending") == 8
        assert store.stats().oldest_pending_seconds == 30.0

    def test_delayed_event_is_pending_but_not_late(self, store: Store) -> None:
        emit(store, delay_seconds=60)
        (queue,) = store.stats().queues
        assert (queue.pending, queue.ready, queue.oldest_pending_seconds) == (1, 0, 0.0)

    def test_stats_count_open_and_expired_leases(self, store: Store, clock: ManualClock) -> None:
        emit(store, 3)
        claim(store, 1)
        clock.expire_leases()
        publish(store, claim(store, 1))
        claim(store, 1)
        assert (store.stats().open_leases, store.stats().expired_leases) == (2, 1)
        store.reap()
        assert (store.stats().open_leases, store.stats().expired_leases) == (1, 0)

    def test_stats_list_most_common_dead_errors_first(self, store: Store) -> None:
        for error, count in (("rare", 1), ("common", 3), ("some", 2)):
            settle(store, Dead(error), count)
        failed = settle(store, Retry("not dead", 900))
        assert list(store.stats().dead_errors) == [("common", 3), ("some", 2), ("rare", 1)]
        assert record(store, failed[0]).state is State.PENDING


class Relays(StoreScenario):
    RELAY = Relay(uuid4(), "outbox", "file:///var/out", "host-1")

    def test_announced_relay_is_listed_with_last_heartbeat(self, store: Store, clock: ManualClock) -> None:
        assert store.announce(self.RELAY) is False
        clock.advance(5)
        assert store.announce(self.RELAY) is False
        clock.advance(2)
        (seen,) = store.stats().relays
        assert (seen.relay_id, seen.queue, seen.destination, seen.host) == (
            self.RELAY.relay_id,
            self.RELAY.queue,
            self.RELAY.destination,
            self.RELAY.host,
        )
        assert (seen.started_at, seen.seen_seconds_ago, seen.stopping) == (STARTED_AT, 2.0, False)

    def test_stop_request_persists_across_announcements(self, store: Store) -> None:
        store.announce(self.RELAY)
        assert store.asked_to_stop(self.RELAY.relay_id) is False
        assert store.announce(self.RELAY, stopping=True) is True
        assert store.announce(self.RELAY) is True
        assert store.asked_to_stop(self.RELAY.relay_id) is True
        assert store.stats().relays[0].stopping is True

    def test_stop_request_affects_only_its_relay(self, store: Store) -> None:
        other = Relay(uuid4(), "outbox", "null:", "host-2")
        store.announce(self.RELAY)
        store.announce(other, stopping=True)
        assert store.asked_to_stop(self.RELAY.relay_id) is False
        assert store.announce(self.RELAY) is False
        assert len(store.stats().relays) == 2

    def test_withdrawn_relay_is_forgotten(self, store: Store) -> None:
        store.announce(self.RELAY, stopping=True)
        store.withdraw(self.RELAY.relay_id)
        assert list(store.stats().relays) == []
        assert store.asked_to_stop(self.RELAY.relay_id) is False
        assert store.announce(self.RELAY) is False

    def test_maintenance_forgets_silent_relay(self, store: Store, clock: ManualClock) -> None:
        store.announce(self.RELAY)
        clock.advance(299)
        store.maintain()
        assert len(store.stats().relays) == 1
        clock.advance(2)
        store.maintain()
        assert list(store.stats().relays) == []


class Undeclared(StoreScenario):
    def test_lacks_lists_undeclared_capabilities(self, store: Store) -> None:
        assert sorted(self.lacks) == [name for name in CAPABILITIES if not getattr(store.capabilities, name)]

    def test_undeclared_capabilities_are_refused_and_change_nothing(self, store: Store) -> None:
        emit(store)
        held = claim(store)
        part = StagedPart(uuid4(), uuid4())
        if not store.capabilities.ordering:
            with pytest.raises(UsageError, match="ordering key"):
                store.append([event(), event(ordering_key="k")])
        if not store.capabilities.routing:
            with pytest.raises(UsageError, match="route"):
                store.route(held.lease, {seqs(held)[0]: ["there"]})
        if not store.capabilities.limits:
            with pytest.raises(UsageError, match="limit"):
                store.limit("outbox", 1)
        if not store.capabilities.staging:
            for verb in (
                lambda: store.stage(part, [event()]),
                lambda: store.commit_staged(part.write_id, 0, {part.part_id: 1}, once=True),
                lambda: store.drop_staged(part.write_id),
            ):
                with pytest.raises(UsageError, match="stag"):
                    verb()
        assert states(store) == {State.CLAIMED: 1}
        assert store.controls() == []
