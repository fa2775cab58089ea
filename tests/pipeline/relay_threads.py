"""A relay in a thread of the test process, on the shared Spark session."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.pipeline.relay.driver import run_relay
from penstock.pipeline.relay.report import RelayReport
from penstock.pipeline.relay.spec import RelayOptions

END_SECONDS = 180.0


@contextmanager
def running(options: RelayOptions) -> Iterator[list[RelayReport]]:
    """Run a relay in a thread and stop it when the block ends; then the list contains its report."""
    stop, reports = threading.Event(), list[RelayReport]()
    thread = threading.Thread(target=lambda: reports.append(run_relay(options, stop=stop)))
    thread.start()
    try:
        yield reports
    finally:
        stop.set()
        thread.join(END_SECONDS)
    assert not thread.is_alive()
