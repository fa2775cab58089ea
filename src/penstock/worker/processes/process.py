"""A worker in a process of a supervisor. Stops when the supervisor closes the socket or is killed."""

import os
import signal
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from penstock.telemetry import log
from penstock.worker.worker import LISTEN_SECONDS, Worker

# Seconds after the grace period, for writing outcomes, before a process that has not ended exits by force.
LAST_SECONDS = 60.0


class Supervised:
    """The process's end of the socket to its supervisor.

    Signals also stop the worker, but repeated signals have no further effect: a signal to the whole process group must
    not act as a second signal after the supervisor's stop. Only the supervisor ends the process at once.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        self._worker: Worker | None = None
        self._over = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self._stop())
        threading.Thread(target=self._await_end, name="penstock-supervised", daemon=True).start()

    def run(self, worker: Worker, *, queues: Sequence[str] | None = None) -> None:
        """Run the worker until the supervisor or a signal stops it, then stop it gracefully."""
        self._worker = worker
        if self._over:
            return
        worker.start(queues=queues)
        try:
            with suppress(OSError):
                self._socket.send(b"\1")
            while worker.running and not self._over:
                time.sleep(LISTEN_SECONDS)
        finally:
            worker.stop()

    def _stop(self) -> None:
        self._over = True

    def _await_end(self) -> None:
        with suppress(OSError):
            self._socket.recv(1)
        self._over = True
        if self._worker is None:  # still importing, possibly for ever; no work has begun
            os._exit(0)
        threading.Event().wait(self._worker.graceful_timeout + LAST_SECONDS)
        log.warn("forced_exit", pid=os.getpid())
        os._exit(1)
