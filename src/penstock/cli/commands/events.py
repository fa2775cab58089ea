"""`penstock events` and `penstock show`: looking at events, many or one."""

import base64
import json as codec
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.admin.text import count, first_line
from penstock.cli.terminal import output
from penstock.cli.terminal.filters import Filters, IdsOption, StatesOption, takes_filters
from penstock.cli.terminal.options import JsonOption, StoreOption, event_id, opened

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

STATE_STYLES = {"PENDING": "yellow", "CLAIMED": "cyan", "PUBLISHED": "green", "DEAD": "red"}
ERROR_WIDTH = 60
NOTES = ("progress", "result")
# The payload, what was said and the timeline have places of their own.
APART = (
    "headers",
    "timeline",
    "copies",
    *(f"{name}{end}" for name in ("payload", *NOTES) for end in ("", "_encoding")),
)


@takes_filters
def events(
    context: typer.Context,
    filters: Filters,
    ids: IdsOption = None,
    state: StatesOption = None,
    limit: Annotated[int, typer.Option(min=1, help="How many, at most.")] = 50,
    after: Annotated[
        int | None, typer.Option(metavar="SEQ", help="Go on after this one, as the last page said.")
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """List events, newest first."""
    chosen = filters.select(ids=ids, states=state)
    with opened(context, store) as admin:
        more: list[int | None] = [None]

        def found() -> Any:
            for page in admin.pages(chosen, after=after, limit=limit):
                more[0] = page.after
                yield from page.events

        if json:
            output.write_json_array(found())
        else:
            _list(list(found()))
        if more[0] is not None:
            output.note(f"there are more: --after {more[0]}")


def show(
    context: typer.Context,
    event: Annotated[str, typer.Argument(metavar="ID", help="The event's id.")],
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Show one event: every field, its payload, what was said of it, and its life so far."""
    wanted = event_id(event)
    with opened(context, store) as admin:
        document = admin.show(wanted)
    if json:
        output.write_json(document)
    else:
        parts = [_fields(document), "", *_payload(document), ""]
        for name in NOTES:
            parts += _note(name, document)
        output.show(*parts, timeline_table(document["timeline"]))


def _list(found: list[dict[str, Any]]) -> None:
    if not found:
        output.note("no events match")
        return
    output.show(table(found))


def table(found: list[dict[str, Any]]) -> "RenderableType":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("id", no_wrap=True)
    for name in ("type", "queue", "state", "attempts", "emitted", "error"):
        table.add_column(name, justify="right" if name == "attempts" else "left", overflow="fold")
    for event in found:
        table.add_row(
            event["event_id"],
            output.clean_line(event["event_type"]),
            output.clean_line(event["queue"]),
            Text(event["state"], style=STATE_STYLES[event["state"]]),
            str(event["attempts"]),
            short_time(event["created_at"]),
            short_error(event["last_error"]),
        )
    return table


def short_error(error: str | None) -> str:
    """As much of an error as a column of a table has room for."""
    return output.clean_line(first_line(error or "", ERROR_WIDTH))


def short_time(iso: str) -> str:
    """In UTC, to the second: `2026-01-31 12:00:00Z`."""
    return iso[:19].replace("T", " ") + "Z"


def since_when(iso: str, by: str | None) -> str:
    """Since when, and by whom if that is known."""
    return f"since {short_time(iso)}" + (f" by {output.clean_line(by)}" if by else "")


def _fields(document: dict[str, Any]) -> "RenderableType":
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    for name, value in document.items():
        if name not in APART and value is not None:
            grid.add_row(name, output.clean_line(str(value)))
    add_headers_and_copies(grid, document)
    return grid


def add_headers_and_copies(grid: "Table", document: dict[str, Any]) -> None:
    for name, value in document["headers"].items():
        grid.add_row(f"header {output.clean_line(name)}", output.clean_line(value))
    for copy in document.get("copies", ()):
        text = f"{copy['state']}, {copy['attempts']} attempts  {short_error(copy['last_error'])}"
        grid.add_row(f"also in {output.clean_line(copy['queue'])}", text.rstrip())


def _payload(document: dict[str, Any]) -> "list[RenderableType]":
    """The payload, JSON set out for reading."""
    text = document["payload"]
    if document["payload_encoding"] == "base64":
        return ["payload (not UTF-8, so in base64)", text]
    return ["payload", readable(text)] if text else ["no payload"]


def _note(name: str, document: dict[str, Any]) -> "list[RenderableType]":
    """What whoever handles the event has said of it; of what is no text, only how much there is."""
    text = document[name]
    if text is None:
        return []
    if document[f"{name}_encoding"] == "base64":
        return [f"{name}: {count(len(base64.b64decode(text)), 'byte')} that are not UTF-8; --json has them", ""]
    return [name, readable(text), ""]


def readable(text: str) -> str:
    """JSON set out for reading, other text as it is."""
    with suppress(ValueError, RecursionError):
        text = codec.dumps(codec.loads(text), indent=2, ensure_ascii=False)
    return output.clean(text)


def timeline_table(entries: list[dict[str, Any]], *, brief: bool = False) -> "RenderableType":
    """The life of an event; brief, with only the first line of what is said of each step."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("at", "what", "attempts", "by", "detail"):
        table.add_column(name, justify="right" if name == "attempts" else "left", overflow="fold")
    for entry in entries:
        text = entry["detail"] or ""
        detail = output.clean_line(first_line(text, ERROR_WIDTH) if brief else text)
        table.add_row(
            short_time(entry["at"]), entry["what"], str(entry["attempts"]), output.clean_line(entry["by"] or ""), detail
        )
    return table
