"""Base of all test servers: a process with its own folder and port, and a guard."""

import atexit
import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self

from tests.support.processes import (
    Account,
    Guard,
    ServerFailed,
    free_port,
    spawn,
    temporary_folder,
    wait_until,
)

START_SECONDS = 60.0
STOP_SECONDS = 60.0
LOG_LINES = 20


class Server(ABC):
    """Base of a server: one process with its folder."""

    name: ClassVar[str]
    end_signal: ClassVar[signal.Signals]
    """Signal that ends the server and its children at once; sent by the guard after the owner's death."""

    def __init__(self, *, fsync: bool = True, settings: Mapping[str, object] | None = None) -> None:
        self.fsync = fsync
        self.settings = dict(settings or {})
        self.port = 0
        self._account: Account | None = None
        self._folder: Path | None = None
        self._guard: Guard | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def folder(self) -> Path:
        assert self._folder is not None, f"{self.name} was not started"
        return self._folder

    def start(self) -> None:
        """Start the server and wait until it answers. After a failure, clean up everything."""
        if self.running:
            return
        try:
            if self._folder is None:
                self._settle_in()
            self._launch()
        except BaseException:
            self.close()
            raise

    def stop(self) -> None:
        """Shut the server down cleanly. Its data is kept."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Stop and start the server, on the same port and data."""
        self.stop()
        self.start()

    def kill(self) -> None:
        """Kill the server to simulate a crash: SIGKILL to its process group."""
        if self.running:
            os.killpg(self.pid, signal.SIGKILL)
            self._reap()

    def freeze(self) -> None:
        """Suspend the server: its port accepts connections, and no request is answered."""
        os.killpg(self.pid, signal.SIGSTOP)
        # Wait for the stop: the server's threads may run on briefly after the signal was sent.
        os.waitpid(self.pid, os.WUNTRACED)

    def thaw(self) -> None:
        """Resume a suspended server."""
        os.killpg(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Stop the server and remove its folder. In a forked child, do nothing: the server belongs to the parent."""
        if self._owner != os.getpid():
            return
        try:
            self.stop()
        finally:
            if self._guard is not None:
                self._guard.dismiss()
            self._guard = self._folder = None
            atexit.unregister(self.close)

    @abstractmethod
    def _prepare(self) -> None:
        """Find the binaries and create the contents of the folder; called once."""

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the command line of the server."""

    @abstractmethod
    def _answers(self) -> bool:
        """Return True if this server, and no other server on its port, answers requests."""

    def _settle_in(self) -> None:
        self._folder = temporary_folder(f"penstock-{self.name.lower()}-", self._account)
        self._guard = Guard(self._folder, self.end_signal)
        atexit.register(self.close)
        self._prepare()
        self.port = self.port or free_port()

    def _launch(self) -> None:
        process = self._spawn(self._command())
        if not wait_until(lambda: not self.running or self._answers(), START_SECONDS):
            raise self._failure(f"{self.name} didn't answer within {START_SECONDS:.0f} s")
        if not self.running:
            raise self._failure(f"{self.name} ended with status {process.returncode} as it started")

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        assert self._guard is not None
        self._process = spawn(command, log=self._log, folder=self.folder, account=self._account)
        self._guard.watch(self.pid)
        return self._process

    def _end(self, how: signal.Signals) -> None:
        if not self.running:
            return
        os.kill(self.pid, how)
        try:
            self._reap()
        except subprocess.TimeoutExpired:
            self.kill()
            raise self._failure(f"{self.name} didn't stop within {STOP_SECONDS:.0f} s and was killed") from None

    def _reap(self) -> int:
        assert self._process is not None
        assert self._guard is not None
        status = self._process.wait(STOP_SECONDS)
        self._guard.watch(None)
        return status

    @property
    def _log(self) -> Path:
        return self.folder / "server.log"

    def _failure(self, what: str) -> ServerFailed:
        tail = self._log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return ServerFailed("\n".join([f"{what}; its log ends:", *tail]))
