"""The `penstock` command: global options, the list of commands, and the handler of all errors.

Command modules import heavy dependencies inside their functions, so that help and status start fast.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from penstock.cli.commands.broker import broker
from penstock.cli.commands.control import cancel, limit, pause, resume
from penstock.cli.commands.dead import dead
from penstock.cli.commands.demo import demo
from penstock.cli.commands.doctor import doctor
from penstock.cli.commands.emit import emit
from penstock.cli.commands.events import events, show
from penstock.cli.commands.jobs import jobs
from penstock.cli.commands.maintenance import init, purge, reap, replay
from penstock.cli.commands.relay import relay
from penstock.cli.commands.status import status
from penstock.cli.commands.streams import streams
from penstock.cli.commands.worker import worker
from penstock.cli.terminal.exit import USAGE, report_failure
from penstock.cli.terminal.options import StoreOption


class _Group(TyperGroup):
    """Command group that reports a broken connection as an error.

    Typer treats every BrokenPipeError as a closed standard output and exits silently. `output` handles a closed
    standard output where it writes; every other BrokenPipeError is a broken connection, hence a failure.
    """

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ConnectionError(f"connection lost: {error}") from error


app = typer.Typer(
    name="penstock",
    cls=_Group,
    help="Events from your database transaction to brokers, handlers and streams.",
    epilog="Start with: penstock demo",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from penstock import __version__

        print(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    context: typer.Context,
    store: StoreOption = None,
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    context.obj = store
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(USAGE)


_COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Core commands": (init, emit, relay, worker, broker),
    "Inspection": (status, events, show, doctor),
    "Maintenance": (replay, reap, purge),
    "Control": (pause, resume, limit, cancel),
}
for _panel, _functions in _COMMANDS.items():
    for _function in _functions:
        app.command(rich_help_panel=_panel)(_function)
app.add_typer(jobs, rich_help_panel="Core commands")
app.add_typer(streams, rich_help_panel="Core commands")
app.add_typer(dead, rich_help_panel="Maintenance")
app.command(rich_help_panel="Demo")(demo)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit code. Report every Exception instead of raising it."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a character that the terminal can't encode must not fail the command
            stream.reconfigure(errors="backslashreplace")
    try:
        code = get_command(app).main(arguments, prog_name="penstock", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except Exception as error:
        return report_failure(error)
