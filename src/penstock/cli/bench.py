"""`penstock bench`: measurements on this machine. The benchmarks themselves are in `penstock.testing.bench`."""

from importlib import import_module
from typing import Annotated, Any

import typer

from penstock.cli.options import JsonOption
from penstock.errors import UsageError
from penstock.testing.bench.plan import EVENTS, Part

bench = typer.Typer(name="bench", help="Measure Penstock on this machine.", invoke_without_command=True)

EventsOption = Annotated[int, typer.Option(min=1_000, help="How many events to carry in a round.")]
OnlyOption = Annotated[
    list[Part] | None, typer.Option("--only", help="Measure only this; can be given again.", show_default=False)
]


@bench.callback()
def _all(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        relay()
        streams()


@bench.command()
def relay(events: EventsOption = EVENTS, only: OnlyOption = None, json: JsonOption = False) -> None:
    """Measure emits, claims, the relay and its start, beside the raw database and PgQueuer. Takes some minutes."""
    try:
        benchmarks: Any = import_module("penstock.testing.bench")
        import_module("penstock.testing.bench.run")  # with all that the benchmarks need
    except ImportError as error:
        raise UsageError(
            f"the benchmarks need more than is installed ({error}): pip install 'penstock[spark,postgres,bench]'"
        ) from error
    benchmarks.run_relay_bench(events=events, as_json=json, only=only or ())


@bench.command()
def objects(
    clients: Annotated[int, typer.Option(min=1, help="How many clients work at once.")] = 64,
    seconds: Annotated[float, typer.Option(min=1, help="How long each run takes.")] = 8.0,
    json: JsonOption = False,
) -> None:
    """Measure jobs a second through a queue on object storage, beside one write for each change."""
    try:
        benchmark: Any = import_module("penstock.testing.bench.objects")
    except ImportError as error:
        raise UsageError(f"this needs more than is installed ({error}): pip install 'penstock[objects]'") from error
    benchmark.print_report(benchmark.ObjectsPlan(clients=clients, seconds=seconds), as_json=json)


@bench.command()
def streams(
    events: EventsOption = 1_000_000,
    keys: Annotated[int, typer.Option(min=1, help="How many keys the events have.")] = 10_000,
    many_keys: Annotated[int, typer.Option(min=1, help="How many in the runs with many keys.")] = 1_000_000,
    batch: Annotated[int, typer.Option(min=100, help="How many events a micro-batch takes.")] = 20_000,
    rounds: Annotated[int, typer.Option(min=1, help="How often each contender runs.")] = 3,
    json: JsonOption = False,
) -> None:
    """Measure stateful events a second by state store, beside Spark's transformWithState. Takes many minutes."""
    try:
        benchmark: Any = import_module("penstock.testing.bench.streams")
        import_module("google.protobuf")  # transformWithState talks to Java through it
    except ImportError as error:
        raise UsageError(
            f"this needs more than is installed ({error}): pip install 'penstock[spark,postgres,rocksdb,bench]'"
        ) from error
    plan = benchmark.StreamsPlan(events=events, keys=keys, many_keys=many_keys, batch=batch, rounds=rounds)
    benchmark.print_report(plan, as_json=json)
