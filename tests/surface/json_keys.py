"""Keys in the `--json` output of commands, on a small store. Results that need Spark are simulated."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from datetime import date
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch
from uuid import uuid4

import penstock
from penstock.admin import lake as lakes
from penstock.cli import main
from penstock.model.stats import Relay
from penstock.pipeline.lake.replay import BroughtBack, LakeCount
from penstock.pipeline.relay import driver as relay
from penstock.pipeline.relay.report import RelayReport
from penstock.pipeline.streams import driver as streaming
from penstock.pipeline.streams.run import Counts
from penstock.streams import Context, StreamEvent
from penstock.testing.streams import StreamHarness

ANY = "*"
"""A key chosen by users."""

# Each command with its arguments, in an order in which each command has something to print.
COMMANDS = (
    ("emit", "order.placed"),
    ("emit --from", "{lines}"),
    ("pause", "outbox"),
    ("limit", "outbox 9"),
    ("status", ""),
    ("events", ""),
    ("show", "{dead}"),
    ("doctor", ""),
    ("resume", "outbox"),
    ("reap", ""),
    ("jobs submit", "email"),
    ("jobs list", ""),
    ("jobs show", "{job}"),
    ("jobs wait", "{job}"),
    ("jobs stats", ""),
    ("jobs cancel --dry-run", "--type email"),
    ("jobs cancel", "--type email --yes"),
    ("dead list", ""),
    ("dead show", "{dead}"),
    ("dead show --payload-only", "{dead}"),
    ("dead redrive --dry-run", "{dead} {pending}"),
    ("dead redrive", "{dead} {pending} --yes"),
    ("cancel --dry-run", "--all"),
    ("cancel", "--all --yes"),
    ("replay --dry-run", "--id {pending}"),
    ("replay", "--id {job}"),
    ("replay --from-lake --dry-run", "lake:/var/lake --all"),
    ("replay --from-lake", "lake:/var/lake --all --yes"),
    ("dead purge --dry-run", "{dead} {job}"),
    ("dead purge", "{dead} {job} --yes"),
    ("purge --dry-run", "--state dead"),
    ("purge", "--state dead --yes"),
    ("relay", "--once --to null:"),
    ("streams run", "tests.surface.json_keys:app --once --state {state}"),
    ("streams list", "--state {state}"),
    ("streams list --count", "--state {state}"),
    ("streams state", "total --state {state}"),
)

app = penstock.Streams()


@app.stream("orders", key=lambda event: event.event_type)
def total(event: StreamEvent, ctx: Context) -> None:
    """Write state for `streams state`."""
    ctx.state[ANY] = event.event_type


def lines(folder: Path) -> list[str]:
    """Return a line for each key, with its path from the top; `[]` are the items of a list. Needs an empty folder."""
    with _spark_filled_in():
        return sorted({f"{name}: {path}" for name, value in _printed(folder) for path in _paths(value)})


def _printed(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield each command with its output."""
    store = f"sqlite:///{folder / 'shop.db'}"
    yield "penstock init", _run(store, "init")
    values = {**_emitted(store), "lines": _lines(folder), "state": _state(folder)}
    for command, arguments in COMMANDS:
        words = command.removesuffix(" --dry-run").split()
        dry = ["--dry-run"] if command.endswith(" --dry-run") else []
        yield f"penstock {command}", _run(store, *words, *arguments.format(**values).split(), *dry)


def _run(store: str, *arguments: str) -> Any:
    """Run a command in this process."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        main(["--store", store, *arguments, "--json"])
    assert out.getvalue(), f"{arguments}: {err.getvalue()}"
    return json.loads(out.getvalue())


def _emitted(url: str) -> Mapping[str, object]:
    """Fill the store: an event that is dead in one of its queues, a pending event, a completed job, a relay."""
    with penstock.connect(url) as outbox, closing(penstock.Jobs(url)) as jobs:
        dead = outbox.emit("order.placed", headers={ANY: "1", f"penstock-stream-{ANY}": "1"})
        claim = outbox.store.claim("outbox", limit=1, claimant="router")
        outbox.store.route(claim.lease, {claim.events[0].seq: ["outbox@a", "outbox@b"]})
        claim = outbox.store.claim("outbox@a", limit=1, claimant="relay")
        outbox.store.settle(claim.lease, {claim.events[0].seq: penstock.Dead("refused")})
        outbox.store.announce(Relay(uuid4(), "outbox", "null:", "localhost"))
        job = jobs.submit("report", headers={ANY: "1"})
        held = jobs.claim("worker")
        assert held is not None
        jobs.complete(held)
        return {"dead": dead, "pending": outbox.emit("order.placed"), "job": job}


def _lines(folder: Path) -> Path:
    path = folder / "events.jsonl"
    path.write_text('{"event_type": "order.placed"}\n')
    return path


def _state(folder: Path) -> str:
    url = f"sqlite:///{folder / 'state'}"
    with closing(StreamHarness(app, "total", url)) as harness:
        harness.run(["1"])
    return url


@contextmanager
def _spark_filled_in() -> Iterator[None]:
    replay = Mock(
        counts=lambda: [LakeCount(date(2026, 1, 31), "order.placed", "outbox", 1)],
        judge=BroughtBack,
        bring_back=lambda **_: BroughtBack(),
    )
    with ExitStack() as patches:
        patches.enter_context(patch.object(lakes, "lake_replay", lambda *_: nullcontext(replay)))
        patches.enter_context(patch.object(relay, "run_relay", lambda *_, **__: RelayReport()))
        patches.enter_context(patch.object(streaming, "run_streams", lambda *_, **__: {ANY: Counts()}))
        patches.enter_context(patch.object(sys, "path", [*sys.path]))  # `streams run` adds the working folder
        yield


def _paths(value: Any, prefix: str = "") -> Iterator[str]:
    match value:
        case {**fields} if fields:
            for name, field in fields.items():
                yield from _paths(field, f"{prefix}.{name}" if prefix else str(name))
        case [*items] if items:
            for item in items:
                yield from _paths(item, f"{prefix}[]")
        case _:
            yield f"{prefix}[]" if value == [] else prefix
