"""Stop in order on SIGTERM and Ctrl-C."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.telemetry import log


@contextmanager
def stopped_by_signals(ending: threading.Event) -> Iterator[None]:
    """SIGTERM and Ctrl-C set `ending`; a second Ctrl-C ends it all at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _frame: object) -> None:
        if ending.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        log.info("stopping: finishing what is in hand")
        ending.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
