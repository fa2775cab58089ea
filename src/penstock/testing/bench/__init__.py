"""Benchmarks: what Penstock does on this machine, beside what its database can do and what PgQueuer does.

    penstock bench relay --json

Each part is a module with a function `measure`; all of them run on one PostgreSQL that the run starts for itself.
Progress goes to standard error, the report to standard output.
"""

from collections.abc import Collection


def run_relay_bench(events: int, as_json: bool, only: Collection[str] = ()) -> None:
    """Measure and print: everything, or `only` the parts of these names."""
    # Here, because the processes that a benchmark starts import this package too, and need little of it.
    from penstock.testing.bench.plan import Part
    from penstock.testing.bench.run import plan_for, print_report

    print_report(plan_for(events), [Part(name) for name in only], as_json=as_json)
