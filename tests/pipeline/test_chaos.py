"""A short run of `make chaos`: streams that add up orders are killed at some steps of their protocol, superseded by
another driver and cut off from their database. The sums must be exact."""

import random
import sys

import pytest

from chaos.audit import STATES
from chaos.campaign import Campaign, Plan

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(1_200)]

KILLS = 4
EVENTS = 1_000


@pytest.mark.parametrize(("source", "state"), [*(("queue", state) for state in STATES), ("batches", "sqlite")])
def test_sums_are_exact_after_kills_and_outages(source: str, state: str) -> None:
    plan = Plan(seed=random.randrange(2**32), kills=KILLS, events=EVENTS)
    print(f"seed {plan.seed}")
    with Campaign.over(plan, say=lambda text: print(text, file=sys.stderr)) as campaign:
        outcome = campaign.attempt(source, state)
    assert outcome.verdict is not None, outcome
    assert list(outcome.verdict.audit.lines()) == [], outcome
    tally = outcome.verdict.tally
    assert (tally.kills + tally.unreached, tally.superseded, tally.outages) == (KILLS, 1, 2)
    assert tally.kills >= KILLS - 1
