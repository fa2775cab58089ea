"""`penstock events` and `penstock show`: lists events, shows one event."""

import base64
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.admin.text import count, first_line
from penstock.cli.terminal import output
from penstock.cli.terminal.filters import Filters, IdsOption, StatesOption
from penstock.cli.terminal.options import Call, event_id, takes_options
from penstock.cli.terminal.payloads import set_out

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

STATE_STYLES = {"PENDING": "yellow", "CLAIMED": "cyan", "PUBLISHED": "green", "DEAD": "red"}
ERROR_WIDTH = 60
NOTES = ("progress", "result")
# Fields that are shown apart from the grid of fields: the payload, the notes and the timeline.
APART = (
    "headers",
    "timeline",
    "copies",
    *(f"{name}{end}" for name in ("payload", *NOTES) for end in ("", "_encoding")),
)


@takes_options
def events(
    filters: Filters,
    ids: IdsOption = None,
    state: StatesOption = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of events.")] = 50,
    after: Annotated[
        int | None, typer.Option(metavar="SEQ", help="Continue after the number printed by the previous list.")
    ] = None,
    *,
    call: Call,
) -> None:
    """List events, newest first."""
    chosen = filters.select(ids=ids, states=state)
    with call.opened() as admin:
        more: list[int | None] = [None]

        def found() -> Any:
            for page in admin.pages(chosen, after=after, limit=limit):
                more[0] = page.after
                yield from page.events

        if call.json:
            output.write_json_array(found())
        elif listed := list(found()):
            output.show(table(listed))
        else:
            output.note("no events match")
        if more[0] is not None:
            output.note(f"more results: use --after {more[0]}")


@takes_options
def show(event: Annotated[str, typer.Argument(metavar="ID", help="Event id.")], call: Call) -> None:
    """Show one event: fields, payload, progress, result and timeline."""
    wanted = event_id(event)
    with call.opened() as admin:
        document = admin.show(wanted)
    if call.json:
        output.write_json(document)
    else:
        parts = [_fields(document), "", *_payload(document), ""]
        for name in NOTES:
            parts += _note(name, document)
        output.show(*parts, timeline_table(document["timeline"]))


def table(found: list[dict[str, Any]]) -> "RenderableType":
    rows = (
        {
            "id": event["event_id"],
            "type": event["event_type"],
            "queue": event["queue"],
            "state": state_text(event["state"]),
            "attempts": str(event["attempts"]),
            "emitted": short_time(event["created_at"]),
            "error": short_error(event["last_error"]),
        }
        for event in found
    )
    columns = ("id", "type", "queue", "state", "attempts", "emitted", "error")
    return output.table(rows, columns, right=("attempts",), whole=("id",))


def state_text(state: str) -> "Text":
    from rich.text import Text

    return Text(state, style=STATE_STYLES[state])


def short_error(error: str | None) -> str:
    """Return the first line of an error, cut to the width of a table column."""
    return output.clean_line(first_line(error or "", ERROR_WIDTH))


def short_time(iso: str) -> str:
    """Return a UTC time to the second: `2026-01-31 12:00:00Z`."""
    return iso[:19].replace("T", " ") + "Z"


def since_when(iso: str, by: str | None) -> str:
    """Return the start of a pause, and the author if known."""
    return f"since {short_time(iso)}" + (f" by {output.clean_line(by)}" if by else "")


def _fields(document: dict[str, Any]) -> "RenderableType":
    fields = [(name, str(value)) for name, value in document.items() if name not in APART and value is not None]
    return output.grid([*fields, *headers_and_copies(document)])


def headers_and_copies(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in document["headers"].items():
        yield f"header {name}", value
    for copy in document.get("copies", ()):
        text = f"{copy['state']}, {copy['attempts']} attempts  {short_error(copy['last_error'])}"
        yield f"also in {copy['queue']}", text.rstrip()


def _payload(document: dict[str, Any]) -> "list[RenderableType]":
    """Return the payload, JSON indented for reading."""
    text = document["payload"]
    if document["payload_encoding"] == "base64":
        return ["payload (not UTF-8, shown in base64)", text]
    return ["payload", readable(text)] if text else ["no payload"]


def _note(name: str, document: dict[str, Any]) -> "list[RenderableType]":
    """Return the progress or result that the event's handler recorded; of binary values only the size."""
    text = document[name]
    if text is None:
        return []
    if document[f"{name}_encoding"] == "base64":
        return [f"{name}: {count(len(base64.b64decode(text)), 'byte')}, not UTF-8; use --json to print base64", ""]
    return [name, readable(text), ""]


def readable(text: str) -> str:
    """Return JSON indented for reading, other text unchanged, with control characters escaped."""
    return output.clean(set_out(text) or text)


def timeline_table(entries: list[dict[str, Any]], *, brief: bool = False) -> "RenderableType":
    """Return the timeline of an event; with `brief`, only the first line of each entry's detail."""
    rows = []
    for entry in entries:
        detail = entry["detail"] or ""
        shown = {"at": short_time(entry["at"]), "attempts": str(entry["attempts"]), "by": entry["by"] or ""}
        rows.append({**entry, **shown, "detail": first_line(detail, ERROR_WIDTH) if brief else detail})
    return output.table(rows, ("at", "what", "attempts", "by", "detail"), right=("attempts",))
