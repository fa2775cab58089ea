"""How many events a second: the relay, the raw moves below it, and PgQueuer with jobs that do nothing.

All three are timed alike, by the time that the database noted for each event or job: from the moment when the warm-up
was done to the last one.
"""

from statistics import median

from penstock.pipeline.relay import RelayOptions, run_relay
from penstock.testing.bench import pgqueuer, raw
from penstock.testing.bench.ground import Ground, rate
from penstock.testing.bench.plan import Figure, Measured, Plan, at_least

_SETTLED = "SELECT settled_at AS at FROM penstock_archive"


def measure(ground: Ground, plan: Plan) -> Measured:
    tries = _try_pgqueuer(ground, plan)
    setup = max(tries, key=lambda one: tries[one])
    relay, moves, jobs = [], [], []
    for number in range(1, plan.rounds + 1):
        ground.note(f"throughput, round {number} of {plan.rounds}: relay, raw moves, PgQueuer")
        relay.append(relay_rate(ground, plan))
        moves.append(_raw_rate(ground, plan))
        jobs.append(_pgqueuer_rate(ground, plan, setup, plan.events))
        ground.note(f"  {relay[-1]:,.0f}, {moves[-1]:,.0f} and {jobs[-1]:,.0f} a second")
    figures = (
        Figure("relay", median(relay), "events/s"),
        Figure("raw moves", median(moves), "events/s"),
        Figure("PgQueuer", median(jobs), "jobs/s"),
        Figure("relay / PgQueuer", _median_ratio(relay, jobs), "times", at_least(4.5)),
        Figure("relay / raw moves", _median_ratio(relay, moves), "times", at_least(0.7)),
    )
    tried = [{"managers": one[0], "batch": one[1], "jobs_per_second": value} for one, value in tries.items()]
    rounds = {"relay": relay, "raw_moves": moves, "pgqueuer": jobs}
    return Measured(figures, {"rounds": rounds, "pgqueuer_tried": tried, "pgqueuer_setup": setup})


def relay_rate(ground: Ground, plan: Plan) -> float:
    """The relay as `penstock relay --to null: --once` runs it."""
    with ground.outbox(plan.warm_up + plan.events) as url:
        run_relay(
            RelayOptions(
                store=url,
                destination="null:",
                master=f"local[{plan.tasks}]",
                parallelism=plan.tasks,
                batch=plan.batch,
                once=True,
            )
        )
        return rate(url, _SETTLED, plan.warm_up)


def _raw_rate(ground: Ground, plan: Plan) -> float:
    with ground.outbox(plan.warm_up + plan.events) as url:
        raw.move_all(url, plan.batch, plan.tasks)
        return rate(url, _SETTLED, plan.warm_up)


def _try_pgqueuer(ground: Ground, plan: Plan) -> dict[pgqueuer.Setup, float]:
    """Its rate in each setup, but for those whose batches are too large for so few jobs."""
    tries = {}
    for managers, batch in pgqueuer.SETUPS:
        if managers * batch * plan.tasks * 5 <= plan.tries:
            ground.note(f"trying PgQueuer with {managers} managers in a process and batches of {batch:,}")
            tries[managers, batch] = _pgqueuer_rate(ground, plan, (managers, batch), plan.tries)
    return tries


def _pgqueuer_rate(ground: Ground, plan: Plan, setup: pgqueuer.Setup, jobs: int) -> float:
    warm_up = min(plan.warm_up, jobs // 10)
    return pgqueuer.drain_rate(ground, jobs=jobs, warm_up=warm_up, setup=setup, processes=plan.tasks)


def _median_ratio(ours: list[float], theirs: list[float]) -> float:
    """The median of the ratios within each round: what slows the whole machine for a while slows both."""
    return median(one / other for one, other in zip(ours, theirs, strict=True))
