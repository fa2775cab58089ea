"""Several processes of one worker: a supervisor that starts them, restarts those that die, and stops them together.

Each process is a fresh interpreter (`penstock.worker.child`), joined to the supervisor by a socket. Over it goes what
to run and how it is. Its end is the word to stop, so a supervisor that is killed takes its processes along; and
signals, which a terminal or an orchestrator may send to the whole group, need not be counted by anybody but the
supervisor.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from penstock import telemetry
from penstock.errors import PenstockError, UsageError
from penstock.worker import health
from penstock.worker.loading import Order
from penstock.worker.watching import Watcher

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 10.0
STEADY_SECONDS = 30.0
ANSWER_SECONDS = 2.0
MOST_UNANSWERED = 100
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Child:
    """A process that was started, and the line to it. What it says comes in on a thread of its own."""

    def __init__(self, order: Order, ended: Callable[["Child"], None]) -> None:
        self.started_at = monotonic()
        self.runs = False
        self.stopping = False
        self.failure: str | None = None
        """Why it can't run, in its own words."""
        self.mistaken = False
        """Whether that is a mistake in what it was given, which trying again can't help."""
        self._asked = self._heard = 0
        self._answers: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._line, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "penstock.worker.child", str(theirs.fileno())]
        try:
            with theirs, _deaf():
                self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        except OSError:
            self._line.close()
            raise
        self.pid = self._process.pid
        self._say(asdict(order))
        listening = threading.Thread(target=self._listen, name="penstock-line", daemon=True)
        listening.start()
        threading.Thread(target=self._wait, args=[listening, ended], name="penstock-wait", daemon=True).start()

    def stop(self) -> None:
        """Ask it to stop gracefully. It may still answer."""
        self.stopping = True
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        self._process.kill()

    @property
    def how_it_ended(self) -> str:
        code = self._process.returncode
        if code is None or code >= 0:
            return f"exit code {code}"
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"signal {-code}"

    @property
    def ended_well(self) -> bool:
        return self._process.returncode == 0

    def ask(self) -> None:
        """Ask it how it is; `answer` has what it says. One that hangs is not asked for ever: the line would fill up."""
        if self._asked - self._heard < MOST_UNANSWERED:
            self._asked += 1
            self._say({"asked": self._asked})

    def answer(self, until: float) -> dict[str, Any]:
        """How it says it is. One that doesn't answer in time is down."""
        with suppress(Empty):
            while True:
                answer = self._answers.get(timeout=max(0.0, until - monotonic()))
                if answer.pop("asked") == self._asked:
                    return answer
        return _down(f"it gave no answer within {ANSWER_SECONDS:g} s")

    def _say(self, message: dict[str, Any]) -> None:
        with suppress(OSError):  # it has ended, or is asked to: whoever waits for it will know
            self._line.sendall(json.dumps(message).encode() + b"\n")

    def _listen(self) -> None:
        with suppress(OSError), self._line.makefile("rb") as lines:
            for line in lines:
                self._hear(json.loads(line))

    def _hear(self, message: dict[str, Any]) -> None:
        if "asked" in message:
            self._heard = message["asked"]
            self._answers.put(message)
        elif "failure" in message:
            self.failure, self.mistaken = message["failure"], message["mistaken"]
        else:
            self.runs = True

    def _wait(self, listening: threading.Thread, ended: Callable[["Child"], None]) -> None:
        self._process.wait()
        listening.join(ANSWER_SECONDS)  # its last words; not for ever, because what it started may hold the line
        self._line.close()
        ended(self)


@dataclass(slots=True)
class _Place:
    """One of the processes, over all its lives."""

    number: int
    child: Child | None = None
    start_at: float | None = None
    """When the next one is to be started; None while one lives, or while nothing but a change of its code can help."""
    pause: float = FIRST_PAUSE_SECONDS
    last: str = "it was not started yet"


class Supervisor:
    """Runs `processes` processes until a signal. With a `watcher`, one that is restarted when its code changes."""

    def __init__(self, order: Order, processes: int = 1, watcher: Watcher | None = None) -> None:
        self._order = order
        self._places = [_Place(number, start_at=0.0) for number in range(1, processes + 1)]
        self._watcher = watcher
        self._news: SimpleQueue[int | Child | frozenset[str]] = SimpleQueue()
        """Signals, processes that ended, files that changed. Of all queues only this kind may be put to by a signal's
        handler that interrupts whoever takes from it."""
        self._stopping = False
        self._mistake: str | None = None
        self._broken: str | None = None
        self._has_run = False
        self._asking = threading.Lock()

    def run(self) -> None:
        """Returns after a graceful stop. Raises `UsageError` for a mistake that kept all of them from running."""
        with _hearing(self._news.put):
            if self._watcher is not None:
                self._watcher.start(self._news.put)
            telemetry.info("supervisor runs", processes=len(self._places), worker=self._order.worker)
            while not (self._stopping and all(place.child is None for place in self._places)):
                self._start_due()
                self._hear_next()
        if self._mistake is not None:
            raise UsageError(self._mistake)
        if self._broken is not None:
            raise PenstockError(f"not every process stopped in good order: {self._broken}")

    def health(self) -> dict[str, Any]:
        """How all of them are. They are asked side by side, and this by one client at a time."""
        with self._asking:
            children = [(place, place.child) for place in self._places]
            for _, child in children:
                if child is not None:
                    child.ask()
            until = monotonic() + ANSWER_SECONDS
            found = [
                {"process": place.number, "pid": child and child.pid}
                | (_down(place.last) if child is None else child.answer(until))
                for place, child in children
            ]
        return health.together(found, stopping=self._stopping)

    def _start_due(self) -> None:
        for place in self._places:
            if not self._stopping and place.start_at is not None and place.start_at <= monotonic():
                self._start(place)

    def _start(self, place: _Place) -> None:
        place.start_at = None
        try:
            place.child = Child(self._order, self._news.put)
        except OSError as error:  # too many processes, or files, or too little memory: that may pass
            place.last = f"it can't be started: {error}"
            telemetry.warn("a worker process can't be started", process=place.number, error=error)
            self._pause(place)

    def _hear_next(self) -> None:
        due = [place.start_at for place in self._places if place.start_at is not None]
        timeout = max(0.0, min(due) - monotonic()) if due and not self._stopping else None
        try:
            news = self._news.get(timeout=timeout)
        except Empty:
            return
        match news:
            case int():
                self._signalled(news)
            case Child():
                self._ended(next(place for place in self._places if place.child is news), news)
            case _:
                self._changed(news)

    def _signalled(self, number: int) -> None:
        if self._stopping:
            telemetry.warn("stopping at once; what is being handled comes back when its lease is over")
            self._end_at_once(128 + number)
        telemetry.info("stopping: waiting for the processes; again to stop at once")
        self._stop()

    def _stop(self) -> None:
        self._stopping = True
        for place in self._places:
            if place.child is not None:
                place.child.stop()

    def _end_at_once(self, code: int) -> None:
        for place in self._places:
            if place.child is not None:
                place.child.kill()
        os._exit(code)

    def _ended(self, place: _Place, child: Child) -> None:
        place.child = None
        living = [one.child for one in self._places if one.child is not None]
        self._has_run = self._has_run or any(one.runs for one in (child, *living))
        place.last = child.failure or f"it ended with {child.how_it_ended}"
        if self._stopping:
            if child.runs and not child.ended_well:
                self._broken = f"process {place.number}: {place.last}"
        elif child.stopping:
            place.start_at = 0.0
        elif child.mistaken and self._watcher is not None:
            telemetry.warn("the worker can't run; waiting for a change", error=child.failure)
        elif child.mistaken and not self._has_run:
            self._mistake = child.failure
            self._stop()
        else:
            self._restart_later(place, child)

    def _restart_later(self, place: _Place, child: Child) -> None:
        if monotonic() - child.started_at >= STEADY_SECONDS:
            place.pause = FIRST_PAUSE_SECONDS
        told = {"process": place.number, "pid": child.pid, "how": child.how_it_ended}
        told |= {"error": child.failure} if child.failure else {}
        telemetry.warn("a worker process ended and is restarted", **told, after=f"{place.pause:g} s")
        self._pause(place)

    def _pause(self, place: _Place) -> None:
        place.start_at = monotonic() + place.pause
        place.pause = min(place.pause * 2, LONGEST_PAUSE_SECONDS)

    def _changed(self, files: frozenset[str]) -> None:
        telemetry.info("code has changed: the worker is restarted", files=", ".join(sorted(files)))
        for place in self._places:
            place.pause = FIRST_PAUSE_SECONDS
            if place.child is None:
                place.start_at = 0.0
            else:
                place.child.stop()


def _down(why: str) -> dict[str, Any]:
    return {"status": health.DOWN, "reasons": [f"down: {why}"], "claimant": None, "queues": {}, "loops": {}}


@contextmanager
def _deaf() -> Iterator[None]:
    """A process that is started in here takes signals only once it has said how: a Ctrl-C must not find it unready."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _hearing(heard: Callable[[int], None]) -> Iterator[None]:
    before = {number: signal.signal(number, lambda number, _: heard(number)) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
