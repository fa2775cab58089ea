"""Command line of the benchmarks: `python -m benchmarks relay`, or `make bench ARGS=relay`."""

import sys
from typing import Annotated

import typer

from benchmarks.plan import EVENTS, Part
from penstock.cli.terminal.options import JsonOption
from penstock.model.errors import PenstockError

bench = typer.Typer(
    name="bench", help="Measure Penstock on this machine.", invoke_without_command=True, pretty_exceptions_enable=False
)

EventsOption = Annotated[int, typer.Option(min=1_000, help="Number of events per round.")]
OnlyOption = Annotated[
    list[Part] | None, typer.Option("--only", help="Measure only this; repeatable.", show_default=False)
]


@bench.callback()
def _all(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        relay()
        streams()


@bench.command()
def relay(events: EventsOption = EVENTS, only: OnlyOption = None, json: JsonOption = False) -> None:
    """Measure emits, claims, the relay and its start, compared with the raw database and PgQueuer.

    Takes some minutes.
    """
    from benchmarks.run import plan_for, print_report

    print_report(plan_for(events), only or (), as_json=json)


@bench.command()
def objects(
    clients: Annotated[int, typer.Option(min=1, help="Number of concurrent clients.")] = 64,
    seconds: Annotated[float, typer.Option(min=1, help="Duration of each run in seconds.")] = 8.0,
    json: JsonOption = False,
) -> None:
    """Measure jobs per second through a queue on object storage, compared with one write for each change."""
    from benchmarks.objects import ObjectsPlan, print_report

    print_report(ObjectsPlan(clients=clients, seconds=seconds), as_json=json)


@bench.command()
def streams(
    events: EventsOption = 1_000_000,
    keys: Annotated[int, typer.Option(min=1, help="Number of keys.")] = 10_000,
    many_keys: Annotated[int, typer.Option(min=1, help="Number of keys in the runs with many keys.")] = 1_000_000,
    batch: Annotated[int, typer.Option(min=100, help="Maximum number of events per micro-batch.")] = 20_000,
    rounds: Annotated[int, typer.Option(min=1, help="Number of runs per contender.")] = 3,
    json: JsonOption = False,
) -> None:
    """Measure stateful events per second by state store, compared with Spark's transformWithState.

    Takes many minutes.
    """
    from benchmarks.streams import StreamsPlan, print_report

    plan = StreamsPlan(events=events, keys=keys, many_keys=many_keys, batch=batch, rounds=rounds)
    print_report(plan, as_json=json)


@bench.command()
def compare(
    base: Annotated[str, typer.Option(help="Commit to compare the working tree with.")] = "HEAD",
    events: EventsOption = 200_000,
    pairs: Annotated[int, typer.Option(min=1, help="Number of runs per version.")] = 5,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Measure only this: emit, 'emit one', relay, worker or stream; repeatable."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compare CPU time per event with an earlier commit, in interleaved pairs."""
    from benchmarks.compare import compare as run

    run(base, events, pairs, only or (), as_json=json)


if __name__ == "__main__":
    try:
        bench()
    except PenstockError as error:
        sys.exit(f"error: {error}")
