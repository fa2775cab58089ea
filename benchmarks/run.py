"""Run the parts of the benchmarks one after the other on one server."""

import time
from collections.abc import Callable, Collection, Mapping

from benchmarks import brokers, claims, cold_start, emission, handlers, latency, order, throughput
from benchmarks.ground import SETTINGS, Ground
from benchmarks.plan import WARM_UP, Measured, Part, Plan
from benchmarks.report import Report, describe_machine
from tests.support.servers import PostgresServer

# In the order of execution: parts measured in this process come before Spark fills its memory.
PARTS: Mapping[Part, Callable[[Ground, Plan], Measured]] = {
    Part.EMIT: emission.measure,
    Part.CLAIMS: claims.measure,
    Part.WORKERS: handlers.measure,
    Part.COLD_START: cold_start.measure,
    Part.THROUGHPUT: throughput.measure,
    Part.LATENCY: latency.measure,
    Part.ORDER: order.measure,
    Part.BROKERS: brokers.measure,
}


def print_report(plan: Plan, only: Collection[Part], *, as_json: bool) -> None:
    """Start a server, measure on it, and print the report on standard output."""
    with PostgresServer(fsync=True, settings=SETTINGS) as server:
        report = run_parts(server, plan, only)
    print(report.to_json() if as_json else report.to_text())


def run_parts(server: PostgresServer, plan: Plan, only: Collection[Part] = ()) -> Report:
    """Measure all parts, or `only` some, on a running server."""
    began = time.monotonic()
    ground = Ground(server)
    machine = describe_machine()
    parts = {part: measure(ground, plan) for part, measure in PARTS.items() if not only or part in only}
    return Report(plan, machine, ground.settings(), parts, time.monotonic() - began)


def plan_for(events: int) -> Plan:
    return Plan(events=events, warm_up=min(WARM_UP, events // 10))
