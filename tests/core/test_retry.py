"""Retry policies: shape and bounds of the delay, and the limits that end retries."""

from collections.abc import Callable
from itertools import count
from random import Random
from statistics import fmean
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import UsageError
from penstock.model.outcome import Dead, Retry
from penstock.model.retry import RetryPolicy, Shape

rolls = st.floats(0, 1, exclude_max=True)


def decide(policy: RetryPolicy, attempts: int = 0, age: float = 0.0, **given: Any) -> Retry | Dead:
    return policy.decide("busy", attempts=attempts, age_seconds=age, roll=0.0, **given)


def test_default_retry_policy() -> None:
    policy = RetryPolicy()
    assert (policy.shape, policy.initial_seconds, policy.factor) == ("exponential", 1.0, 2.0)
    assert (policy.cap_seconds, policy.max_attempts, policy.jitter) == (3_600.0, 25, 1.0)


def outlasted(roll: Callable[[], float]) -> float:
    """Return the seconds from an event's first failure to its death under the default policy."""
    policy, waited = RetryPolicy(), 0.0
    for attempts in count():
        decided = policy.decide("down", attempts=attempts, age_seconds=waited, roll=roll())
        if isinstance(decided, Dead):
            return waited
        assert decided.delay_seconds is not None
        waited += decided.delay_seconds
    raise AssertionError("unreachable")


def test_default_policy_retries_up_to_13_hours_half_on_average() -> None:
    longest = outlasted(lambda: 0.0)
    assert longest == sum(2**doubled for doubled in range(12)) + 12 * 3_600
    assert longest / 3_600 == pytest.approx(13.1, abs=0.05)
    draw = Random(0).random
    average = fmean(outlasted(draw) for _ in range(2_000))
    assert average / 3_600 == pytest.approx(6.6, abs=0.1)


@given(st.integers(0, 23), rolls)
def test_full_jitter_delay_is_at_most_exponential_delay(attempts: int, roll: float) -> None:
    decided = RetryPolicy().decide("down", attempts=attempts, age_seconds=0, roll=roll)
    assert isinstance(decided, Retry)
    assert decided.delay_seconds is not None
    assert 0 < decided.delay_seconds <= min(2**attempts, 3_600)
    assert RetryPolicy().delay(attempts + 1, 1.0) == 0


@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        (RetryPolicy.constant(3), [3, 3, 3, 3]),
        (RetryPolicy.linear(3), [3, 6, 9, 12]),
        (RetryPolicy(jitter=0), [1, 2, 4, 8]),
        (RetryPolicy(jitter=0, factor=3, initial_seconds=2, cap_seconds=20), [2, 6, 18, 20]),
    ],
)
def test_delays_of_retry_shapes(policy: RetryPolicy, waits: list[float]) -> None:
    assert [policy.delay(attempt, 0.99) for attempt in range(1, 5)] == waits


@given(st.sampled_from(get_args(Shape)), st.integers(1, 10**9), rolls, st.floats(0, 1))
def test_delay_lies_between_jittered_base_and_cap(shape: Any, attempt: int, roll: float, jitter: float) -> None:
    policy = RetryPolicy(shape=shape, jitter=jitter, cap_seconds=600)
    wait, base = policy.delay(attempt, roll), policy.base_delay(attempt)
    assert base * (1 - jitter) - 1e-9 <= wait <= base <= 600


@given(st.integers(1, 10), st.integers(0, 20), st.none() | st.integers(1, 20))
def test_event_attempt_limit_overrides_policy_limit(limit: int, attempts: int, own: int | None) -> None:
    policy = RetryPolicy(max_attempts=limit)
    result = decide(policy, attempts, event_max_attempts=own)
    assert isinstance(result, Dead) == (attempts + 1 >= (own or limit))


def test_none_policy_makes_first_failure_dead() -> None:
    assert decide(RetryPolicy.none()) == Dead("busy")
    assert decide(RetryPolicy.none(), event_max_attempts=5) == Dead("busy")


def test_retry_beyond_max_age_makes_event_dead() -> None:
    policy = RetryPolicy(jitter=0, max_age_seconds=60)
    assert decide(policy, age=59) == Retry("busy", 1.0)
    gone = decide(policy, age=59.5)
    assert isinstance(gone, Dead)
    assert "older than 60 s" in gone.error


def test_retry_beyond_max_total_delay_makes_event_dead() -> None:
    policy = RetryPolicy.constant(10, max_attempts=100)
    limited = RetryPolicy(shape="constant", initial_seconds=10, jitter=0, max_attempts=100, max_total_delay_seconds=30)
    assert isinstance(decide(policy, attempts=50), Retry)
    assert [isinstance(decide(limited, attempts), Dead) for attempts in range(5)] == [False, False, False, True, True]


def test_retry_delay_is_longer_of_destination_and_policy() -> None:
    assert decide(RetryPolicy(), asked_delay=77.0) == Retry("busy", 77.0)
    assert decide(RetryPolicy(jitter=0), attempts=5, asked_delay=0.5) == Retry("busy", 32.0)


@pytest.mark.parametrize("attempt", [2**31, 10**9, 10**400])
@pytest.mark.parametrize("shape", ["linear", "exponential"])
def test_huge_attempt_number_neither_overflows_nor_exceeds_cap(shape: Any, attempt: int) -> None:
    assert RetryPolicy(shape=shape, jitter=0).delay(attempt, 0.5) == 3_600
    assert RetryPolicy(shape=shape, initial_seconds=0).delay(attempt, 0.5) == 0
    limited = RetryPolicy(shape=shape, max_attempts=10**500, max_total_delay_seconds=100)
    assert isinstance(decide(limited, attempt), Dead)
    patient = RetryPolicy(shape=shape, initial_seconds=0, max_attempts=10**500, max_total_delay_seconds=100)
    assert decide(patient, attempt) == Retry("busy", 0.0)


@given(
    st.sampled_from(get_args(Shape)),
    st.integers(0, 60),
    st.floats(0, 10),
    st.floats(1, 3),
    st.floats(0, 50),
    st.floats(0, 500),
)
def test_total_delay_is_sum_of_base_delays(
    shape: Any, attempts: int, initial: float, factor: float, cap: float, limit: float
) -> None:
    policy = RetryPolicy(
        shape=shape,
        initial_seconds=initial,
        factor=factor,
        cap_seconds=cap,
        max_attempts=1_000,
        max_total_delay_seconds=limit,
    )
    waited = sum(policy.base_delay(number) for number in range(1, attempts + 2))
    if shape != "none" and abs(waited - limit) > 1e-6:
        assert isinstance(decide(policy, attempts), Dead) == (waited > limit)


@pytest.mark.parametrize(
    "wrong",
    [
        {"initial_seconds": -1},
        {"factor": 0.5},
        {"cap_seconds": -1},
        {"jitter": 1.5},
        {"max_attempts": 0},
        {"max_age_seconds": -1},
        {"max_total_delay_seconds": -1},
    ],
)
def test_invalid_retry_setting_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        RetryPolicy(**wrong)  # type: ignore[arg-type]


def test_capped_delays_count_towards_total_delay() -> None:
    """Delays of 1, 2, 4, 4, 4, 4 and 4 seconds: the total is 19 after six failures, 23 after seven."""
    policy = RetryPolicy(initial_seconds=1, cap_seconds=4, jitter=0, max_total_delay_seconds=20)
    sixth = policy.decide("busy", attempts=5, age_seconds=0, roll=0.0)
    seventh = policy.decide("busy", attempts=6, age_seconds=0, roll=0.0)
    assert sixth == Retry("busy", 4.0)
    assert isinstance(seventh, Dead)
