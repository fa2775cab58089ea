"""Wake-ups for workers on PostgreSQL: one process probes each queue and wakes the others by NOTIFY.

The probe is a cheap query every 5 ms. Emitters don't notify: a NOTIFY inside the business transaction would make all
emitters wait for each other at commit. The probe also finds delayed events once they are due, which no emit announces.
A wake-up is never required: without wake-ups, workers fetch every second.
"""

import threading
import zlib
from collections.abc import Sequence
from time import monotonic
from typing import Any

from penstock.store.api import Store
from penstock.store.sql.postgres.connections import is_pooled
from penstock.telemetry import log

CHANNEL = "penstock_ready"
# First key of the probers' advisory locks; a number that only Penstock uses.
LOCK_CLASS = 736_768
PROBE_SECONDS = 0.005
ELECTION_SECONDS = 1.0
LISTEN_SECONDS = 0.25
MAX_REMINDER_SECONDS = 1.0


def open_notifier(store: Store, wake: Sequence[tuple[str, threading.Event]]) -> "Notifier | None":
    """Return a notifier for the queues; None if the database has no notifications."""
    engine = getattr(store, "engine", None)
    if engine is None or engine.dialect.name != "postgresql" or not wake:
        return None
    return Notifier(store, engine, wake)


class Notifier:
    """Listens for notifications to this process, and probes the queues that no other process probes."""

    def __init__(self, store: Store, engine: Any, wake: Sequence[tuple[str, threading.Event]]) -> None:
        self.listening = False
        self._store = store
        self._engine = engine
        self._wake: dict[str, list[threading.Event]] = {}
        for queue, woken in wake:
            self._wake.setdefault(queue, []).append(woken)
        self._connection: Any = None
        self.probed_queues: set[str] = set()
        """Queues that this process probes for all processes."""
        self._elected_at = float("-inf")
        self._reminders: dict[str, Reminder] = {}

    def step(self) -> float | None:
        """Probe and listen once. After an error, close the connection; the next step opens a new one."""
        try:
            if self._connection is None and not self._connect():
                return None
            self._stand_for_election()
            for queue in self.probed_queues:
                self._probe(queue)
            self._listen(PROBE_SECONDS if self.probed_queues else LISTEN_SECONDS)
        except Exception:
            self.close()
            raise
        return 0.0

    def close(self) -> None:
        """Close the connection. The server then releases the advisory locks to other processes."""
        self.listening = False
        connection, self._connection = self._connection, None
        self.probed_queues.clear()
        if connection is not None:
            connection.close()

    def _connect(self) -> bool:
        """Open a separate connection and listen; return False behind a pooler, where listening is impossible."""
        import psycopg

        url = self._engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
        connection = psycopg.connect(url, autocommit=True, application_name="penstock lookout", connect_timeout=10)
        try:
            if is_pooled(connection):
                log.info("notifications_unavailable", reason="the connection is pooled", poll_seconds=0.1)
                connection.close()
                return False
            connection.execute(f"LISTEN {CHANNEL}")
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self._elected_at = float("-inf")
        self.listening = True
        return True

    def _stand_for_election(self) -> None:
        """Take the advisory locks of queues that no other process probes."""
        if monotonic() - self._elected_at < ELECTION_SECONDS:
            return
        self._elected_at = monotonic()
        for queue in self._wake.keys() - self.probed_queues:
            row = self._connection.execute("SELECT pg_try_advisory_lock(%s, %s)", [LOCK_CLASS, _number(queue)])
            if row.fetchone()[0]:
                self.probed_queues.add(queue)
                self._reminders[queue] = Reminder()

    def _probe(self, queue: str) -> None:
        if self._reminders[queue].is_due(self._store.ready(queue), monotonic()):
            self._rouse(queue)
            self._connection.execute("SELECT pg_notify(%s, %s)", [CHANNEL, queue])

    def _listen(self, seconds: float) -> None:
        for heard in self._connection.notifies(timeout=seconds, stop_after=100):
            self._rouse(heard.payload)

    def _rouse(self, queue: str) -> None:
        for woken in self._wake.get(queue, ()):
            woken.set()


class Reminder:
    """Schedule of wake-ups for a queue: at once when events become ready, then at growing intervals.

    A queue may stay ready although no worker can claim its events now, for example because a limit is reached. Such a
    queue must not keep all workers awake.
    """

    def __init__(self) -> None:
        self._pause = 0.0
        self._next = 0.0

    def is_due(self, ready: bool, now: float) -> bool:
        if not ready:
            self._pause = 0.0
            self._next = 0.0
            return False
        if now < self._next:
            return False
        self._pause = min(max(PROBE_SECONDS, self._pause * 2), MAX_REMINDER_SECONDS)
        self._next = now + self._pause
        return True


def _number(queue: str) -> int:
    """Return the second lock key of a queue, a signed 32-bit number. Queues with equal keys share a prober."""
    return zlib.crc32(queue.encode()) - 2**31
