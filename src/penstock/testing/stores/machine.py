"""Hypothesis state machine that compares a real store with the pure model after every step.

For any order of operations, every event must be in the state that `penstock.model.lifecycle` gives.

    class MyStoreMachine(StoreMachine):
        def open(self, clock): ...   # a fresh store, with a maximum lease age that no test reaches

    TestMyStoreMachine = MyStoreMachine.TestCase

Ordering keys are not covered. Needs Hypothesis, unlike the other suites.
"""

from datetime import datetime, timedelta
from uuid import uuid4

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.model import lifecycle
from penstock.model.event import EventId
from penstock.model.lease import Claim, LeaseId, Settlement
from penstock.model.lifecycle import Life, State, fitting
from penstock.model.outcome import PUBLISHED, RELEASED, Dead, Outcome, Retry
from penstock.model.selection import Selection
from penstock.store.api import Store
from penstock.testing.stores.scenario import EVERYTHING, LEASE_SECONDS, ManualClock, claim, event, life, records

LIMITS = st.integers(1, 12)
ATTEMPTS = 3
OUTCOMES: st.SearchStrategy[Outcome] = st.sampled_from([PUBLISHED, RELEASED, Dead("x"), Retry("x", 0), Retry("x", 40)])


class ModelLease:
    """A lease in the model."""

    def __init__(self, claimed: Claim, claimant: str, expires_at: datetime) -> None:
        self.claim = claimed
        self.claimant = claimant
        self.expires_at = expires_at
        self.seqs = {one.seq for one in claimed.events}
        self.archived: set[int] = set()
        self.returned: set[int] = set()
        self.stale: list[Claim] = []


class StoreMachine(RuleBasedStateMachine):
    """State machine over a store. Override `open` to return a fresh store that uses the given clock."""

    def open(self, clock: ManualClock) -> Store:
        raise NotImplementedError("override `open`")

    @initialize()
    def begin(self) -> None:
        self.clock = ManualClock()
        self.store = self.open(self.clock)
        self.lives: dict[int, Life] = {}
        self.ids: dict[int, EventId] = {}
        self.available: dict[int, datetime] = {}
        self.priorities: dict[int, int] = {}
        self.open_leases: list[ModelLease] = []
        self.ended: list[ModelLease] = []

    def teardown(self) -> None:
        self.store.close()

    # -- state of the model ---------------------------------------------------------------------------------------

    def among(self, *states: State) -> list[int]:
        return [seq for seq, each in self.lives.items() if each.state in states]

    def ready(self) -> list[int]:
        """Return the events that can be claimed, in the order of a claim."""
        due = [seq for seq in self.among(State.PENDING) if self.available[seq] <= self.clock.now]
        return sorted(due, key=lambda seq: (-self.priorities[seq], self.available[seq], seq))

    def one_open(self, data: st.DataObject) -> ModelLease:
        return self.open_leases[data.draw(st.integers(0, len(self.open_leases) - 1))]

    def apply(self, held: ModelLease, outcomes: dict[int, Outcome]) -> Settlement:
        """Settle in the model and return the expected settlement."""
        settled: dict[str, set[int]] = {}
        for seq, outcome in outcomes.items():
            if seq not in held.seqs:
                name = "already_settled" if seq in held.archived | held.returned else "lost"
                settled.setdefault(name, set()).add(seq)
                continue
            self.lives[seq] = lifecycle.settle(self.lives[seq], outcome, max_attempts=ATTEMPTS)
            match outcome, self.lives[seq].state:
                case Retry(), State.PENDING:
                    name = "retried"
                    self.available[seq] = self.clock.now + timedelta(seconds=outcome.delay_seconds or 0)
                case _, State.PENDING:
                    name = "released"
                case _, state:
                    name = state.lower()
            settled.setdefault(name, set()).add(seq)
            held.seqs.discard(seq)
            (held.returned if self.lives[seq].state is State.PENDING else held.archived).add(seq)
        self.close_if_empty(held)
        return Settlement(**{name: frozenset(seqs) for name, seqs in settled.items()})

    def close_if_empty(self, held: ModelLease) -> None:
        if not held.seqs:
            self.open_leases.remove(held)
            self.ended.append(held)

    # -- steps ----------------------------------------------------------------------------------------------------

    @rule(
        delays=st.lists(st.sampled_from([None, None, 30.0]), min_size=1, max_size=6),
        priority=st.integers(0, 1),
        own_limit=st.sampled_from([None, None, 1, 4]),
    )
    def emit(self, delays: list[float | None], priority: int, own_limit: int | None) -> None:
        emitted = self.store.append(
            [event(delay_seconds=delay, priority=priority, max_attempts=own_limit) for delay in delays]
        )
        found = {one.event_id: one for one in records(self.store)}
        for event_id, delay in zip(emitted, delays, strict=True):
            seq = found[event_id].seq
            self.ids[seq] = event_id
            self.lives[seq] = Life(max_attempts=own_limit)
            self.available[seq] = self.clock.now + timedelta(seconds=delay or 0)
            self.priorities[seq] = priority

    @rule(seconds=st.sampled_from([0.5, 10, 35, LEASE_SECONDS + 1]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(limit=LIMITS, claimant=st.sampled_from("ab"))
    def take(self, limit: int, claimant: str) -> None:
        ready = self.ready()
        expected = ready[: fitting((self.lives[seq].suspect for seq in ready), limit)]
        assert self.store.ready("outbox") == bool(expected)
        claimed = claim(self.store, limit, claimant=claimant, max_attempts=ATTEMPTS)
        assert [one.seq for one in claimed.events] == expected
        for seq in expected:
            self.lives[seq] = lifecycle.claim(self.lives[seq])
        held = ModelLease(claimed, claimant, self.clock.now + timedelta(seconds=LEASE_SECONDS))
        self.open_leases.append(held)
        self.close_if_empty(held)

    @precondition(lambda self: self.open_leases)
    @rule(data=st.data(), limit=LIMITS, claimant=st.sampled_from("ab"))
    def repeat(self, data: st.DataObject, limit: int, claimant: str) -> None:
        held = self.one_open(data)
        if claimant != held.claimant:
            self.lose(held, limit)
        claimed = claim(self.store, limit, claimant=claimant, lease_id=held.claim.lease.lease_id, max_attempts=99)
        assert {one.seq for one in claimed.events} == held.seqs
        held.stale.append(held.claim)
        held.claim, held.claimant = claimed, claimant
        held.expires_at = max(held.expires_at, self.clock.now + timedelta(seconds=LEASE_SECONDS))
        self.close_if_empty(held)

    def lose(self, held: ModelLease, limit: int) -> None:
        """Repeat a claim for another claimant in the model.

        Events that still fit the limit stay claimed, the others become pending.
        """
        for seq in held.seqs:
            self.lives[seq] = lifecycle.expire(self.lives[seq], max_attempts=ATTEMPTS, error="attempt lost")
        alive = sorted(held.seqs & set(self.among(State.PENDING)), key=lambda seq: (self.available[seq], seq))
        held.archived |= held.seqs & set(self.among(State.DEAD))
        staying = alive[: fitting((self.lives[seq].suspect for seq in alive), limit)]
        for seq in staying:
            self.lives[seq] = lifecycle.claim(self.lives[seq])
        held.seqs = set(staying)

    @precondition(lambda self: self.open_leases)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        held = self.one_open(data)
        chosen = data.draw(st.sets(st.sampled_from(sorted(self.lives)), min_size=1))
        outcomes = {seq: data.draw(OUTCOMES) for seq in sorted(chosen)}
        lease = held.claim.lease
        assert self.store.settle(lease, outcomes) == self.apply(held, outcomes)

    @precondition(lambda self: self.open_leases)
    @rule(data=st.data())
    def settle_all(self, data: st.DataObject) -> None:
        held = self.one_open(data)
        outcomes = {seq: data.draw(OUTCOMES) for seq in sorted(held.seqs)}
        lease = held.claim.lease
        assert self.store.settle(lease, outcomes) == self.apply(held, outcomes)

    @precondition(lambda self: self.open_leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        held = self.one_open(data)
        assert self.store.release(held.claim.lease) == len(held.seqs)
        self.apply(held, dict.fromkeys(held.seqs, RELEASED))

    @precondition(lambda self: self.open_leases)
    @rule()
    def extend(self) -> None:
        leases = [held.claim.lease for held in self.open_leases]
        stale = [old.lease for held in self.open_leases for old in held.stale]
        assert self.store.extend([*stale, *leases]) == leases
        for held in self.open_leases:
            held.expires_at = max(held.expires_at, self.clock.now + timedelta(seconds=LEASE_SECONDS))

    @precondition(lambda self: self.ended)
    @rule()
    def come_back_late(self) -> None:
        """Check that every stale token changes nothing, and that a repeat of a closed lease returns no events."""
        gone = [*(old for held in self.open_leases for old in held.stale), *(held.claim for held in self.ended)]
        for old in gone:
            settlement = self.store.settle(old.lease, dict.fromkeys((one.seq for one in old.events), PUBLISHED))
            assert settlement.applied == 0
            assert self.store.release(old.lease) == 0
            assert self.store.extend([old.lease]) == []
        for held in self.ended:
            assert not claim(self.store, claimant="a", lease_id=held.claim.lease.lease_id)

    @precondition(lambda self: self.ready())
    @rule(limit=LIMITS)
    def crash(self, limit: int) -> None:
        """Expire and reap the lease of a claimant that died directly after its claim."""
        self.take(limit, "a")
        self.clock.expire_leases()
        self.reap()

    @rule(seconds=st.sampled_from([0, 30, LEASE_SECONDS]))
    def wait_and_reap(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.reap()

    def reap(self) -> None:
        expired = [held for held in self.open_leases if held.expires_at < self.clock.now]
        assert self.store.reap() == sum(len(held.seqs) for held in expired)
        for held in expired:
            for seq in held.seqs:
                self.lives[seq] = lifecycle.expire(self.lives[seq], max_attempts=ATTEMPTS)
            held.archived |= held.seqs & set(self.among(State.DEAD))
            held.seqs = set()
            self.close_if_empty(held)

    @precondition(lambda self: self.among(State.PUBLISHED, State.DEAD))
    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sets(st.sampled_from(self.among(State.PUBLISHED, State.DEAD))))
        selection = Selection(ids=frozenset(self.ids[seq] for seq in chosen))
        assert self.store.replay(selection, dry_run=True) == len(chosen)
        assert self.store.replay(selection) == len(chosen)
        for seq in chosen:
            self.lives[seq] = lifecycle.replay(self.lives[seq])
            self.available[seq] = self.clock.now
        for held in (*self.ended, *self.open_leases):
            held.archived -= chosen

    @precondition(lambda self: self.among(State.PUBLISHED))
    @rule()
    def purge(self) -> None:
        gone = self.among(State.PUBLISHED)
        assert self.store.purge(EVERYTHING) == len(gone)
        for seq in gone:
            del self.lives[seq]
        for held in (*self.ended, *self.open_leases):
            held.archived -= set(gone)
            held.returned -= set(gone)

    @rule()
    def claim_under_a_new_lease_id(self) -> None:
        fresh = LeaseId(uuid4())
        taken = claim(self.store, 1, lease_id=fresh, max_attempts=ATTEMPTS)
        assert [one.seq for one in taken.events] == self.ready()[:1]
        assert self.store.release(taken.lease) == len(taken)

    # -- after each step ------------------------------------------------------------------------------------------

    @invariant()
    def every_event_is_where_the_lifecycle_says(self) -> None:
        found = records(self.store)
        assert {one.seq: life(one) for one in found} == self.lives
        for one in found:
            assert one.available_at == self.available[one.seq]
            assert (one.claimed_at is not None) == (one.state is State.CLAIMED)
            assert one.deliveries >= 0

    @invariant()
    def the_numbers_add_up(self) -> None:
        stats = self.store.stats()
        for state in State:
            assert stats.total(state.lower()) == len(self.among(state))
        assert stats.open_leases == len(self.open_leases)
