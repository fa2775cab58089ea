"""`penstock streams`: runs an application's streams, lists them and shows their state."""

import json as codec
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from importlib.util import find_spec
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.commands.events import short_time
from penstock.cli.terminal import output
from penstock.cli.terminal.options import Call, JsonOption, StoreOption, group_of_commands
from penstock.config.import_path import ImportTarget, search_working_folder
from penstock.config.urls import mask_url
from penstock.model.errors import MissingDriver, UsageError
from penstock.model.event import DEFAULT_QUEUE
from penstock.telemetry import log

if TYPE_CHECKING:
    from penstock.pipeline.streams.run import Counts
    from penstock.streams.app import StreamSet
    from penstock.streams.state.api import Started, StateStore
    from penstock.streams.state_reader import Kept

SUPERSEDED = 3
"""Exit code of a driver that a newer driver of its stream has replaced."""
SHOWN_KEYS = 5
STATE_HELP = "State store URL; default sqlite:///penstock-state."

streams = group_of_commands("streams", "Run exactly-once streams and inspect their state.")

CheckpointOption = Annotated[
    str | None,
    typer.Option(metavar="FOLDER", help="Spark checkpoint folder; needed only for the position in a DataFrame source."),
]
OwnStateOption = Annotated[
    str | None,
    typer.Option("--state", metavar="URL", help="State store URL; default the application's.", show_default=False),
]
StateOption = Annotated[str | None, typer.Option("--state", metavar="URL", help=STATE_HELP, show_default=False)]


@streams.command()
def run(
    context: typer.Context,
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Stream application, such as shop.streams:app.")],
    name: Annotated[list[str] | None, typer.Option("--name", help="Only this stream; repeatable.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Exit when no event is ready.")] = False,
    master: Annotated[str | None, typer.Option(metavar="URL", help="Spark master; default this machine.")] = None,
    checkpoint: CheckpointOption = None,
    store: StoreOption = None,
    state: OwnStateOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only warnings and errors.")] = False,
    json: JsonOption = False,
) -> None:
    """Run an application's streams until SIGINT or SIGTERM; with --once, until no event is ready.

    The application is imported from the working folder or Python's path. --store and --state override its settings.
    """
    from penstock.streams.state.api import Superseded

    loaded = _load(app, store or context.find_root().obj, state)
    _check(context, loaded, name, master)
    log.to_stderr(logging.WARNING if quiet or once else logging.INFO)
    started = time.monotonic()
    try:
        counts = _run(loaded, names=name, once=once, master=master, checkpoint=checkpoint)
    except Superseded as error:
        output.note(str(error))
        raise typer.Exit(SUPERSEDED) from None
    seconds = time.monotonic() - started
    if json:
        applied = {stream: asdict(one) for stream, one in counts.items()}
        output.write_json({"streams": applied, "seconds": round(seconds, 3)})
    elif not quiet:
        output.write("\n".join(f"{line} in {seconds:.1f} s" for line in _counts(counts)))


def _load(name: str, store: str | None, state: str | None) -> "StreamSet":
    from penstock.streams.app import StreamSet

    search_working_folder()
    loaded: StreamSet = ImportTarget("stream application", StreamSet, "shop.streams:app").load(name)
    loaded.store = store or loaded.store
    loaded.state = state or loaded.state
    return loaded


def _check(context: typer.Context, app: "StreamSet", names: list[str] | None, master: str | None) -> None:
    """Check PySpark, streams, state and store before the start of Spark, which takes seconds."""
    if find_spec("pyspark") is None:
        raise MissingDriver("a stream", "spark")
    from penstock.pipeline.streams.driver import choose, require_reachable
    from penstock.streams.state.registry import open_state

    choose(app, names)
    with closing(open_state(app.state)) as state:
        require_reachable(state, master or "local")
        state.streams()
    with Call(context, app.store).opened() as admin:
        admin.store.ready(DEFAULT_QUEUE)


def _run(app: "StreamSet", **given: Any) -> "Mapping[str, Counts]":
    from penstock.pipeline import run_streams

    if not given["once"]:
        return run_streams(app, **given)
    with output.waiting("starting Spark") as say:
        return run_streams(app, **given, progress=lambda counts: say("; ".join(_counts(counts))))


def _counts(counts: "Mapping[str, Counts]") -> Iterator[str]:
    """Yield one line of counts for each stream."""
    for stream, one in counts.items():
        kinds = {"applied": one.applied, "retried": one.retried, "dead": one.dead}
        numbers = ", ".join(f"{number:,} {kind}" for kind, number in kinds.items() if number or kind == "applied")
        yield output.clean_line(f"{stream}: {numbers}")


@streams.command("list")
def list_streams(
    counted: Annotated[bool, typer.Option("--count", help="Count the keys, which reads the complete state.")] = False,
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """List the streams that have run. The epoch counts the starts of a stream's driver."""
    from penstock.streams.state_reader import look

    with closing(_open(state)) as store:
        shown = ("stream", "epoch", "parts", "identity")
        found = [{name: getattr(one, name) for name in shown} for one in store.streams()]
        if counted:
            for fields, one in zip(found, store.streams(), strict=True):
                fields["keys"] = sum(1 for _ in look(store, one))
    if json:
        output.write_json(found)
    elif found:
        output.show(_table(["stream", "epoch", "parts", "identity", *(["keys"] if counted else [])], found))
    else:
        output.note(f"{mask_url(store.url)} has no state of any stream")


@streams.command("state")
def show_state(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="Stream name.")],
    key: Annotated[str | None, typer.Argument(metavar="KEY", help="Only this key.", show_default=False)] = None,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Only keys with this prefix.", show_default=False)] = "",
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of keys.")] = 50,
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """Show a stream's committed state, by key or of one key. The stream may be running or stopped."""
    from penstock.streams.state_reader import find_stream

    if key is not None and prefix:
        raise UsageError("KEY and --prefix are mutually exclusive")
    with closing(_open(state)) as store:
        started = find_stream(store, stream)
        if key is not None:
            _write(iter([_one(store, started, key)]), json)
            return
        found = _beginning(store, started, prefix)
        if not _write(islice(found, limit), json):
            output.note(f"stream {stream!r} has no state{f' for keys with the prefix {prefix!r}' if prefix else ''}")
        elif next(found, None) is not None:
            output.note(f"more than {limit:,} keys: use --limit or --prefix")


def _open(state: str | None) -> "StateStore":
    from penstock.streams.state.registry import DEFAULT_STATE, open_state

    return open_state(state or DEFAULT_STATE)


def _one(store: "StateStore", stream: "Started", key: str) -> "Kept":
    from penstock.streams.app import part_of
    from penstock.streams.state_reader import look

    for kept in look(store, stream, [key], part=part_of(key, stream.parts)):
        return kept
    there = ", ".join(output.clean_line(kept.key) for kept in islice(look(store, stream), SHOWN_KEYS))
    hint = f"first keys: {there}" if there else "the stream has no keys"
    raise UsageError(f"stream {stream.stream!r} has no state for key {key!r}; {hint}")


def _beginning(store: "StateStore", stream: "Started", prefix: str) -> "Iterator[Kept]":
    """Yield the entries with keys that begin with the prefix. Keys are sorted, so the entries are contiguous."""
    from penstock.streams.state_reader import look

    reached = (kept for kept in look(store, stream) if kept.key >= prefix)
    return takewhile(lambda kept: kept.key.startswith(prefix), reached)


def _write(found: "Iterator[Kept]", as_json: bool) -> int:
    """Print the entries and return their number."""
    if not as_json:
        rows = [{"key": one.key, "state": one.state, "expires": _short(one)} for one in found]
        if rows:
            output.show(_table(["key", "state", *(["expires"] if any(row["expires"] for row in rows) else [])], rows))
        return len(rows)
    written = 0
    for one in found:
        expires_at = None if one.expires_at is None else one.expires_at.isoformat()
        fields = {"key": one.key, "part": one.part, "state": codec.loads(one.state), "expires_at": expires_at}
        output.write_json(fields, indent=None)
        written += 1
    return written


def _short(kept: "Kept") -> str:
    return "" if kept.expires_at is None else short_time(kept.expires_at.isoformat())


def _table(columns: list[str], rows: list[dict[str, Any]]) -> Any:
    numbers = [column for column in columns if isinstance(rows[0][column], int)]
    texts = ({column: str(row[column]) for column in columns} for row in rows)
    return output.table(texts, columns, right=numbers)
