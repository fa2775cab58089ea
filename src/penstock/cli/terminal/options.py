"""The options that commands share, and what becomes of them: a store that is open, an id. `filters` has those that
choose events."""

import getpass
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from penstock.cli.terminal import output
from penstock.cli.terminal.exit import USAGE
from penstock.config.urls import mask_url, store_url
from penstock.model.errors import PenstockError, UsageError
from penstock.model.event import EventId

if TYPE_CHECKING:
    from penstock.admin.service import Admin

STORE_HELP = "Where the events are; else PENSTOCK_STORE, else sqlite:///penstock.db."

StoreOption = Annotated[str | None, typer.Option("--store", metavar="URL", help=STORE_HELP, show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show what it would do.")]
LimitOption = Annotated[int, typer.Option(min=1, max=10_000, help="How many, at most.")]


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command with parameters that are dataclasses, whose fields are options of the command.

    Typer reads a command's options off its signature, so in the signature the fields stand where the parameter does.
    """
    parameters = inspect.signature(command).parameters.values()
    groups: dict[str, Any] = {one.name: one.annotation for one in parameters if is_dataclass(one.annotation)}

    @wraps(command)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{option: given.pop(option) for option in inspect.signature(group).parameters})
        command(**given)

    shown: list[inspect.Parameter] = []
    for parameter in parameters:
        group = groups.get(parameter.name)
        single = inspect.signature(group).parameters.values() if group else (parameter,)
        shown += [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in single]
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    return run


@dataclass(frozen=True, slots=True)
class Call:
    """How a command was called: on which store, and whether it answers in JSON."""

    context: typer.Context
    store: StoreOption = None
    json: JsonOption = False

    @property
    def url(self) -> str:
        return chosen_store(self.context, self.store)

    @contextmanager
    def opened(self) -> "Iterator[Admin]":
        """The admin service on the store that the command, the global option or the environment names."""
        from penstock.admin.service import Admin
        from penstock.store.registry import open_store

        try:
            chosen = open_store(self.url)
        except PenstockError:
            raise
        except Exception as error:  # whatever a URL parser stumbles over, and with words that hold the password
            raise UsageError(f"{mask_url(self.url)!r} can't be understood as the URL of a store") from error
        try:
            yield Admin(chosen)
        finally:
            chosen.close()

    def answer(self, document: Any, text: str) -> None:
        """Print the result, as JSON or as text."""
        if self.json:
            output.write_json(document)
        else:
            output.write(text)


def chosen_store(context: typer.Context, store: str | None) -> str:
    return store_url(store or context.find_root().obj)


def group_of_commands(name: str, help_text: str) -> typer.Typer:
    """A command that has commands of its own, and alone prints its help."""

    def show_help(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            print(context.get_help())
            raise typer.Exit(USAGE)

    group = typer.Typer(name=name, help=help_text, invoke_without_command=True)
    group.callback()(show_help)
    return group


def operator() -> str:
    """Who goes into the audit trail."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number without a name
        return "operator"


def event_id(text: str) -> EventId:
    try:
        return EventId(UUID(text.strip()))
    except ValueError as error:
        raise UsageError(
            f"{text!r} is not an event id; one looks like 0197a3c2-7b1e-7c3d-9f00-5a2b8c4d6e1f, and "
            "penstock events lists them"
        ) from error
