"""A wake-up that a submit sends, so that a claim that waits in the same process looks at once. It only saves time:
jobs from other processes are found by looking again and again."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 1.0


class Wakeup:
    """Calls all who listen."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []

    @contextmanager
    def listening(self, listener: Callable[[], None]) -> Iterator[None]:
        """Call `listener`, from any thread, at every wake-up. It must not wait."""
        with self._lock:
            self._listeners.append(listener)
        try:
            yield
        finally:
            with self._lock:
                self._listeners.remove(listener)

    def notify(self) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()


def pauses() -> Iterator[float]:
    """How long to wait before each further look: ever longer, up to a second."""
    pause = FIRST_PAUSE_SECONDS
    while True:
        yield pause
        pause = min(pause * 1.5, LONGEST_PAUSE_SECONDS)
