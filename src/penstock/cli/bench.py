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
