"""A relay in a process of its own, for tests that kill it; and what of the emitted events came out at its other end."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from penstock.errors import StoreUnavailable
from penstock.event import EventId
from penstock.outbox import Outbox
from penstock.store import SqlStore
from penstock.testing.crashes import family
from penstock.testing.processes import living, wait_until

START_SECONDS = 60.0
DRAIN_SECONDS = 60.0

SCRIPT = """
import json, sys
from dataclasses import asdict
from penstock import telemetry
from penstock.errors import PenstockError
from penstock.pipeline.relay import RelayOptions, run_relay
from penstock.testing import crashes

telemetry.to_stderr()
crashes.arm()
try:
    report = run_relay(RelayOptions(**json.loads(sys.argv[1])))
except PenstockError as error:
    sys.exit(f"{type(error).__name__}: {error}")
print(json.dumps(asdict(report)))
"""


class RelayProcess:
    """A running relay. Like one in a terminal it leads a process group of its own."""

    def __init__(self, folder: Path, *, crash: str = "", **options: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "relay.log"
        self._output = folder / "relay.out"
        given = {"lease_seconds": 2.0, "slice_seconds": 2.0, "batch": 200, "master": "local[2]", **options}
        with self._log.open("ab") as log, self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", SCRIPT, json.dumps(given)],
                stdout=output,
                stderr=log,
                env={**os.environ, "PENSTOCK_CRASH": crash},
                start_new_session=True,
            )
        self.pid = self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def report(self) -> dict[str, Any]:
        """What it said of itself when it ended."""
        found: dict[str, Any] = json.loads(self._output.read_text())
        return found

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def await_log(self, pattern: str, *, after: int = 0) -> None:
        """Wait for a line, past the first `after` characters of the log."""
        told = wait_until(lambda: not self.running or re.search(pattern, self.log[after:]) is not None, START_SECONDS)
        assert told, f"the relay never said {pattern!r}:\n{self.log}"
        assert re.search(pattern, self.log[after:]), f"the relay ended before it said {pattern!r}:\n{self.log}"

    def interrupt(self) -> None:
        """Ctrl-C in its terminal: every process of its group gets it."""
        os.killpg(self.pid, signal.SIGINT)

    def terminate(self) -> None:
        self._process.terminate()

    def kill_all(self) -> None:
        """The relay and every process that came from it, at once."""
        for pid in family(self.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.wait()

    def wait(self, seconds: float = START_SECONDS) -> int:
        return self._process.wait(seconds)

    def processes(self) -> list[int]:
        return family(self.pid)

    def __enter__(self) -> "RelayProcess":
        return self

    def __exit__(self, *_: object) -> None:
        relatives = family(self.pid)
        if self.running:
            self.kill_all()
        gone = wait_until(lambda: living().keys().isdisjoint(relatives[1:]), 20)
        assert gone, f"processes outlived their relay: {[pid for pid in relatives if pid in living()]}"


def emit(outbox: Outbox, count: int, event_type: str = "crash.tested", **fields: Any) -> list[EventId]:
    return outbox.emit_many([outbox.event(event_type, {"number": number}, **fields) for number in range(count)])


def lines(folder: Path) -> list[dict[str, Any]]:
    """What the files of a folder hold, oldest file first. A line without its end was never acknowledged."""
    raw = (line for file in sorted(folder.glob("*.jsonl")) for line in file.read_bytes().splitlines(keepends=True))
    return [json.loads(line) for line in raw if line.endswith(b"\n")]


def delivered(folder: Path) -> Counter[str]:
    """How often each event stands in the files."""
    return Counter(line["event_id"] for line in lines(folder))


def await_settled(store: SqlStore, relay: RelayProcess, seconds: float = DRAIN_SECONDS) -> None:
    """Wait until nothing is pending, nothing claimed, and no lease open."""

    def settled() -> bool:
        try:
            stats = store.stats()
        except StoreUnavailable:
            return False
        return not (stats.total("pending") or stats.total("claimed") or stats.open_leases)

    wait_until(lambda: not relay.running or settled(), seconds)
    assert settled(), f"left by a relay that {'runs' if relay.running else 'ended'}: {store.stats()}\n{relay.log}"


def assert_delivered(ids: Iterable[EventId], found: Counter[str], *, repeats: int) -> int:
    """All of them came out, and no more than `repeats` twice; how many did."""
    emitted = {str(event_id) for event_id in ids}
    lost = emitted - found.keys()
    assert not lost, f"lost {len(lost)} of {len(emitted)}"
    repeated = sum(found[event_id] - 1 for event_id in emitted)
    assert repeated <= repeats, f"{repeated} repeats, where {repeats} could be explained"
    return repeated
