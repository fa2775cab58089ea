"""Worker benchmark: throughput of handlers that do nothing, compared with PgQueuer, and latency from commit to handler.

Penstock and PgQueuer run one process per core. Both are timed by the timestamp that the database stores for each event
or job. The latency is measured in a process that emits one event at a time, by its own clock: from the return of the
commit to the first line of the handler.
"""

import sys
import threading
import time
from statistics import median, quantiles

from benchmarks.ground import Ground, rate
from benchmarks.plan import EVENT_TYPE, Figure, Measured, Plan, at_least, at_most
from benchmarks.throughput import SETTLED, Run, ratio, run_pgqueuer, try_pgqueuer
from benchmarks.workers import run_together, wait_for_start
from penstock import Received, Worker, connect
from tests.support.processes import wait_until

BATCHES = (500, 1_000, 2_000)
IDLE_SECONDS = 1.0
HANDLED_SECONDS = 60.0


def measure(ground: Ground, plan: Plan) -> Measured:
    tried = try_pgqueuer(ground, plan)
    setup = max(tried, key=lambda one: tried[one])
    batch = _best_batch(ground, plan)
    ours, theirs = [], []
    for number in range(1, plan.rounds + 1):
        ground.note(f"workers, round {number} of {plan.rounds}: Penstock's, PgQueuer's")
        ours.append(_run_workers(ground, plan, plan.events, batch))
        theirs.append(run_pgqueuer(ground, plan, setup, plan.events))
        ground.note(f"  {ours[-1].per_second:,.0f} and {theirs[-1].per_second:,.0f} a second")
    waits = _latencies(ground, plan)
    cuts = quantiles(waits, n=100, method="inclusive")
    figures = (
        Figure("workers", median(run.per_second for run in ours), "events/s"),
        Figure("PgQueuer's workers", median(run.per_second for run in theirs), "jobs/s"),
        Figure("workers / PgQueuer", ratio(ours, theirs), "times", at_least(1.5)),
        Figure("commit to handler, p50", cuts[49], "ms", at_most(15)),
        Figure("commit to handler, p99", cuts[98], "ms"),
    )
    rounds = {"workers": [run._asdict() for run in ours], "pgqueuer": [run._asdict() for run in theirs]}
    return Measured(figures, {"rounds": rounds, "batch": batch, "pgqueuer_setup": setup, "worst_ms": max(waits)})


def _best_batch(ground: Ground, plan: Plan) -> int:
    """Return the fastest batch size, as for PgQueuer's setup.

    Skip batches that are too large for the number of events.
    """
    batches = [batch for batch in BATCHES if batch * plan.tasks * 5 <= plan.tries]
    if not batches:
        return plan.batch
    ground.note("trying workers with batches of " + ", ".join(map(str, batches)))
    return max(batches, key=lambda batch: _run_workers(ground, plan, plan.tries, batch).per_second)


def _run_workers(ground: Ground, plan: Plan, events: int, batch: int) -> Run:
    warm_up = min(plan.warm_up, events // 10)
    with ground.outbox(warm_up + events) as url:
        cpu = run_together(__name__, [url, batch], plan.tasks)
        return Run(rate(url, SETTLED, warm_up), 1e6 * cpu / (warm_up + events))


def _drain(url: str, batch: int) -> None:
    """Run a worker in this process until no event is ready."""
    worker = Worker(url)

    @worker.handler(fetch_batch_size=batch, overfetch_factor=2.0)
    async def do_nothing(event: Received) -> None:
        """Do nothing."""

    wait_for_start()
    worker.start()
    with connect(url) as outbox:
        while outbox.store.ready("outbox"):
            time.sleep(0.05)
    worker.stop()


def _latencies(ground: Ground, plan: Plan) -> list[float]:
    """Return the milliseconds from commit to handler, for events that arrive at an idle worker."""
    ground.note(f"commit to handler: {plan.latency_events} events, {plan.latency_per_second:g} a second")
    committed: dict[int, float] = {}
    begun: dict[int, float] = {}
    done = threading.Event()
    with ground.outbox() as url, connect(url) as outbox:
        worker = Worker(url)

        @worker.handler(max_fetch_interval=IDLE_SECONDS)
        async def note(event: Received) -> None:
            begun[int(event.text())] = time.perf_counter()
            if len(begun) == plan.latency_events:
                done.set()

        worker.start()
        try:
            began = time.monotonic()
            for number in range(plan.latency_events):
                time.sleep(max(0.0, began + (number + 1) / plan.latency_per_second - time.monotonic()))
                outbox.emit(EVENT_TYPE, str(number))
                committed[number] = time.perf_counter()
            if not wait_until(done.is_set, HANDLED_SECONDS):
                raise TimeoutError(f"the worker did not handle all events within {HANDLED_SECONDS:g} s")
        finally:
            worker.stop()
    return [1_000 * (begun[number] - committed[number]) for number in committed]


if __name__ == "__main__":
    _drain(sys.argv[1], int(sys.argv[2]))
