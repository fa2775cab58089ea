"""Options that commands share, and the values made from them: an open store, an event id.

Options that select events are in `filters`.
"""

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

STORE_HELP = "Store URL; default PENSTOCK_STORE or sqlite:///penstock.db."

StoreOption = Annotated[str | None, typer.Option("--store", metavar="URL", help=STORE_HELP, show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Preview the changes without making them.")]
LimitOption = Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of results.")]


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Expand dataclass parameters of a command into one option for each field.

    Typer reads the options from the command's signature, so the new signature has the fields in place of the parameter.
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
    """The options of a call that every command has: store and JSON output."""

    context: typer.Context
    store: StoreOption = None
    json: JsonOption = False

    @property
    def url(self) -> str:
        return chosen_store(self.context, self.store)

    @contextmanager
    def opened(self) -> "Iterator[Admin]":
        """Open the admin service on the store given by the command, the global option, or the environment."""
        from penstock.admin.service import Admin
        from penstock.store.registry import open_store

        try:
            chosen = open_store(self.url)
        except PenstockError:
            raise
        except Exception as error:  # any exception of a URL parser; its text may contain the password
            raise UsageError(
                f"invalid store URL {mask_url(self.url)}; expected a URL such as sqlite:///penstock.db"
            ) from error
        try:
            yield Admin(chosen)
        finally:
            chosen.close()

    def answer(self, document: Any, text: str) -> None:
        """Print the result as JSON or as text."""
        if self.json:
            output.write_json(document)
        else:
            output.write(text)


def chosen_store(context: typer.Context, store: str | None) -> str:
    return store_url(store or context.find_root().obj)


def group_of_commands(name: str, help_text: str) -> typer.Typer:
    """Return a command group that prints its help when called without a subcommand."""

    def show_help(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            print(context.get_help())
            raise typer.Exit(USAGE)

    group = typer.Typer(name=name, help=help_text, invoke_without_command=True)
    group.callback()(show_help)
    return group


def operator() -> str:
    """Return the user name for the audit trail."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user id may have no name
        return "operator"


def event_id(text: str) -> EventId:
    try:
        return EventId(UUID(text.strip()))
    except ValueError as error:
        raise UsageError(
            f"invalid event id {text!r}; expected a UUID such as 0197a3c2-7b1e-7c3d-9f00-5a2b8c4d6e1f, as listed by "
            "penstock events"
        ) from error
