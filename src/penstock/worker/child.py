"""One of a supervisor's processes: `python -m penstock.worker.child FD`, where FD is its end of the line.

It stops gracefully when the supervisor's end of the line closes, for whatever reason, and at signals, however many.
"""

import json
import os
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from penstock import telemetry
from penstock.errors import PenstockError, UsageError
from penstock.worker.health import report
from penstock.worker.loading import Order
from penstock.worker.processes import SIGNALS
from penstock.worker.worker import Worker

LOOK_SECONDS = 0.5
# After the time that handlers have: for what they leave behind, and for code that can't be stopped.
LAST_SECONDS = 60.0
DEFAULT_GRACE_SECONDS = 30.0


class Line:
    """The process's end of the line to its supervisor."""

    def __init__(self, number: int) -> None:
        os.set_inheritable(number, False)  # what handlers start is none of the supervisor's business
        self._socket = socket.socket(fileno=number)
        self._lines = self._socket.makefile("rb")
        self._saying = threading.Lock()
        self.worker: Worker | None = None
        self.over: SimpleQueue[None] = SimpleQueue()

    def first(self) -> dict[str, Any] | None:
        """What the supervisor asks for; nothing if it has gone already."""
        said = self._lines.readline()
        return json.loads(said) if said else None

    def say(self, **message: Any) -> None:
        """Nobody may be there to hear it."""
        try:
            with self._saying:
                self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            telemetry.debug("the supervisor doesn't hear", error=error)

    def listen(self) -> None:
        """Answer until the line ends, then see to it that this process ends."""
        for line in self._lines:
            running = None if self.worker is None else self.worker.runtime
            self.say(**json.loads(line), **report(running))
        self.over.put(None)
        grace = DEFAULT_GRACE_SECONDS if self.worker is None else self.worker.graceful_timeout
        threading.Event().wait(grace + LAST_SECONDS)
        telemetry.warn("this process can't be stopped gracefully and ends at once", pid=os.getpid())
        os._exit(1)

    def await_end(self, worker: Worker) -> None:
        while worker.running:
            with suppress(Empty):
                self.over.get(timeout=LOOK_SECONDS)
                return


def main(line: Line, order: Order) -> int:
    """Run what the supervisor asks for, until it says stop; returns the exit code."""
    for number in SIGNALS:
        signal.signal(number, lambda *_: line.over.put(None))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    telemetry.to_stderr()
    threading.Thread(target=line.listen, name="penstock-line", daemon=True).start()
    try:
        run(line, order)
    except Exception as error:
        if os.environ.get("PENSTOCK_DEBUG") == "1":
            traceback.print_exception(error)
        told = str(error) if isinstance(error, PenstockError) else f"unexpected {type(error).__name__}: {error}"
        line.say(failure=told, mistaken=isinstance(error, UsageError))
        return 2 if isinstance(error, UsageError) else 1
    return 0


def run(line: Line, order: Order) -> None:
    """Load the worker, start it, and stop it when the time has come."""
    worker = order.load()
    if not line.over.empty():
        return
    line.worker = worker
    worker.start(queues=order.queues)
    try:
        line.say(runs=True)
        line.await_end(worker)
    finally:
        worker.stop()


def _main() -> int:
    line = Line(int(sys.argv[1]))
    first = line.first()
    return main(line, Order(**first)) if first else 0


if __name__ == "__main__":
    sys.exit(_main())
