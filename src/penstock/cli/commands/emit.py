"""`penstock emit`: one event from the arguments, or many from JSON lines, all or none."""

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from datetime import datetime
from itertools import islice
from json import loads as decode_json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from penstock.cli.terminal import output, times
from penstock.cli.terminal.jsonl import read_events
from penstock.cli.terminal.options import Call, takes_options
from penstock.config.routes import find_routes
from penstock.model.errors import InvalidEvent, UsageError
from penstock.model.event import CONTENT_TYPE, DEFAULT_QUEUE, Event, EventId

if TYPE_CHECKING:
    from penstock.store.api import Store

BATCH = 1_000
STDIN = "-"


@dataclass(frozen=True, slots=True)
class EventOptions:
    """Options for the fields of an event. Fields without an option keep the defaults of Event."""

    queue: Annotated[str | None, typer.Option(help=f"Queue; default {DEFAULT_QUEUE}.")] = None
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Header; repeatable.")] = None
    partition_key: Annotated[str | None, typer.Option(help="Partition key for the destination.")] = None
    ordering_key: Annotated[str | None, typer.Option(help="Events with the same key are delivered in order.")] = None
    priority: Annotated[int | None, typer.Option(help="Priority from -100 to 100; higher is claimed first.")] = None
    delay_seconds: Annotated[
        float | None,
        typer.Option("--delay", metavar="TIME", parser=times.seconds, help="Delay: seconds, or a value such as 10m."),
    ] = None
    available_at: Annotated[
        datetime | None, typer.Option(metavar="TIME", parser=times.iso, help="Earliest time of delivery (ISO 8601).")
    ] = None
    max_attempts: Annotated[
        int | None, typer.Option(help="Number of failures after which the event is dead; default the consumer's limit.")
    ] = None
    dedupe_key: Annotated[str | None, typer.Option(help="Later events with this key within a day are dropped.")] = None

    def given(self) -> dict[str, Any]:
        """Return the fields that were given as options, without headers."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "header"}
        return {name: value for name, value in values.items() if value is not None}


@takes_options
def emit(
    event_type: Annotated[str | None, typer.Argument(metavar="TYPE", help="Event type, such as order.placed.")] = None,
    payload: Annotated[str | None, typer.Argument(metavar="PAYLOAD", help="Payload; - reads standard input.")] = None,
    source: Annotated[
        str | None, typer.Option("--from", metavar="FILE", help="JSON events, one per line; - reads standard input.")
    ] = None,
    *,
    options: EventOptions,
    call: Call,
) -> None:
    """Write one event and print its id, or write many events with --from.

    The payload is stored byte for byte. The content type in the headers is JSON or text, unless --header sets another.
    """
    given = options.given()
    if source is not None:
        if event_type is not None or options.header or given:
            raise UsageError("--from and TYPE or event options are mutually exclusive")
        _emit_lines(call, source)
    elif event_type is None:
        raise UsageError("missing TYPE; use penstock emit order.placed '{\"id\": 1}', or --from FILE")
    else:
        body, headers = _body(payload, dict(map(_header, options.header or ())))
        _emit_one(call, Event(event_type=event_type, payload=body, headers=headers, **given))


def _emit_one(call: Call, event: Event) -> None:
    with call.opened() as admin:
        event_id, duplicates = _append(admin.store, [event], None)
        call.answer({"event_id": str(event_id), "duplicate": duplicates > 0}, str(event_id))
        if duplicates and not call.json:
            output.note("duplicate: the printed id is that of an earlier event with this deduplication key")


def _emit_lines(call: Call, source: str) -> None:
    with call.opened() as admin, _lines(source) as lines:
        emitted, duplicates = _write(admin.store, lines)
    dropped = f"; {duplicates:,} dropped as duplicates" if duplicates else ""
    call.answer({"emitted": emitted, "duplicates": duplicates}, f"{emitted:,} emitted{dropped}")


def _append(store: "Store", events: list[Event], connection: Any) -> tuple[EventId, int]:
    """Append events; return the id of the last one and the number of duplicates.

    Append returns another id than the given one for a duplicate. Only events with a deduplication key can be
    duplicates.
    """
    from penstock.store.event_ids import new_event_id

    routes = find_routes()
    if routes is not None:
        routes.require({event.event_type for event in events})
    named = [replace(e, event_id=e.event_id or new_event_id()) if e.dedupe_key else e for e in events]
    ids = store.append(named, connection=connection)
    duplicates = sum(event.event_id not in (None, event_id) for event, event_id in zip(named, ids, strict=True))
    return ids[-1], duplicates


def _write(store: "Store", lines: BinaryIO) -> tuple[int, int]:
    """Write all lines in one transaction, in batches to bound memory; in one batch if the store has no transactions."""
    from penstock.store.sql.store import SqlStore

    total = duplicates = 0
    size = os.fstat(lines.fileno()).st_size
    events = read_events(lines)
    transaction, most = (store.transaction(), BATCH) if isinstance(store, SqlStore) else (nullcontext(), None)
    with output.progress("emitting", size or None) as update, transaction as connection:
        while batch := list(islice(events, most)):
            numbers = [number for number, _ in batch]
            try:
                _, known = _append(store, [event for _, event in batch], connection)
            except InvalidEvent as error:
                raise InvalidEvent(f"lines {numbers[0]} to {numbers[-1]}: {error}; no event was emitted") from error
            total += len(batch)
            duplicates += known
            update(lines.tell())
    return total - duplicates, duplicates


@contextmanager
def _lines(source: str) -> Iterator[BinaryIO]:
    """Open the lines as a file. A pipe is first copied to a temporary file, so that no transaction waits for it."""
    with _open(source) as given:
        if stat.S_ISREG(os.fstat(given.fileno()).st_mode):
            yield given
            return
        with tempfile.TemporaryFile() as gathered:
            shutil.copyfileobj(given, gathered)
            gathered.seek(0)
            yield gathered


def _open(source: str) -> AbstractContextManager[BinaryIO]:
    try:
        return nullcontext(sys.stdin.buffer) if source == STDIN else Path(source).open("rb")
    except OSError as error:
        raise UsageError(f"cannot open {source}: {error.strerror}") from error


def _body(payload: str | None, headers: dict[str, str]) -> tuple[bytes, dict[str, str]]:
    """Return the payload's bytes, and the headers with a content type detected from the payload."""
    if payload is None:
        return b"", headers
    body = sys.stdin.buffer.read() if payload == STDIN else os.fsencode(payload)
    content_type = _content_type(body)
    named = {name.lower() for name in headers}
    return body, headers if content_type is None or CONTENT_TYPE in named else {**headers, CONTENT_TYPE: content_type}


def _content_type(body: bytes) -> str | None:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    try:
        is_json = isinstance(decode_json(text), dict | list)
    except (ValueError, RecursionError):
        is_json = False
    return "application/json" if is_json else "text/plain; charset=utf-8"


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"invalid header {text!r}; expected NAME=VALUE")
    return name, value
