"""Events per second of the relay, compared with the raw moves of the same rows and with PgQueuer's empty jobs.

All three are timed by the timestamp that the database stores for each event or job, from the end of the warm-up to the
last one. The CPU time per event is reported too, summed over all processes including PostgreSQL.
"""

from statistics import median
from typing import NamedTuple

from benchmarks import pgqueuer, raw
from benchmarks.cpu import cpu_seconds
from benchmarks.ground import Ground, calm, rate
from benchmarks.plan import Figure, Measured, Plan, at_least
from penstock.pipeline import open_session
from penstock.pipeline.relay.driver import run_relay
from penstock.pipeline.relay.spec import RelayOptions

SETTLED = "SELECT settled_at AS at FROM penstock_archive"


class Run(NamedTuple):
    """Result of one run of a contender."""

    per_second: float
    cpu_micros: float


def measure(ground: Ground, plan: Plan) -> Measured:
    tries = try_pgqueuer(ground, plan)
    setup = max(tries, key=lambda one: tries[one])
    ground.note("starting Spark")
    open_session(_master(plan))
    relay, moves, jobs = [], [], []
    for number in range(1, plan.rounds + 1):
        ground.note(f"throughput, round {number} of {plan.rounds}: relay, raw moves, PgQueuer")
        relay.append(_run_relay(ground, plan))
        moves.append(_run_raw(ground, plan))
        jobs.append(run_pgqueuer(ground, plan, setup, plan.events))
        last = (relay[-1], moves[-1], jobs[-1])
        ground.note("  " + ", ".join(f"{run.per_second:,.0f} a second" for run in last))
    figures = (
        Figure("relay", _rate(relay), "events/s"),
        Figure("raw moves", _rate(moves), "events/s"),
        Figure("PgQueuer", _rate(jobs), "jobs/s"),
        Figure("relay / PgQueuer", ratio(relay, jobs), "times", at_least(4.5)),
        Figure("relay / raw moves", ratio(relay, moves), "times", at_least(0.7)),
        Figure("relay, CPU time", _cpu(relay), "µs/event"),
        Figure("raw moves, CPU time", _cpu(moves), "µs/event"),
        Figure("PgQueuer, CPU time", _cpu(jobs), "µs/job"),
    )
    tried = [{"managers": one[0], "batch": one[1], "jobs_per_second": value} for one, value in tries.items()]
    rounds = {"relay": _documents(relay), "raw_moves": _documents(moves), "pgqueuer": _documents(jobs)}
    return Measured(figures, {"rounds": rounds, "pgqueuer_tried": tried, "pgqueuer_setup": setup})


def _run_relay(ground: Ground, plan: Plan) -> Run:
    """Run the relay as `penstock relay --to null: --once` does."""
    with ground.outbox(plan.warm_up + plan.events) as url:
        options = RelayOptions(
            store=url,
            destination="null:",
            master=_master(plan),
            parallelism=plan.tasks,
            batch=plan.batch,
            once=True,
        )
        before = cpu_seconds()
        run_relay(options)
        cpu = cpu_seconds() - before
        return Run(rate(url, SETTLED, plan.warm_up), 1e6 * cpu / (plan.warm_up + plan.events))


def _master(plan: Plan) -> str:
    return f"local[{plan.tasks}]"


def _run_raw(ground: Ground, plan: Plan) -> Run:
    with ground.outbox(plan.warm_up + plan.events) as url:
        cpu = raw.move_all(url, plan.batch, plan.tasks)
        return Run(rate(url, SETTLED, plan.warm_up), 1e6 * cpu / (plan.warm_up + plan.events))


def run_pgqueuer(ground: Ground, plan: Plan, setup: pgqueuer.Setup, jobs: int) -> Run:
    warm_up = min(plan.warm_up, jobs // 10)
    with ground.database() as url:
        pgqueuer.enqueue(url, warm_up + jobs)
        calm(url)
        cpu = pgqueuer.drain(url, setup, plan.tasks)
        return Run(rate(url, pgqueuer.DONE, warm_up), 1e6 * cpu / (warm_up + jobs))


def try_pgqueuer(ground: Ground, plan: Plan) -> dict[pgqueuer.Setup, float]:
    """Return PgQueuer's rate in each setup, except those with batches too large for the number of jobs."""
    tries = {}
    for managers, batch in pgqueuer.SETUPS:
        if managers * batch * plan.tasks * 5 <= plan.tries:
            ground.note(f"trying PgQueuer with {managers} managers in a process and batches of {batch:,}")
            tries[managers, batch] = run_pgqueuer(ground, plan, (managers, batch), plan.tries).per_second
    return tries


def _rate(runs: list[Run]) -> float:
    return median(run.per_second for run in runs)


def _cpu(runs: list[Run]) -> float:
    return median(run.cpu_micros for run in runs)


def ratio(ours: list[Run], theirs: list[Run]) -> float:
    """Return the median of the ratios of each round: a slowdown of the whole machine affects both contenders."""
    return median(one.per_second / other.per_second for one, other in zip(ours, theirs, strict=True))


def _documents(runs: list[Run]) -> list[dict[str, float]]:
    return [run._asdict() for run in runs]
