"""`penstock worker` in a separate process, for tests that send signals, kill processes and read the log."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from tests.support.files import write_whole
from tests.support.processes import living, wait_until

PROGRAM = [sys.executable, "-c", "import sys; from penstock.cli import main; sys.exit(main())", "worker"]
PATIENCE = 60.0

# The event determines the handler's behaviour: wait at a gate that the test opens, or only write a line.
MODULE = """
import os
from penstock import Worker

worker = Worker(STORE)

@worker.handler("work", max_workers=1, release_stuck_timeout=1.0, release_stuck_interval=0.1, max_fetch_interval=0.05)
def handle(event):
    if event.text() == "gate":
        open("gate").read()
    with open("handled", "a") as lines:
        lines.write(f"{os.getpid()} VERSION {event.text()}\\n")
"""


class Ground:
    """A folder with a worker module, in which commands are run."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.commands: list[Command] = []
        self.write(version=1)
        os.mkfifo(folder / "gate")

    def write(self, *, version: int, more: str = "") -> None:
        """Write the worker module; every line that the handler writes contains `version`."""
        text = MODULE.replace("STORE", repr(self.url)).replace("VERSION", f"v{version}") + more
        write_whole(self.folder / "workers.py", text)

    def run(self, *arguments: str, **settings: Any) -> "Command":
        command = Command(self.folder, arguments, **settings)
        self.commands.append(command)
        return command

    def handled(self) -> list[str]:
        """Return version and payload of the handled events, sorted, without process ids."""
        return sorted(line.partition(" ")[2] for line in self._lines())

    def handlers(self) -> set[int]:
        """Return the ids of the processes that handled events."""
        return {int(line.partition(" ")[0]) for line in self._lines()}

    def _lines(self) -> list[str]:
        written = self.folder / "handled"
        return written.read_text().splitlines() if written.exists() else []

    def open_gate(self) -> None:
        """Let one waiting handler through the gate; block until a handler waits."""
        (self.folder / "gate").write_text("")

    def close(self) -> None:
        for command in self.commands:
            command.close()


class Command:
    """A running command. As in a terminal, it leads a separate process group and session."""

    def __init__(self, folder: Path, arguments: tuple[str, ...], environment: Mapping[str, str] | None = None) -> None:
        self._log = folder / "command.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*PROGRAM, *arguments],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # No bytecode cache: it misses a second change within one second if the file size stays the same.
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(environment or {})},
                start_new_session=True,
            )
        self.pid = self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text()

    def await_log(self, pattern: str, *, times: int = 1) -> list[str]:
        """Wait for log lines; return the matches of the pattern's group, or of the whole pattern."""

        def found() -> list[str]:
            return re.findall(pattern, self.log)

        wait_until(lambda: self._process.poll() is not None or len(found()) >= times, PATIENCE)
        assert len(found()) >= times, f"never said {pattern!r} {times} times:\n{self.log}"
        return found()

    def await_running(self, processes: int = 1) -> None:
        self.await_log("worker_started", times=processes)

    def children(self) -> set[int]:
        return {pid for pid, parent in living().items() if parent == self.pid}

    def group(self) -> set[int]:
        """Return all living processes of the command's session, even if the command itself has ended."""
        return {pid for pid in living() if _session(pid) == self.pid}

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def send_to_all(self, number: signal.Signals) -> None:
        """Signal the command and its processes, as a service manager does."""
        for pid in self.group():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait(self) -> int:
        return self._process.wait(PATIENCE)

    def health(self) -> tuple[int, dict[str, Any]]:
        """Return the response of the only health endpoint."""
        (url,) = self.await_log(r"health_served url=(\S+)")
        return get(url)

    def reports(self) -> dict[int, dict[str, Any]]:
        """Return the health reports of running workers by process id; ended processes do not answer."""
        found = {}
        for url in re.findall(r"health_served url=(\S+)", self.log):
            with suppress(URLError, ConnectionError):
                _, report = get(url)
                if report["claimant"]:
                    found[int(report["claimant"].split(":")[1])] = report
        return found

    def await_call(self) -> int:
        """Wait until a handler call is running in one of the processes; return its process id."""

        def busy() -> list[int]:
            reports = self.reports().items()
            return [pid for pid, report in reports if any(queue["running"] for queue in report["queues"].values())]

        assert wait_until(lambda: bool(busy()), PATIENCE), self.log
        return busy()[0]

    def close(self) -> None:
        for pid in self.group():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.wait()


def get(url: str) -> tuple[int, dict[str, Any]]:
    """Return the status and the decoded JSON of a response."""
    try:
        with urlopen(url, timeout=PATIENCE) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None
