"""Conformance tests for stores: paused and limited queues, cancelled events, notes, and heads of queues."""

import pytest

from penstock.model.errors import UsageError
from penstock.model.lease import Settlement
from penstock.model.lifecycle import State, cancel
from penstock.model.outcome import PUBLISHED, RELEASED, Dead, Published, Retry
from penstock.model.records import Note
from penstock.model.selection import Selection
from penstock.model.stats import QueueControl
from penstock.store.api import Store
from penstock.testing.stores.scenario import (
    EVERYTHING,
    ManualClock,
    OpenStore,
    StoreScenario,
    all_to,
    claim,
    emit,
    history,
    ids,
    life,
    needs,
    publish,
    record,
    records,
    seqs,
    settle,
    states,
)


class Pausing(StoreScenario):
    def test_paused_queue_accepts_events_but_yields_none(self, store: Store, clock: ManualClock) -> None:
        store.pause("outbox", by="ada")
        emitted = emit(store, 3)
        assert not store.ready("outbox")
        assert not claim(store)
        assert store.controls() == [QueueControl("outbox", clock(), "ada")]
        assert store.resume("outbox")
        assert store.ready("outbox")
        assert ids(claim(store)) == emitted
        assert store.controls() == []

    def test_pause_applies_to_every_process(self, store: Store, open_store: OpenStore, clock: ManualClock) -> None:
        other = open_store(clock=clock)
        emit(store, ordering_key="k" if store.capabilities.ordering else None)
        emit(store)
        other.pause("outbox")
        assert not claim(store)
        assert not store.ready("outbox")
        other.resume("outbox")
        assert len(claim(store)) == 2
        other.close()

    def test_pause_leaves_open_lease_usable(self, store: Store) -> None:
        emit(store, 2)
        held = claim(store)
        store.pause("outbox")
        assert store.extend([held.lease]) == [held.lease]
        again = claim(store, lease_id=held.lease.lease_id)
        assert ids(again) == ids(held)
        publish(store, again)

    def test_pause_affects_only_its_queue(self, store: Store) -> None:
        store.pause("outbox")
        emit(store, queue="other")
        assert len(claim(store, queue="other")) == 1

    def test_second_pause_keeps_time_and_name_of_first(self, store: Store, clock: ManualClock) -> None:
        since = clock()
        store.pause("outbox", by="ada")
        clock.advance(10)
        store.pause("outbox", by="bob")
        assert store.controls() == [QueueControl("outbox", since, "ada")]

    def test_resume_returns_whether_queue_was_paused(self, store: Store) -> None:
        assert not store.resume("outbox")
        store.pause("outbox")
        assert store.resume("outbox")
        assert not store.resume("outbox")

    def test_pause_and_resume_refuse_invalid_queue_names(self, store: Store) -> None:
        for name in ("", "a\x00b"):
            for verb in (store.pause, store.resume):
                with pytest.raises(UsageError, match="queue"):
                    verb(name)


@needs("limits")
class Limiting(StoreScenario):
    def test_limit_caps_claimed_events(self, store: Store) -> None:
        store.limit("outbox", 3)
        emit(store, 10)
        first = claim(store, 2)
        second = claim(store, 2)
        assert (len(first), len(second)) == (2, 1)
        assert not claim(store)
        publish(store, first)
        assert len(claim(store)) == 2

    def test_reaped_lease_frees_limit(self, store: Store, clock: ManualClock) -> None:
        store.limit("outbox", 1)
        emit(store, 2)
        assert claim(store)
        clock.expire_leases()
        assert not claim(store)
        assert store.reap() == 1
        assert len(claim(store)) == 1

    def test_limit_ignores_other_queues(self, store: Store) -> None:
        store.limit("outbox", 2)
        emit(store, 5, queue="other")
        emit(store, 5)
        assert len(claim(store, queue="other")) == 5
        assert len(claim(store)) == 2

    def test_limit_can_be_changed_and_removed(self, store: Store) -> None:
        store.limit("outbox", 1)
        emit(store, 10)
        assert len(claim(store)) == 1
        store.limit("outbox", 4)
        assert store.controls() == [QueueControl("outbox", max_claimed=4)]
        assert len(claim(store)) == 3
        store.limit("outbox", None)
        assert store.controls() == []
        assert len(claim(store)) == 6

    def test_limit_of_zero_is_refused(self, store: Store) -> None:
        with pytest.raises(UsageError, match="pause the queue"):
            store.limit("outbox", 0)

    def test_limit_refuses_invalid_queue_names(self, store: Store) -> None:
        for name in ("", "a\x00b"):
            with pytest.raises(UsageError, match="queue"):
                store.limit(name, 1)

    def test_limited_queue_is_not_paused(self, store: Store) -> None:
        store.limit("outbox", 2)
        assert not store.resume("outbox")

    @needs("ordering")
    def test_limit_counts_keyed_events(self, store: Store) -> None:
        store.limit("outbox", 2)
        for key in "abc":
            emit(store, 2, ordering_key=key)
        assert len(claim(store)) == 2
        assert not claim(store)


class Cancelling(StoreScenario):
    def test_cancel_makes_pending_event_dead_without_attempt(self, store: Store) -> None:
        (one, other) = emit(store, 2)
        before = life(record(store, one))
        assert store.cancel(Selection(ids=frozenset({one})), reason="sent by mistake", by="ada") == 1
        found = record(store, one)
        assert life(found) == cancel(before, "sent by mistake")
        assert history(store, one) == ["cancelled"]
        assert store.history(one)[0].by == "ada"
        assert ids(claim(store)) == [other]

    def test_cancelled_event_is_lost_to_claimant(self, store: Store) -> None:
        (one, other) = emit(store, 2)
        held = claim(store)
        lost, kept = seqs(held)
        assert store.cancel(Selection(ids=frozenset({one}))) == 1
        settlement = store.settle(held.lease, {lost: PUBLISHED, kept: PUBLISHED})
        assert settlement == Settlement(published=frozenset({kept}), lost=frozenset({lost}))
        assert record(store, one).state is State.DEAD
        assert record(store, other).state is State.PUBLISHED

    def test_cancel_of_last_event_closes_lease(self, store: Store) -> None:
        emitted = emit(store)
        held = claim(store)
        assert store.cancel(Selection(ids=frozenset(emitted))) == 1
        assert store.extend([held.lease]) == []
        assert store.stats().open_leases == 0

    def test_cancel_skips_claimed_events_unless_selected(self, store: Store) -> None:
        emit(store, 2)
        held = claim(store, 1)
        assert store.cancel(EVERYTHING, dry_run=True) == 1
        assert store.cancel(EVERYTHING) == 1
        publish(store, held)
        emit(store)
        claim(store)
        assert store.cancel(Selection(states=frozenset({State.CLAIMED}))) == 1

    def test_cancel_dry_run_only_counts(self, store: Store) -> None:
        emit(store, 3)
        assert store.cancel(Selection(queue="outbox"), dry_run=True) == 3
        assert states(store) == {State.PENDING: 3}

    def test_unsettled_counts_are_by_state_and_queue(self, store: Store) -> None:
        emit(store, 2, queue="mail")
        claim(store, 1, queue="mail")
        emit(store, 3)
        settle(store, PUBLISHED, queue="done")

        def counted(selection: Selection) -> list[tuple[State, str, int]]:
            return [(kind.state, kind.queue, kind.count) for kind in store.unsettled_counts(selection)]

        assert counted(EVERYTHING) == [(State.PENDING, "outbox", 3), (State.PENDING, "mail", 1)]
        assert counted(Selection(queue="mail", states=frozenset({State.CLAIMED}))) == [(State.CLAIMED, "mail", 1)]
        assert counted(Selection(queue="none")) == []

    def test_cancel_reports_progress_and_skips_new_events(self, store: Store) -> None:
        emit(store, 3)
        reported: list[int] = []

        def emit_more(done: int) -> None:
            reported.append(done)
            emit(store)

        assert store.cancel(EVERYTHING, progress=emit_more) == 3
        assert reported[-1] == 3
        assert states(store) == {State.DEAD: 3, State.PENDING: len(reported)}

    def test_cancel_leaves_settled_events_unchanged(self, store: Store) -> None:
        emitted = settle(store, PUBLISHED) + settle(store, Dead("x"))
        before = records(store)
        assert store.cancel(Selection(ids=frozenset(emitted))) == 0
        assert store.cancel(EVERYTHING) == 0
        assert records(store) == before

    def test_cancelled_event_can_be_replayed(self, store: Store) -> None:
        emitted = emit(store)
        store.cancel(EVERYTHING)
        assert store.replay(Selection(ids=frozenset(emitted))) == 1
        assert ids(claim(store)) == emitted

    @needs("ordering")
    def test_cancel_of_first_event_unblocks_key(self, store: Store) -> None:
        (first,) = emit(store, ordering_key="k", delay_seconds=3_600)
        (second,) = emit(store, ordering_key="k")
        assert not claim(store)
        store.cancel(Selection(ids=frozenset({first})))
        assert ids(claim(store)) == [second]

    @needs("ordering")
    def test_cancel_of_claimed_event_keeps_order_of_key(self, store: Store) -> None:
        first, second, third = emit(store, 3, ordering_key="k")
        held = claim(store, 2)
        assert ids(held) == [first, second]
        store.cancel(Selection(ids=frozenset({first})))
        assert not claim(store)
        store.settle(held.lease, {seqs(held)[1]: Retry("x", 0)})
        assert ids(claim(store)) == [second, third]

    def test_cancel_requires_selection(self, store: Store) -> None:
        with pytest.raises(UsageError, match="missing selection"):
            store.cancel(Selection())


class Noting(StoreScenario):
    def test_progress_and_result_are_stored(self, store: Store) -> None:
        one, other = emit(store, 2)
        held = claim(store)
        first, second = seqs(held)
        assert store.note(held.lease, {first: b"1"}) == {first}
        assert store.note(held.lease, {first: b"\x00\xff", second: b"3"}) == {first, second}
        assert store.notes([one, other]) == {one: Note(b"\x00\xff"), other: Note(b"3")}
        store.settle(held.lease, {first: Published(b"done"), second: Published()})
        assert store.notes([one, other]) == {one: Note(b"\x00\xff", b"done"), other: Note(b"3")}

    def test_result_is_stored_without_progress(self, store: Store) -> None:
        (one,) = settle(store, Published(b"{}"))
        assert store.notes([one]) == {one: Note(None, b"{}")}
        assert record(store, one).state is State.PUBLISHED

    def test_event_without_note_is_omitted(self, store: Store) -> None:
        emitted = settle(store, PUBLISHED)
        assert store.notes(emitted) == {}
        assert store.notes([]) == {}

    def test_stale_token_stores_no_note(self, store: Store) -> None:
        emitted = emit(store)
        stale = claim(store)
        claim(store, lease_id=stale.lease.lease_id, claimant="another")
        assert store.note(stale.lease, {seqs(stale)[0]: b"x"}) == frozenset()
        store.settle(stale.lease, {seqs(stale)[0]: Published(b"x")})
        assert store.notes(emitted) == {}

    def test_note_ignores_events_of_other_leases(self, store: Store) -> None:
        emit(store, 2)
        mine, other = claim(store, 1), claim(store, 1)
        assert store.note(mine.lease, {seqs(other)[0]: b"x"}) == frozenset()
        assert store.notes(ids(other)) == {}

    def test_replay_and_purge_delete_notes(self, store: Store) -> None:
        emitted = settle(store, Published(b"x"))
        store.replay(Selection(ids=frozenset(emitted)))
        assert store.notes(emitted) == {}
        held = claim(store)
        store.settle(held.lease, all_to(Published(b"y"), held))
        store.purge(Selection(ids=frozenset(emitted)))
        assert store.notes(emitted) == {}


class DiscardingSettled(StoreScenario):
    def test_settle_without_keep_deletes_settled_events(self, store: Store) -> None:
        emit(store, 4)
        held = claim(store)
        published, kept, dead, retried = seqs(held)
        settlement = store.settle(
            held.lease,
            {
                published: Published(b"result", keep=False),
                kept: PUBLISHED,
                dead: Dead("x", keep=False),
                retried: Retry("x", 0, keep=False),
            },
        )
        assert settlement.published == {published, kept}
        assert settlement.dead == {dead}
        assert settlement.retried == {retried}
        assert states(store) == {State.PENDING: 1, State.PUBLISHED: 1}
        assert store.notes(ids(held)) == {}

    def test_last_attempt_without_keep_deletes_event(self, store: Store) -> None:
        emitted = emit(store, max_attempts=1)
        held = claim(store)
        settlement = store.settle(held.lease, all_to(Retry("x", 0, keep=False), held))
        assert settlement.dead == set(seqs(held))
        assert records(store) == []
        assert store.history(emitted[0]) == []

    def test_settle_without_keep_spares_lost_events(self, store: Store) -> None:
        emitted = emit(store)
        stale = claim(store)
        held = claim(store, lease_id=stale.lease.lease_id)
        settlement = store.settle(stale.lease, all_to(Published(keep=False), stale))
        assert settlement.lost == set(seqs(stale))
        assert record(store, emitted[0]).state is State.CLAIMED
        publish(store, held)
        store.settle(held.lease, all_to(Published(keep=False), held))
        assert record(store, emitted[0]).state is State.PUBLISHED

    def test_repeated_settle_reports_deleted_event_as_lost(self, store: Store) -> None:
        emit(store)
        held = claim(store)
        store.settle(held.lease, all_to(Published(keep=False), held))
        assert store.settle(held.lease, all_to(Published(keep=False), held)).lost == set(seqs(held))


class Heads(StoreScenario):
    def test_heads_are_ordered_by_priority_and_age(self, store: Store, clock: ManualClock) -> None:
        emit(store, 2, queue="jobs/b")
        clock.advance(1)
        emit(store, queue="jobs/a")
        emit(store, queue="jobs/c", priority=5)
        emit(store, queue="elsewhere")
        assert [head.queue for head in store.heads("jobs/")] == ["jobs/c", "jobs/b", "jobs/a"]
        assert [head.queue for head in store.heads("jobs/", queues=["jobs/a", "jobs/b", "jobs/none"])] == [
            "jobs/b",
            "jobs/a",
        ]
        assert store.heads("nothing") == []

    def test_head_is_next_claimed_event(self, store: Store, clock: ManualClock) -> None:
        emit(store, 2, queue="jobs/a", priority=-1)
        clock.advance(1)
        emit(store, 2, queue="jobs/a")
        (head,) = store.heads("jobs/")
        held = claim(store, 1, queue="jobs/a")
        assert (head.seq, head.available_at, -head.rank) == (seqs(held)[0], clock(), 0)

    def test_heads_omit_queues_without_ready_events(self, store: Store, clock: ManualClock) -> None:
        emit(store, queue="jobs/late", delay_seconds=10, priority=9)
        emit(store, queue="jobs/late", delay_seconds=5)
        emit(store, queue="jobs/held", ordering_key="k" if store.capabilities.ordering else None)
        emit(store, queue="jobs/paused")
        store.pause("jobs/paused")
        held = claim(store, queue="jobs/held")
        assert store.heads("jobs/") == []
        clock.advance(5)
        assert [head.queue for head in store.heads("jobs/")] == ["jobs/late"]
        store.settle(held.lease, all_to(RELEASED, held))
        assert {head.queue for head in store.heads("jobs/")} == {"jobs/late", "jobs/held"}

    def test_heads_match_queue_prefix_literally(self, store: Store) -> None:
        for queue in ("jobs/%", "jobs/_", "jobsx", "Jobs/a", "jobs"):
            emit(store, queue=queue)
        assert {head.queue for head in store.heads("jobs/")} == {"jobs/%", "jobs/_"}
        assert {head.queue for head in store.heads("jobs/%")} == {"jobs/%"}
