"""Latency of events through a lightly loaded relay.

Measured from the event's `created_at`, the time of its insert just before the commit, to its `settled_at`, the time at
which its settlement was written. Both are times of the database's clock.
"""

import threading
import time
from statistics import quantiles

import psycopg

from benchmarks.ground import Ground
from benchmarks.plan import EVENT_TYPE, PAYLOAD, Figure, Measured, Plan, at_most
from penstock import Outbox, connect
from penstock.pipeline.relay.driver import run_relay
from penstock.pipeline.relay.spec import RelayOptions
from tests.support.processes import wait_until

START_SECONDS = 60.0
WARM_UP_EVENTS = 20

_MILLISECONDS = """
SELECT 1000 * extract(epoch FROM settled_at - created_at)::float8
FROM penstock_archive JOIN penstock_events USING (seq) WHERE event_type = %s
"""


def measure(ground: Ground, plan: Plan) -> Measured:
    ground.note(f"latency: {plan.latency_events} events, {plan.latency_per_second:g} a second")
    with ground.outbox() as url:
        stop = threading.Event()
        options = RelayOptions(store=url, destination="null:", master=f"local[{plan.tasks}]", parallelism=plan.tasks)
        relay = threading.Thread(target=run_relay, args=(options,), kwargs={"stop": stop}, name="bench-relay")
        relay.start()
        try:
            with connect(url) as outbox:
                _emit_slowly(outbox, "bench.warm-up", WARM_UP_EVENTS, plan.latency_per_second)
                _await_settled(url, WARM_UP_EVENTS)
                _emit_slowly(outbox, EVENT_TYPE, plan.latency_events, plan.latency_per_second)
                _await_settled(url, WARM_UP_EVENTS + plan.latency_events)
        finally:
            stop.set()
            relay.join()
        with psycopg.connect(url) as connection:
            times = [row[0] for row in connection.execute(_MILLISECONDS, [EVENT_TYPE])]
    cuts = quantiles(times, n=100, method="inclusive")
    p50, p95, p99 = cuts[49], cuts[94], cuts[98]
    figures = (
        Figure("latency, p50", p50, "ms", at_most(30)),
        Figure("latency, p95", p95, "ms"),
        Figure("latency, p99", p99, "ms", at_most(300)),
    )
    return Measured(figures, {"events": len(times), "worst_ms": max(times), "best_ms": min(times)})


def _emit_slowly(outbox: Outbox, event_type: str, events: int, per_second: float) -> None:
    """Emit one event per transaction, at regular intervals."""
    began = time.monotonic()
    for number in range(events):
        time.sleep(max(0.0, began + number / per_second - time.monotonic()))
        outbox.emit(event_type, PAYLOAD)


def _await_settled(url: str, count: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:

        def settled() -> bool:
            row = connection.execute("SELECT count(*) FROM penstock_archive").fetchone()
            return row is not None and row[0] >= count

        if not wait_until(settled, START_SECONDS):
            raise TimeoutError(f"the relay did not settle {count} events within {START_SECONDS:g} s")
