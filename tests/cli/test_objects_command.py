"""The command line with a queue on object storage: the usual commands, and `penstock broker`."""

import json
import signal
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import IO, Any

import pytest

from penstock.model.event import Event
from penstock.model.outcome import Dead
from penstock.store.registry import open_store

Run = Callable[..., Any]
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def url(penstock: Run, tmp_path: Path) -> str:
    url = f"objects+file://{tmp_path}/queue"
    assert penstock("init", "--store", url).out == f"{url} is ready, at version 2\n"
    assert penstock("init", "--store", url).out == f"{url} is up to date, at version 2\n"
    return url


def test_every_command_supports_object_storage(penstock: Run, url: str) -> None:
    event_id = penstock("emit", "order.placed", '{"order": 1}', "--store", url).out.strip()
    with closing(open_store(url)) as store:
        held = store.claim("outbox", limit=1, claimant="tester")
        store.settle(held.lease, {held.events[0].seq: Dead("no")})
    assert penstock("status", "--json", "--store", url).json["dead"] == 1
    assert [one["event_id"] for one in penstock("events", "--json", "--store", url).json] == [event_id]
    shown = penstock("show", event_id, "--json", "--store", url).json
    assert (shown["state"], shown["last_error"]) == ("DEAD", "no")
    assert penstock("replay", "--all", "--yes", "--store", url).out == "1 event replayed\n"
    assert penstock("reap", "--store", url).out == "0 events reaped\n"
    with closing(open_store(url)) as store:
        held = store.claim("outbox", limit=1, claimant="tester")
        store.settle(held.lease, {held.events[0].seq: Dead("no")})
    assert penstock("purge", "--state", "dead", "--yes", "--store", url).out == "1 event purged\n"
    checks = penstock("doctor", "--json", "--store", url).json["checks"]
    assert {check["name"]: check["level"] for check in checks}["store"] == "ok"


def test_lines_are_emitted_all_or_none(penstock: Run, url: str) -> None:
    lines = b"".join(json.dumps({"event_type": "a", "payload": number}).encode() + b"\n" for number in range(2_500))
    assert penstock("emit", "--from", "-", "--store", url, stdin=lines).out == "2,500 emitted\n"
    assert penstock("emit", "--from", "-", "--store", url, stdin=lines + b"nonsense\n").code == 2
    assert penstock("status", "--json", "--store", url).json["pending"] == 2_500


def test_undeclared_capabilities_are_refused(penstock: Run, url: str) -> None:
    for command, message in (
        (
            ["emit", "order.placed", "--ordering-key", "7"],
            "does not support ordering keys, such as that of event type 'order.placed'",
        ),
        (["limit", "outbox", "5"], "does not support limits on the claimed events of a queue"),
    ):
        ran = penstock(*command, "--store", url)
        assert ran.code == 2
        assert message in " ".join(ran.err.split())
    assert penstock("status", "--json", "--store", url).json["pending"] == 0


def test_missing_queue_error_names_init_command(penstock: Run, tmp_path: Path) -> None:
    for command in (["status"], ["emit", "a"], ["broker"]):
        ran = penstock(*command, "--store", f"objects+file://{tmp_path}/none")
        assert ran.code == 1
        assert "penstock init --store" in ran.err


def test_broker_refuses_database_store(penstock: Run) -> None:
    ran = penstock("broker", "--store", "sqlite:///penstock.db")
    assert ran.code == 2
    assert "does not support brokers" in ran.err


def line(stream: IO[bytes] | None) -> str:
    assert stream is not None
    return stream.readline().decode()


@pytest.mark.crash
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_standby_broker_takes_over_after_signal(process: Start, url: str, ending: signal.Signals) -> None:
    first: Any = process("broker", "--store", url, "--listen", "127.0.0.1:0")
    assert line(first.stderr).startswith(f"serving {url} at 127.0.0.1:")
    second: Any = process("broker", "--store", url)
    assert line(second.stderr).startswith("standing by")
    with closing(open_store(f"{url}?broker=never")) as client:
        client.append([Event(event_type="a")])
        first.send_signal(ending)
        assert first.wait(60) == 0
        assert line(second.stderr).startswith("serving ")
        client.append([Event(event_type="a")])
        assert client.stats().total("pending") == 2
