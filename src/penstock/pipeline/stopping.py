"""Stops a driver in order on SIGTERM and Ctrl-C."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.model.errors import PipelineError
from penstock.telemetry import log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


def open_unless(ending: threading.Event, open_session: "Callable[[], SparkSession]") -> "SparkSession | None":
    """Open a session. None if all is to end by then: whoever signals a whole process group may have ended Java, too."""
    try:
        session = open_session()
    except PipelineError:
        if ending.is_set():
            return None
        raise
    return None if ending.is_set() else session
