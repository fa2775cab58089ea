"""A relay in a separate process, for tests that kill the process, and checks of the delivered events."""

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
# Maximum number of claimed events at any time. Only these may be delivered twice.
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
    """A running relay with short leases. It leads a process group, as if started in a terminal."""

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
        # Folder for the files that a killed JVM leaves. Not inside `folder`, because socket paths must be short.
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
        """Report that the relay printed at its end."""
        found: dict[str, Any] = json.loads(self._output.read_text())
        return found

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def await_log(self, pattern: str, *, after: int = 0) -> None:
        """Wait for a match of `pattern` in the log, past its first `after` characters."""
        wait_until(lambda: not self.running or bool(re.search(pattern, self.log[after:])), START_SECONDS)
        assert re.search(pattern, self.log[after:]), f"the relay never said {pattern!r}:\n{self.log}"

    def interrupt(self) -> None:
        """Send SIGINT to the whole process group, as Ctrl-C in a terminal does."""
        os.killpg(self.pid, signal.SIGINT)

    def terminate(self) -> None:
        os.killpg(self.pid, signal.SIGTERM)

    def wait(self, seconds: float = START_SECONDS) -> int:
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the relay didn't end within {seconds} s:\n{self.log}") from None

    def processes(self) -> list[int]:
        """Return the living processes of the relay's session, even if the relay itself has ended."""
        return [pid for pid in living() if _session(pid) == self.pid]

    def __enter__(self) -> "RelayProcess":
        return self

    def __exit__(self, *_: object) -> None:
        """Kill a relay that still runs, with its processes. Otherwise its processes must end without help."""
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
    """Emit events from a thread, also through outages, until the block ends; the list grows by the committed events."""
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
    """Return the lines of a folder's files, oldest file first. A line without a newline was never acknowledged."""
    raw = (line for file in sorted(folder.glob("*.jsonl")) for line in file.read_bytes().splitlines(keepends=True))
    return [json.loads(line) for line in raw if line.endswith(b"\n")]


def delivered(folder: Path) -> Counter[str]:
    """Return the number of deliveries of each event in the files."""
    return Counter(line["event_id"] for line in lines(folder))


def await_settled(store: SqlStore, relay: RelayProcess, seconds: float = DRAIN_SECONDS) -> None:
    """Wait until no event is pending or claimed and no lease is open."""

    def settled() -> bool:
        try:
            stats = store.stats()
        except StoreUnavailable:
            return False
        return not (stats.total("pending") or stats.total("claimed") or stats.open_leases)

    wait_until(lambda: not relay.running or settled(), seconds)
    assert settled(), f"left by a relay that {'runs' if relay.running else 'ended'}: {store.stats()}\n{relay.log}"


def assert_delivered(ids: Iterable[EventId], found: Counter[str], *, repeats: int) -> int:
    """Assert that all events were delivered, with at most `repeats` repeats; return the number of repeats."""
    emitted = {str(event_id) for event_id in ids}
    lost = emitted - found.keys()
    assert not lost, f"lost {len(lost)} of {len(emitted)}"
    repeated = sum(found[event_id] - 1 for event_id in emitted)
    assert repeated <= repeats, f"{repeated} repeats, where {repeats} could be explained"
    return repeated


class SlowReader:
    """Reads a pipe at about 100 kB per second, as a slow program would."""

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
        """Return how often the relay printed each event. The relay's final report is not counted."""
        printed = [json.loads(line) for line in self._read.splitlines()]
        return Counter(line["event_id"] for line in printed if "event_id" in line)

    def _run(self) -> None:
        while piece := os.read(self._pipe, 2_048):
            self._read += piece
            time.sleep(0.02)
