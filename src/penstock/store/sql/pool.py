"""Replacement of pooled connections after the server was lost."""

import threading
from typing import Any

from sqlalchemy import Engine
from sqlalchemy import event as hooks
from sqlalchemy.exc import DisconnectionError

GENERATION = "penstock_generation"


class PoolGenerations:
    """Generation counter of a connection pool: after `renew`, older connections are replaced at their next checkout.

    Replacing the whole pool would leak connections: those checked out by other threads would return to the discarded
    pool and stay open until Python's garbage collector frees them.
    """

    def __init__(self, engine: Engine) -> None:
        self.current = 0
        self._lock = threading.Lock()
        hooks.listen(engine, "connect", self._on_connect)
        hooks.listen(engine, "checkout", self._on_checkout)

    def renew(self, seen: int) -> None:
        """Start a new generation after work begun in generation `seen` lost the server. Repeated calls with an older
        `seen`, as from other threads that lost the same server, have no effect."""
        with self._lock:
            self.current = max(self.current, seen + 1)

    def _on_connect(self, _connection: Any, record: Any) -> None:
        record.info[GENERATION] = self.current

    def _on_checkout(self, _connection: Any, record: Any, _proxy: Any) -> None:
        if record.info.get(GENERATION) != self.current:
            raise DisconnectionError("stale connection: the server was lost after it was opened")
