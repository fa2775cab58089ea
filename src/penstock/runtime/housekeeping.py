"""Housekeeping of a long-running process: reap expired leases, maintain the tables, announce the process."""

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from uuid import uuid4

from penstock.model.errors import PenstockError
from penstock.model.stats import Relay
from penstock.store.api import Store
from penstock.telemetry import log

REAP_SECONDS = 5.0
TEND_SECONDS = 60.0
SIGN_OFF_SECONDS = 1.0


class Housekeeper:
    """A thread that reaps expired leases, maintains the tables and announces the process."""

    def __init__(
        self,
        store: Store,
        served: Sequence[tuple[str, str]],
        lease_seconds: float,
        on_reaped: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Prepare an announcement for each queue and destination in `served`."""
        host = f"{socket.gethostname()}:{os.getpid()}"
        self._store = store
        self._relays = [Relay(uuid4(), queue, destination, host) for queue, destination in served]
        self._on_reaped = on_reaped
        self._every_seconds = min(REAP_SECONDS, lease_seconds / 2)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-housekeeping", daemon=True)

    def __enter__(self) -> "Housekeeper":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=SIGN_OFF_SECONDS)
        if self._thread.is_alive():
            return  # the store does not respond; other processes notice the missing heartbeat
        try:
            for relay in self._relays:
                self._store.withdraw(relay.relay_id)
        except PenstockError as error:
            log.debug("withdraw_failed", error=error)

    def _run(self) -> None:
        tended = 0.0
        reachable = True
        while True:
            try:
                for relay in self._relays:
                    self._store.announce(relay)
                self._reap()
                if time.monotonic() - tended > TEND_SECONDS:
                    self._store.maintain()
                    tended = time.monotonic()
                if not reachable:
                    log.info("store_available")
                reachable = True
            except PenstockError as error:
                log.warn("housekeeping_failed", error=error)
                reachable = False
            if self._over.wait(self._every_seconds):
                return

    def _reap(self) -> None:
        while not self._over.is_set() and (count := self._store.reap()):
            self._on_reaped(count)
            log.warn("events_reaped", count=count)
