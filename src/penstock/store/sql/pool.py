"""Connections of a pool that a lost server took with it."""

import threading
from typing import Any

from sqlalchemy import Engine
from sqlalchemy import event as hooks
from sqlalchemy.exc import DisconnectionError

GENERATION = "penstock_generation"


class PoolGenerations:
    """After `renew`, connections from before it are closed and opened anew when they are next asked for.

    Throwing the pool away would do it, too, but for those that other threads have in hand: they would come back to a
    pool that nobody knows any more, and stay open until Python collects them.
    """

    def __init__(self, engine: Engine) -> None:
        self.current = 0
        self._lock = threading.Lock()
        hooks.listen(engine, "connect", self._on_connect)
        hooks.listen(engine, "checkout", self._on_checkout)

    def renew(self, seen: int) -> None:
        """For work that began in the generation `seen`, and lost its server. Where many threads did, the first one that
        says so is enough."""
        with self._lock:
            self.current = max(self.current, seen + 1)

    def _on_connect(self, _connection: Any, record: Any) -> None:
        record.info[GENERATION] = self.current

    def _on_checkout(self, _connection: Any, record: Any, _proxy: Any) -> None:
        if record.info.get(GENERATION) != self.current:
            raise DisconnectionError("the server was lost since this connection was opened")
