"""Supervisor of a worker's processes: starts them, restarts those that end, and stops them together.

Each process is connected to the supervisor by a socket (`penstock.worker.processes.process`). The process sends one
byte when its worker runs. The supervisor closes its end to stop the process, and the kernel closes it if the supervisor
is killed. Nothing else is exchanged: a process reports its errors and its health itself.
"""

import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from penstock.telemetry import log

TICK_SECONDS = 0.1
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 10.0
STEADY_SECONDS = 30.0
FAILURE, USAGE = 1, 2
"""Exit codes: of a failure, and of a mistake that a restart cannot correct."""


class Process:
    """A started process and the socket to it."""

    def __init__(self, command: Sequence[str]) -> None:
        self.started_at = monotonic()
        self.stopping = False
        self._has_run = False
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        with theirs:
            self.popen = subprocess.Popen(
                [*command, f"--supervisor={theirs.fileno()}"],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,  # a Ctrl-C in the terminal must reach only the supervisor
            )

    def has_run(self) -> bool:
        """Return whether the worker in the process is running or has been running."""
        if not self._has_run:
            with suppress(OSError):
                self._has_run = bool(self._socket.recv(1))
        return self._has_run

    def stop(self) -> None:
        """Ask the process to stop gracefully."""
        self.stopping = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()


@dataclass(slots=True)
class Slot:
    """One of the processes, across its restarts."""

    number: int
    command: Sequence[str]
    process: Process | None = None
    start_at: float = 0.0
    """Time of the next start; infinite while only a change of the code can help."""
    pause: float = FIRST_PAUSE_SECONDS
    """Seconds before the next start after a failure."""


class Supervisor:
    """Keeps a process running for each command, until SIGTERM or Ctrl-C.

    `changes` yields, several times a second, the files of the code that have changed. Changes restart the processes.
    """

    def __init__(self, commands: Sequence[Sequence[str]], changes: Iterator[Collection[str]] | None = None) -> None:
        self._slots = [Slot(number, command) for number, command in enumerate(commands, 1)]
        self._reloads = changes is not None
        self._changes = changes or _no_changes()
        self._signals: list[int] = []
        self._stopping = False
        self._has_run = False
        self._code = 0

    def run(self) -> int:
        """Supervise until every process has stopped; return the exit code."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: self._signals.append(number))
        for files in self._changes:
            if files:
                self._reload(files)
            while self._signals:
                self._signalled(self._signals.pop(0))
            for slot in self._slots:
                self._check(slot)
            if self._stopping and not self._processes:
                break
        return self._code

    @property
    def _processes(self) -> list[Process]:
        return [slot.process for slot in self._slots if slot.process is not None]

    def _check(self, slot: Slot) -> None:
        process = slot.process
        if process is not None:
            code = process.popen.poll()  # before has_run, to see the byte of a process that has just ended
            self._has_run |= process.has_run()
            if code is not None:
                slot.process = None
                self._ended(slot, process, code)
                process.close()
        elif slot.start_at <= monotonic() and not self._stopping and (self._has_run or slot.number == 1):
            # The first process starts alone until its worker runs, so that a mistake is reported once.
            try:
                slot.process = Process(slot.command)
            except OSError as error:  # too many processes or files, or too little memory: may be temporary
                self._restart_later(slot, "process_not_started", error=error)

    def _ended(self, slot: Slot, process: Process, code: int) -> None:
        how = signal.strsignal(-code) if code < 0 else f"exit code {code}"
        if self._stopping:
            if process.has_run() and code != 0:
                log.warn("process_failed", process=slot.number, error=how)
                self._code = FAILURE
        elif process.stopping:
            slot.start_at = 0.0
        elif code == USAGE and self._reloads and not process.has_run():
            log.warn("waiting_for_code_change")
            slot.start_at = math.inf
        elif code == USAGE and not self._has_run:
            self._code, self._stopping = USAGE, True
        else:
            if monotonic() - process.started_at >= STEADY_SECONDS:
                slot.pause = FIRST_PAUSE_SECONDS
            self._restart_later(slot, "process_ended", pid=process.popen.pid, error=how)

    def _restart_later(self, slot: Slot, event: str, **why: object) -> None:
        log.warn(event, process=slot.number, **why, retry_in=slot.pause)
        slot.start_at = monotonic() + slot.pause
        slot.pause = min(slot.pause * 2, LONGEST_PAUSE_SECONDS)

    def _reload(self, files: Collection[str]) -> None:
        log.info("code_changed", files=", ".join(sorted(files)))
        for slot in self._slots:
            slot.start_at, slot.pause = 0.0, FIRST_PAUSE_SECONDS
        for process in self._processes:
            process.stop()

    def _signalled(self, number: int) -> None:
        if self._stopping:
            log.warn("stopping_at_once", hint="events in progress are retried after their leases expire")
            for process in self._processes:
                process.popen.kill()
            os._exit(128 + number)
        log.info("stopping", hint="send the signal again to stop at once")
        self._stopping = True
        for process in self._processes:
            process.stop()


def _no_changes() -> Iterator[Collection[str]]:
    while True:
        yield ()
        time.sleep(TICK_SECONDS)
