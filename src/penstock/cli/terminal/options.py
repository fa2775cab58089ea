"""The options that commands share, and what becomes of them: a store that is open, an id. `filters` has those that
choose events."""

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

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


@contextmanager
def opened(context: typer.Context, store: str | None) -> Iterator["Admin"]:
    """The admin service on the store that the command, the global option or the environment names."""
    from penstock.admin.service import Admin
    from penstock.store.registry import open_store

    url = chosen_store(context, store)
    try:
        chosen = open_store(url)
    except PenstockError:
        raise
    except Exception as error:  # whatever a URL parser stumbles over, and with words that hold the password
        raise UsageError(f"{mask_url(url)!r} can't be understood as the URL of a store") from error
    try:
        yield Admin(chosen)
    finally:
        chosen.close()


def chosen_store(context: typer.Context, store: str | None) -> str:
    return store_url(store or context.find_root().obj)


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
