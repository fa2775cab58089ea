"""Heartbeats for the leases of a process, sent from one thread."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.model.errors import PenstockError
from penstock.model.lease import Lease
from penstock.store.api import Store
from penstock.telemetry import log

STOP_SECONDS = 5.0


class LeaseKeeper:
    """Extends the leases of this process from one thread, so that no lease is lost while publishing is slow."""

    def __init__(self, store: Store, every_seconds: float) -> None:
        self._store = store
        self._every_seconds = every_seconds
        self._held: dict[Lease, float] = {}
        self._changed = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="penstock-lease-keeper", daemon=True)
        self._thread.start()

    @contextmanager
    def beating(self, lease: Lease) -> Iterator[None]:
        with self._changed:
            self._held[lease] = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                self._held.pop(lease, None)

    def stop(self) -> None:
        """End the thread. A heartbeat in progress may take up to `STOP_SECONDS`: it still uses the store."""
        self._over.set()
        self._thread.join(STOP_SECONDS)

    def _beat(self) -> None:
        while not self._over.wait(self._every_seconds / 2):
            due = time.monotonic() - self._every_seconds / 2
            with self._changed:
                old = [lease for lease, since in self._held.items() if since <= due]
            if old:
                self._extend(old)

    def _extend(self, leases: list[Lease]) -> None:
        try:
            self._store.extend(leases)
        except PenstockError as error:
            log.warn("heartbeat_failed", count=len(leases), error=error)  # the next heartbeat may succeed
