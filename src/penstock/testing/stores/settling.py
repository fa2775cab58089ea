"""Conformance tests for stores: settling.

A settled event has the state that `penstock.model.lifecycle` gives, an attempt is counted once, and a repeated settle
reports the events as already settled.
"""

from datetime import timedelta
from uuid import UUID

import pytest

from penstock.model import lifecycle
from penstock.model.event import EventId
from penstock.model.lease import Claim, Settlement
from penstock.model.lifecycle import State
from penstock.model.outcome import PUBLISHED, RELEASED, Dead, Outcome, Published, Retry
from penstock.model.selection import Selection
from penstock.store.api import Store
from penstock.testing.stores.scenario import (
    ManualClock,
    StoreScenario,
    all_to,
    claim,
    emit,
    history,
    ids,
    life,
    publish,
    record,
    records,
    seqs,
    states,
)

OUTCOMES: dict[str, Outcome] = {
    "published": PUBLISHED,
    "retried": Retry("try later", 0),
    "dead": Dead("never again"),
    "released": RELEASED,
}
PASTS = ["fresh", "failed", "suspect", "replayed"]


def with_a_past(store: Store, clock: ManualClock, past: str) -> EventId:
    """Emit an event with earlier attempts, lost leases or a replay, whose counts the next step must continue."""
    (emitted,) = emit(store)
    match past:
        case "failed":
            for _ in range(3):
                failed = claim(store)
                store.settle(failed.lease, all_to(Retry("failed", 0), failed))
        case "suspect":
            for _ in range(2):
                claim(store)
                clock.expire_leases()
                assert store.reap() == 1
        case "replayed":
            buried = claim(store)
            store.settle(buried.lease, all_to(Dead("buried"), buried))
            store.replay(Selection(ids=frozenset({emitted})))
    return emitted


class SettlingLeases(StoreScenario):
    @pytest.mark.parametrize("past", PASTS)
    @pytest.mark.parametrize("name", OUTCOMES)
    def test_settle_follows_lifecycle(self, store: Store, clock: ManualClock, name: str, past: str) -> None:
        emitted = with_a_past(store, clock, past)
        held = claim(store)
        before = record(store, emitted)
        at = clock.advance(3)
        settlement = store.settle(held.lease, all_to(OUTCOMES[name], held))
        assert settlement == Settlement(**{name: frozenset(seqs(held))})
        assert settlement.applied == 1
        after = record(store, emitted)
        assert life(after) == lifecycle.settle(life(before), OUTCOMES[name])
        assert (life(before).state, life(after).state) in lifecycle.TRANSITIONS
        assert (after.claimed_at, after.claimed_by, after.lease_expires_at) == (None, None, None)
        assert after.published_at == (at if name == "published" else None)
        assert after.settled_at == (at if name in ("published", "dead") else None)
        assert after.available_at == (at if name == "retried" else before.available_at)

    @pytest.mark.parametrize("own_limit", [None, 2])
    def test_retry_at_last_attempt_makes_event_dead(self, store: Store, own_limit: int | None) -> None:
        (emitted,) = emit(store, max_attempts=own_limit)
        for last in (False, True):
            held = claim(store, max_attempts=2 if own_limit is None else 9)
            before = life(record(store, emitted))
            settlement = store.settle(held.lease, all_to(Retry("no", 0), held))
            assert settlement == Settlement(**{"dead" if last else "retried": frozenset(seqs(held))})
            assert life(record(store, emitted)) == lifecycle.settle(before, Retry("no"), max_attempts=2)
        assert record(store, emitted).state is State.DEAD
        assert not claim(store)

    def test_event_limit_overrides_attempt_limit_of_lease(self, store: Store) -> None:
        (emitted,) = emit(store, max_attempts=3)
        for _ in range(2):
            held = claim(store, max_attempts=1)
            assert store.settle(held.lease, all_to(Retry("no", 0), held)).retried == set(seqs(held))
        assert record(store, emitted).attempts == 2

    def test_retry_waits_for_its_delay(self, store: Store, clock: ManualClock) -> None:
        emit(store, 2)
        first, second = claim(store, 1), claim(store, 1)
        store.settle(first.lease, all_to(Retry("no", 30.5), first))
        store.settle(second.lease, all_to(Retry("no"), second))
        assert not claim(store)
        clock.advance(0.999)
        assert not claim(store)
        clock.advance(0.001)
        assert ids(claim(store)) == ids(second)
        clock.advance(29.499)
        assert not claim(store)
        clock.advance(0.001)
        assert ids(claim(store)) == ids(first)

    @pytest.mark.parametrize("delay", [-5.0, 1e18, float("inf"), float("nan")])
    def test_extreme_retry_delay_is_accepted(self, store: Store, clock: ManualClock, delay: float) -> None:
        """A destination can request any delay."""
        (emitted,) = emit(store)
        held = claim(store)
        assert store.settle(held.lease, all_to(Retry("no", delay), held)).retried == set(seqs(held))
        assert record(store, emitted).available_at >= clock.now
        assert store.stats().total("pending") == 1

    @pytest.mark.parametrize("error", ["", "a\x00b", "lone \ud800 surrogate", "'quoted' %s :now\n\\", "é" * 20_000])
    @pytest.mark.parametrize("kind", [Retry, Dead])
    def test_error_can_contain_any_text(self, store: Store, kind: type[Retry | Dead], error: str) -> None:
        (emitted,) = emit(store)
        held = claim(store)
        assert store.settle(held.lease, all_to(kind(error), held)).applied == 1
        kept = error.replace("\x00", "�").replace("\ud800", "?")
        assert record(store, emitted).last_error == kept
        assert store.history(emitted)[0].detail == kept

    def test_one_settle_applies_all_kinds_of_outcome(self, store: Store) -> None:
        emit(store, 8)
        held = claim(store)
        outcomes = dict(zip(seqs(held), list(OUTCOMES.values()) * 2, strict=True))
        settlement = store.settle(held.lease, outcomes)
        assert settlement == Settlement(*(frozenset(seqs(held)[place::4]) for place in range(4)))
        assert settlement.applied == 8
        assert states(store) == {State.PENDING: 4, State.PUBLISHED: 2, State.DEAD: 2}

    def test_empty_settle_changes_nothing(self, store: Store) -> None:
        emit(store)
        held = claim(store)
        assert store.settle(held.lease, {}) == Settlement()
        publish(store, held)

    def test_settle_reports_unknown_events_as_lost(self, store: Store) -> None:
        emit(store, 2)
        held = claim(store, 1)
        strangers: dict[int, Outcome] = {10**6: PUBLISHED, 10**6 + 1: Dead("x"), 10**6 + 2: RELEASED}
        settlement = store.settle(held.lease, {**strangers, **all_to(PUBLISHED, held)})
        assert settlement == Settlement(published=frozenset(seqs(held)), lost=frozenset(strangers))
        assert states(store) == {State.PENDING: 1, State.PUBLISHED: 1}

    def test_lease_is_open_until_last_event_is_settled(self, store: Store) -> None:
        emit(store, 3)
        held = claim(store)
        for seq, left in zip(seqs(held), (1, 1, 0), strict=True):
            assert store.settle(held.lease, {seq: PUBLISHED}).published == {seq}
            assert store.stats().open_leases == left


class SettlingAgain(StoreScenario):
    """A caller repeats a settle if the answer to its commit was lost.

    The repeat reports "already settled", not "lost".
    """

    @pytest.mark.parametrize("name", OUTCOMES)
    def test_repeated_settle_reports_already_settled(self, store: Store, name: str) -> None:
        emit(store, 2)
        held = claim(store)
        store.settle(held.lease, all_to(OUTCOMES[name], held))
        before = records(store)
        for _ in range(2):
            settlement = store.settle(held.lease, all_to(OUTCOMES[name], held))
            assert settlement == Settlement(already_settled=frozenset(seqs(held)))
        assert records(store) == before

    @pytest.mark.parametrize("name", OUTCOMES)
    def test_partly_repeated_settle_reports_already_settled(self, store: Store, name: str) -> None:
        emit(store, 3)
        held = claim(store)
        first, second, third = seqs(held)
        store.settle(held.lease, {first: OUTCOMES[name]})
        settlement = store.settle(held.lease, {first: OUTCOMES[name], second: PUBLISHED})
        assert settlement == Settlement(published=frozenset({second}), already_settled=frozenset({first}))
        settlement = store.settle(held.lease, {first: OUTCOMES[name], third: Dead("x")})
        assert settlement == Settlement(dead=frozenset({third}), already_settled=frozenset({first}))

    @pytest.mark.parametrize("name", OUTCOMES)
    def test_first_outcome_is_final(self, store: Store, name: str) -> None:
        emit(store, 2)
        held = claim(store)
        first = seqs(held)[0]
        store.settle(held.lease, {first: OUTCOMES[name]})
        before = records(store)
        for other in OUTCOMES.values():
            assert store.settle(held.lease, {first: other}) == Settlement(already_settled=frozenset({first}))
        assert records(store) == before

    def test_event_settled_by_later_lease_is_lost(self, store: Store, clock: ManualClock) -> None:
        emit(store)
        slept = claim(store)
        clock.expire_leases()
        store.reap()
        publish(store, claim(store))
        assert store.settle(slept.lease, all_to(PUBLISHED, slept)) == Settlement(lost=frozenset(seqs(slept)))


class Timelines(StoreScenario):
    def test_published_event_has_no_history(self, store: Store) -> None:
        (emitted,) = emit(store)
        publish(store, claim(store))
        assert history(store, emitted) == []

    @pytest.mark.parametrize(
        ("name", "what", "attempts"), [("retried", "retried", 1), ("dead", "died", 1), ("released", "released", 0)]
    )
    def test_other_outcomes_are_recorded_in_history(
        self, store: Store, clock: ManualClock, name: str, what: str, attempts: int
    ) -> None:
        outcome = OUTCOMES[name]
        (emitted,) = emit(store)
        held = claim(store, claimant="relay-7")
        at = clock.advance(3)
        store.settle(held.lease, all_to(outcome, held))
        (entry,) = store.history(emitted)
        error = getattr(outcome, "error", None)
        assert (entry.at, entry.what, entry.attempts, entry.by, entry.detail) == (at, what, attempts, "relay-7", error)

    def test_history_records_all_steps_in_order(self, store: Store, clock: ManualClock) -> None:
        (emitted,), (other,) = emit(store), emit(store, queue="other")
        self._live(store, clock, claim(store))
        assert store.replay(Selection(ids=frozenset({emitted})), by="anna") == 1
        assert history(store, emitted) == ["released", "retried", "reaped", "lost", "died", "replayed"]
        entries = store.history(emitted)
        assert [entry.attempts for entry in entries] == [0, 1, 2, 3, 4, 4]
        assert [entry.at for entry in entries] == sorted(entry.at for entry in entries)
        assert entries[-1].by == "anna"
        assert "the end" in str(entries[-1].detail)
        assert history(store, other) == []

    def _live(self, store: Store, clock: ManualClock, held: Claim) -> None:
        store.release(held.lease)
        held = claim(store)
        store.settle(held.lease, all_to(Retry("once", 0), held))
        claim(store)
        clock.expire_leases()
        store.reap()
        held = claim(store, claimant="first")
        held = claim(store, claimant="second", lease_id=held.lease.lease_id)
        store.settle(held.lease, all_to(Dead("the end"), held))

    def test_unknown_event_has_no_history(self, store: Store) -> None:
        assert store.history(EventId(UUID(int=1))) == []


class Dying(StoreScenario):
    def test_settled_events_stay_settled_without_replay(self, store: Store, clock: ManualClock) -> None:
        emit(store, 2)
        held = claim(store)
        outcomes: dict[int, Outcome] = {seqs(held)[0]: Published(), seqs(held)[1]: Dead("x")}
        store.settle(held.lease, outcomes)
        before = records(store)
        clock.now += timedelta(days=3)
        assert not claim(store)
        assert not store.ready("outbox")
        assert store.reap() == 0
        store.maintain()
        assert store.release(held.lease) == 0
        assert records(store) == before
