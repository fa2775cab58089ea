"""Wake-ups of waiting claims, sent by a submit in the same process.

Wake-ups only reduce latency: a waiting claim also polls, which finds the jobs that other processes submit.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 1.0


class Wakeup:
    """Calls all registered listeners at each wake-up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []

    @contextmanager
    def listening(self, listener: Callable[[], None]) -> Iterator[None]:
        """Call `listener` at every wake-up, from any thread. The listener must not block."""
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
    """Yield the seconds to wait before each further poll, growing to `LONGEST_PAUSE_SECONDS`."""
    pause = FIRST_PAUSE_SECONDS
    while True:
        yield pause
        pause = min(pause * 1.5, LONGEST_PAUSE_SECONDS)
