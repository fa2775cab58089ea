"""Fixtures that run the command line in this process or in a separate process, with a store in a fresh folder."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main
from penstock.model.event import Event, EventId
from penstock.model.outcome import PUBLISHED, Outcome
from penstock.store.registry import open_store
from penstock.store.sql.store import SqlStore

PROGRAM = [sys.executable, "-c", "import sys; from penstock.cli import main; sys.exit(main())"]


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ran]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test in a temporary folder, since the default store is a file in the working folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("PENSTOCK_STORE", "PENSTOCK_DEBUG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def penstock(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Return a function that runs a command in this process."""

    def run(*arguments: str, stdin: bytes = b"") -> Ran:
        (tmp_path / ".stdin").write_bytes(stdin)
        with (tmp_path / ".stdin").open("rb") as file:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))
            capsys.readouterr()
            code = main(arguments)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


@pytest.fixture
def process() -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """Return a function that starts a command in a separate process."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, **settings: Any) -> "subprocess.Popen[bytes]":
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen([*PROGRAM, *arguments], **{**pipes, **settings}))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait()
        for pipe in (one.stdin, one.stdout, one.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    """Open the default store with its tables created."""
    opened = open_store(f"sqlite:///{tmp_path / 'penstock.db'}")
    opened.initialise()
    yield opened
    opened.close()


@pytest.fixture
def settled(store: SqlStore) -> Callable[..., str]:
    """Return a function that emits one event, settles it and returns its id as text."""

    def settle(outcome: Outcome = PUBLISHED, event_type: str = "order.placed", queue: str = "outbox") -> str:
        (event_id,) = store.append([Event(event_type=event_type, queue=queue, payload=b'{"id": 1}')])
        claim = store.claim(queue, limit=100, claimant="tester")
        store.settle(claim.lease, {event.seq: outcome for event in claim.events})
        return str(event_id)

    return settle


@pytest.fixture
def an_hour_ago(store: SqlStore, tmp_path: Path) -> Iterator[SqlStore]:
    """Open the default store with a clock that is one hour slow."""
    opened = open_store(f"sqlite:///{tmp_path / 'penstock.db'}", clock=lambda: datetime.now(UTC) - timedelta(hours=1))
    yield opened
    opened.close()


@pytest.fixture
def emitted(store: SqlStore) -> Callable[..., EventId]:
    """Return a function that emits one event and returns its id."""

    def emit(event_type: str = "order.placed", **fields: Any) -> EventId:
        return store.append([Event(event_type=event_type, **fields)])[0]

    return emit


@pytest.fixture
def debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "PENSTOCK_DEBUG", "1")
