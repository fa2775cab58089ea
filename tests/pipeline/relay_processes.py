"""A relay in a process of its own, for tests that kill it; and what of the emitted events came out at its other end."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from penstock.model.errors import StoreUnavailable
from penstock.model.event import EventId
from penstock.outbox import Outbox, connect
from penstock.store.sql.store import SqlStore
from tests.support import crashes
from tests.support.processes import living, wait_until

MASTER = "local[2]"
TASKS = 2
BATCH = 200
LEASE_SECONDS = 2.0
# At most this many events are in hand at any moment, and only those may come twice.
IN_HAND = TASKS * BATCH
START_SECONDS = 180.0
DRAIN_SECONDS = 180.0

SCRIPT = """
import json, sys
from dataclasses import asdict
from penstock.telemetry import log
from penstock.model.errors import PenstockError
from penstock.pipeline.relay.spec import RelayOptions
from penstock.pipeline.relay.driver import run_relay
from penstock.config.routes import parse_routes
from tests.support import crashes

log.to_stderr()
crashes.arm()
given = json.loads(sys.argv[1])
if "routes" in given:
    given["routes"] = parse_routes(given["routes"])
try:
    report = run_relay(RelayOptions(**given))
except PenstockError as error:
    sys.exit(f"{type(error).__name__}: {error}")
print(json.dumps(asdict(report)))
"""


class RelayProcess:
    """A running relay with short leases. As if started in a terminal, it leads a process group of its own."""

    def __init__(
        self,
        folder: Path,
        *,
        crash: str = "",
        output: int | None = None,
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "relay.log"
        self._output = folder / "relay.out"
        # What a killed Java leaves lying about. Not in `folder`: the paths of sockets have to be short.
        self._scratch = tempfile.mkdtemp(prefix="relay-")
        given = {"lease_seconds": LEASE_SECONDS, "slice_seconds": 2.0, "batch": BATCH, "master": MASTER, **options}
        with self._log.open("ab") as log, self._output.open("wb") as report:
            self._process = subprocess.Popen(
                [sys.executable, "-c", SCRIPT, json.dumps(given)],
                stdout=report if output is None else output,
                stderr=log,
                env={**os.environ, crashes.VARIABLE: crash, **_temporary_files(self._scratch), **(environment or {})},
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
        wait_until(lambda: not self.running or bool(re.search(pattern, self.log[after:])), START_SECONDS)
        assert re.search(pattern, self.log[after:]), f"the relay never said {pattern!r}:\n{self.log}"

    def interrupt(self) -> None:
        """Ctrl-C in its terminal: every process of its group gets it."""
        os.killpg(self.pid, signal.SIGINT)

    def terminate(self) -> None:
        os.killpg(self.pid, signal.SIGTERM)

    def wait(self, seconds: float = START_SECONDS) -> int:
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the relay didn't end within {seconds} s:\n{self.log}") from None

    def processes(self) -> list[int]:
        """The relay and all that came from it, also when it has gone itself."""
        return [pid for pid in living() if _session(pid) == self.pid]

    def __enter__(self) -> "RelayProcess":
        return self

    def __exit__(self, *_: object) -> None:
        """What the relay left running when it ended by itself goes by itself too; a relay that runs is killed."""
        if self.running:
            for pid in self.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.wait()
        assert wait_until(lambda: not self.processes(), 60), f"outlived their relay: {self.processes()}"
        shutil.rmtree(self._scratch)


def _temporary_files(folder: str) -> dict[str, str]:
    return {"SPARK_LOCAL_DIRS": folder, "JDK_JAVA_OPTIONS": f"-Djava.io.tmpdir={folder}", "TMPDIR": folder}


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


@contextmanager
def emitting(url: str) -> Iterator[list[EventId]]:
    """Emits from a thread, through outages, until the end; the list grows by what was committed."""
    over, ids = threading.Event(), list[EventId]()

    def run() -> None:
        with connect(url) as outbox:
            while not over.wait(0.02):
                with suppress(StoreUnavailable):
                    ids.extend(emit(outbox, 100))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield ids
    finally:
        over.set()
        thread.join()


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


class SlowReader:
    """Reads a pipe at about 100 kB a second, as a person or a slow program at its end would."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._read = b""
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "SlowReader":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        os.close(self._pipe)

    def lines(self) -> int:
        return self._read.count(b"\n")

    def event_ids(self) -> Counter[str]:
        """Of the events that were printed; the report at the end is none."""
        printed = [json.loads(line) for line in self._read.splitlines()]
        return Counter(line["event_id"] for line in printed if "event_id" in line)

    def _run(self) -> None:
        while piece := os.read(self._pipe, 2_048):
            self._read += piece
            time.sleep(0.02)
