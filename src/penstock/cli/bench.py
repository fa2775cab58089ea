"""`penstock bench`: measurements on this machine. The benchmarks themselves are in `penstock.testing.bench`."""

from importlib import import_module
from typing import Annotated, Any

import typer

from penstock.cli.options import JsonOption
from penstock.errors import UsageError

DEFAULT_EVENTS = 100_000

bench = typer.Typer(name="bench", help="Measure Penstock on this machine.", invoke_without_command=True)

EventsOption = Annotated[int, typer.Option(min=1, help="How many events to carry.")]


@bench.callback()
def _all(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        relay(DEFAULT_EVENTS)


@bench.command()
def relay(events: EventsOption = DEFAULT_EVENTS, json: JsonOption = False) -> None:
    """Measure how fast the relay carries events, and how long each is on its way."""
    try:
        benchmarks: Any = import_module("penstock.testing.bench")
    except ImportError as error:
        raise UsageError(
            f"the benchmarks need more than is installed ({error}): pip install 'penstock[spark,bench]'"
        ) from error
    benchmarks.run_relay_bench(events=events, as_json=json)
