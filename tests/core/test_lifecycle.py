"""The lifecycle under random operations: every transition is in the table, and the counters keep their definitions."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model import lifecycle
from penstock.model.lifecycle import TRANSITIONS, IllegalTransition, Life, State
from penstock.model.outcome import PUBLISHED, RELEASED, Dead, Outcome, Retry

SEED_TRANSITIONS = {
    ("PENDING", "CLAIMED"),
    ("CLAIMED", "PUBLISHED"),
    ("CLAIMED", "PENDING"),
    ("CLAIMED", "DEAD"),
    ("PUBLISHED", "PENDING"),
    ("DEAD", "PENDING"),
}

outcomes = st.sampled_from([PUBLISHED, RELEASED, Retry("busy"), Dead("bad")])
verbs = st.one_of(
    st.just(("claim", None)),
    st.tuples(st.just("settle"), outcomes),
    st.just(("expire", None)),
    st.just(("replay", None)),
)


def apply(life: Life, verb: str, outcome: Outcome | None, max_attempts: int) -> Life:
    match verb:
        case "claim":
            return lifecycle.claim(life)
        case "settle":
            assert outcome is not None
            return lifecycle.settle(life, outcome, max_attempts=max_attempts)
        case "expire":
            return lifecycle.expire(life, max_attempts=max_attempts)
        case _:
            return lifecycle.replay(life)


def test_transitions_match_specification() -> None:
    assert {(a.value, b.value) for a, b in TRANSITIONS} == SEED_TRANSITIONS


@given(st.lists(verbs, max_size=60), st.integers(1, 5), st.none() | st.integers(1, 5))
def test_operation_sequences_follow_transition_table(steps: list[Any], max_attempts: int, own: int | None) -> None:
    life = Life(max_attempts=own)
    limit = max_attempts if own is None else own
    for verb, outcome in steps:
        try:
            after = apply(life, verb, outcome, max_attempts)
        except IllegalTransition:
            continue
        assert (life.state, after.state) in TRANSITIONS
        check_step(life, verb, outcome, after)
        check_invariants(after, limit)
        life = after


def check_invariants(life: Life, limit: int) -> None:
    assert 0 <= life.attempts <= limit
    assert 0 <= life.suspect <= lifecycle.MAX_SUSPECT
    assert life.deliveries >= life.attempts
    if life.state is State.PENDING:
        assert life.attempts < limit, "a pending event may still be tried"
        assert life.deliveries == life.attempts, "all that was handed out has failed"
    if life.state is State.CLAIMED:
        assert life.deliveries == life.attempts + 1
    if life.attempts:
        assert life.last_error is not None


def check_step(before: Life, verb: str, outcome: Outcome | None, after: Life) -> None:
    match verb, outcome:
        case "claim", _:
            assert after == replace(before, state=State.CLAIMED, deliveries=before.deliveries + 1)
        case "settle", o if o == PUBLISHED:
            assert after == replace(before, state=State.PUBLISHED)
        case "settle", o if o == RELEASED:
            assert after == replace(before, state=State.PENDING, deliveries=before.deliveries - 1)
        case "settle", Retry():
            assert after.attempts == before.attempts + 1
            assert after.suspect == (0 if after.state is State.PENDING else before.suspect)
        case "settle", Dead():
            assert (after.state, after.attempts) == (State.DEAD, before.attempts + 1)
        case "expire", _:
            assert after.attempts == before.attempts + 1
            assert after.suspect >= before.suspect
        case _:
            assert (after.attempts, after.deliveries, after.suspect, after.last_error) == (0, 0, 0, None)
            assert after.replays == before.replays + 1


@pytest.mark.parametrize("state", list(State))
def test_operation_in_wrong_state_is_refused(state: State) -> None:
    life = Life(state=state, deliveries=1)
    if state is not State.PENDING:
        with pytest.raises(IllegalTransition):
            lifecycle.claim(life)
    if state is not State.CLAIMED:
        for outcome in (PUBLISHED, RELEASED, Retry("x"), Dead("x")):
            with pytest.raises(IllegalTransition):
                lifecycle.settle(life, outcome)
        with pytest.raises(IllegalTransition):
            lifecycle.expire(life)
    if state not in (State.PUBLISHED, State.DEAD):
        with pytest.raises(IllegalTransition):
            lifecycle.replay(life)


def test_last_attempt_makes_event_dead() -> None:
    last = Life(state=State.CLAIMED, attempts=2, deliveries=3)
    assert lifecycle.settle(last, Retry("busy"), max_attempts=3).state is State.DEAD
    assert lifecycle.expire(last, max_attempts=3).state is State.DEAD
    assert lifecycle.settle(last, Retry("busy"), max_attempts=4).state is State.PENDING
    own = replace(last, max_attempts=10)
    assert lifecycle.settle(own, Retry("busy"), max_attempts=3).state is State.PENDING


@pytest.mark.parametrize(
    ("suspects", "limit", "expected"),
    [([], 5, 0), ([0] * 9, 5, 5), ([1], 5, 1), ([1, 0], 5, 1), ([0, 1], 20, 2), ([0, 1], 10, 1), ([2, 2], 150, 1)],
)
def test_suspects_are_claimed_with_few_other_events(suspects: list[int], limit: int, expected: int) -> None:
    assert lifecycle.fitting(suspects, limit) == expected


@given(st.lists(st.integers(0, 9), max_size=50), st.integers(1, 1_000))
def test_claim_weight_exceeds_limit_only_for_single_event(suspects: list[int], limit: int) -> None:
    count = lifecycle.fitting(suspects, limit)
    load = sum(lifecycle.weight(suspect, limit) for suspect in suspects[:count])
    assert count >= min(1, len(suspects))
    assert load <= limit or count == 1
    if count < len(suspects):
        assert load + lifecycle.weight(suspects[count], limit) > limit


@given(st.lists(st.integers(0, 9), max_size=50), st.integers(1, 1_000), st.integers(1, 1_000))
def test_nonempty_claim_takes_only_events_within_limit(suspects: list[int], limit: int, taken: int) -> None:
    count = lifecycle.fitting(suspects, limit, taken)
    load = taken + sum(lifecycle.weight(suspect, limit) for suspect in suspects[:count])
    assert count == 0 or load <= limit
    if count < len(suspects):
        assert load + lifecycle.weight(suspects[count], limit) > limit


@given(st.integers(0, 9), st.integers(1, 10**6))
def test_weight_grows_with_suspicion_up_to_claim_limit(suspect: int, limit: int) -> None:
    assert 1 <= lifecycle.weight(suspect, limit) <= lifecycle.weight(suspect + 1, limit) <= limit


def test_deliveries_above_maximum_are_overdelivered() -> None:
    assert lifecycle.overdelivered(4, 3)
    assert not lifecycle.overdelivered(3, 3)
    assert not lifecycle.overdelivered(1_000, None)
