"""Cost of a claim by the number of pending events.

The same claims alternate between a store with few and one with many pending events.
"""

import time
from statistics import median

from benchmarks.ground import Ground
from benchmarks.plan import Figure, Measured, Plan, at_most
from penstock.model.event import DEFAULT_QUEUE
from penstock.model.outcome import PUBLISHED
from penstock.store.api import Store
from penstock.store.registry import open_store

SIZES = (100, 1_000)
# Enough claims for the driver to have prepared its statements.
WARM_UP_CLAIMS = 10


def measure(ground: Ground, plan: Plan) -> Measured:
    rounds = WARM_UP_CLAIMS + plan.claims
    taken = rounds * sum(SIZES)
    ground.note(f"claims: loading {plan.few_pending:,} and {plan.many_pending:,} pending events")
    with ground.outbox(plan.few_pending + taken) as few_url, ground.outbox(plan.many_pending + taken) as many_url:
        few, many = open_store(few_url), open_store(many_url)
        try:
            ground.note(f"claims: {plan.claims} of {' and of '.join(map(str, SIZES))} events on each")
            times = {size: _claim_in_turn(few, many, size, rounds) for size in SIZES}
        finally:
            few.close()
            many.close()
    figures: list[Figure] = []
    for size, (on_few, on_many) in times.items():
        ratio = median(on_many) / median(on_few)
        figures += [
            Figure(f"claim of {size:,} at {plan.few_pending:,} pending", median(on_few), "ms"),
            Figure(f"claim of {size:,} at {plan.many_pending:,} pending", median(on_many), "ms"),
            Figure(f"claim of {size:,}, many / few pending", ratio, "times", at_most(1.1)),
        ]
    return Measured(tuple(figures), {"claims": plan.claims})


def _claim_in_turn(few: Store, many: Store, size: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return the milliseconds of each claim on either store."""
    on_few, on_many = [], []
    for _ in range(rounds):
        on_few.append(_claim(few, size))
        on_many.append(_claim(many, size))
    return on_few[WARM_UP_CLAIMS:], on_many[WARM_UP_CLAIMS:]


def _claim(store: Store, size: int) -> float:
    """Return the milliseconds of one claim. Settle it, so that the next claim takes other events."""
    began = time.perf_counter()
    claim = store.claim(DEFAULT_QUEUE, limit=size, claimant="bench")
    milliseconds = (time.perf_counter() - began) * 1000
    assert len(claim) == size
    store.settle(claim.lease, dict.fromkeys((event.seq for event in claim.events), PUBLISHED))
    return milliseconds
