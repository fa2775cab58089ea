"""Threads that drive a worker: fetch, flush, heartbeat, release-stuck and housekeeping loops."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from penstock.model.errors import PenstockError
from penstock.model.lease import Claim
from penstock.telemetry import log
from penstock.worker.subscription import Subscription

MAX_BACKOFF_SECONDS = 10.0
FIRST_BACKOFF_SECONDS = 0.1


class WorkerLoop:
    """A thread that repeats a step. Errors are logged and retried with backoff; recovery is logged too."""

    def __init__(self, name: str, step: Callable[[], float | None], wake: threading.Event | None = None) -> None:
        """`step` returns the seconds to wait before the next step, None to end the loop; `wake` ends a wait early."""
        self.name = name
        self.wake = wake or threading.Event()
        self.error: str | None = None
        self.failing_since: float | None = None
        """Monotonic time of the first of the consecutive errors; None after a success."""
        self.done = False
        """True if the loop ended because it has nothing to do, which is not a failure."""
        self._step = step
        self._over = False
        self._thread = threading.Thread(target=self._run, name=f"penstock-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over = True
        self.wake.set()

    def join(self, until: float) -> bool:
        """Wait until `until` for the thread to end; return whether it has ended."""
        self._thread.join(max(0.0, until - monotonic()))
        return not self._thread.is_alive()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        backoff = FIRST_BACKOFF_SECONDS
        while not self._over:
            try:
                wait = self._step()
            except Exception as error:
                self._note(error)
                wait, backoff = backoff, min(backoff * 2, MAX_BACKOFF_SECONDS)
            else:
                self._recover()
                backoff = FIRST_BACKOFF_SECONDS
            if wait is None:
                self.done = True
                return
            self.wake.wait(wait)
            if not self._over:
                self.wake.clear()

    def _note(self, error: Exception) -> None:
        """Log an error when it first occurs, not at every retry.

        Errors other than `PenstockError` are bugs and are logged with their type.
        """
        text = str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
        if text != self.error:
            log.warn("loop_failed", loop=self.name, error=text)
        self.error = text
        self.failing_since = self.failing_since or monotonic()

    def _recover(self) -> None:
        if self.error is not None:
            log.info("loop_recovered", loop=self.name)
        self.error = self.failing_since = None


class Gate:
    """Lock of a worker process: lets several subscriptions claim at the same time, or one suspect run alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._alone = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._alone = True
            self._changed.wait_for(lambda: self._inside == 0)
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()


class Fetching:
    """Fetch loop of a subscription.

    If a worker process dies, all its events become suspects, since each may have caused the crash. `run_one_alone`
    claims and handles a single suspect while the process has no other claimed events.
    """

    def __init__(
        self,
        subscription: Subscription,
        gate: Gate,
        run_one_alone: Callable[[Subscription], Claim],
        *,
        wakes: Callable[[], bool],
    ) -> None:
        self._subscription = subscription
        self._gate = gate
        self._run_one_alone = run_one_alone
        self._wakes = wakes
        self._full = False
        self._wary = False

    def step(self) -> float:
        subscription = self._subscription
        room = subscription.room
        if not room:
            self._await_room()
            return 0.0
        if not self._full and not subscription.ready():
            self._wary = False
            return subscription.idle_seconds(wakes=self._wakes())
        if self._wary:
            claim = self._run_one_alone(subscription)
            self._full = bool(claim)
            self._wary = _suspicious(claim)
        else:
            claim = self._claim(room)
            self._full = self._wary or len(claim) >= room
        return subscription.options.min_fetch_interval if self._full else subscription.idle_seconds(wakes=self._wakes())

    def _claim(self, room: int) -> Claim:
        """Claim up to `room` events. If one of them is a suspect, release all: a suspect is claimed alone."""
        with self._gate.shared():
            claim = self._subscription.claim(room)
            self._wary = _suspicious(claim)
            if self._wary:
                self._subscription.store.release(claim.lease)
            elif claim:
                self._subscription.feed(claim)
            return claim

    def _await_room(self) -> None:
        """Wait until the executors have made room, at most 0.2 s, so that a stop request is noticed."""
        roomy = self._subscription.buffer.roomy
        with roomy:
            roomy.wait_for(lambda: self._subscription.room > 0, timeout=0.2)


def _suspicious(claim: Claim) -> bool:
    return any(event.suspect for event in claim.events)
