"""How a driver is told to stop, by SIGTERM and Ctrl-C, and how its queries are: in order, and without a noise."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from penstock import telemetry
from penstock.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# Longer than Spark takes to start a query's sources, or to look what they have.
PAUSE_SECONDS = 15.0
LOOK_SECONDS = 0.02
RUNNER = "python_streaming_source_runner"


@contextmanager
def stopped_by_signals(ending: threading.Event) -> Iterator[None]:
    """SIGTERM and Ctrl-C set `ending`; a second Ctrl-C ends it all at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _frame: object) -> None:
        if ending.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        telemetry.info("stopping: finishing what is in hand")
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


def stop_in_a_pause(query: "StreamingQuery") -> None:
    """Stop a query that has nothing in hand any more. Where it starts, or asks its source for more, that is waited for:
    interrupted there, it leaves Pythons behind that find nobody to talk to, and tell the terminal so at length."""
    deadline = time.monotonic() + PAUSE_SECONDS
    while time.monotonic() < deadline and query.isActive and _is_at_work(query):
        time.sleep(LOOK_SECONDS)
    query.stop()


def _is_at_work(query: "StreamingQuery") -> bool:
    status = query.status
    return bool(status["isTriggerActive"]) or str(status["message"]).startswith("Initializing")


def end_quietly_with_spark() -> None:
    """For the process in which Spark asks a source how far it is: when the query has ended, it can't be told to anyone
    that nobody listens any more."""
    if RUNNER not in sys.argv[0]:
        return
    shown = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, BrokenPipeError | ConnectionResetError):
            shown(kind, error, trace)

    sys.excepthook = show
