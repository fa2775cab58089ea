"""Environment of the benchmarks: one PostgreSQL, a fresh database for each measurement, and events to fill it with."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import LiteralString

import psycopg

from benchmarks.plan import EVENT_TYPE, PAYLOAD
from penstock.model.errors import PenstockError
from penstock.store.registry import open_store
from tests.support.servers import PostgresServer

# Durable, as in production. Large enough that no checkpoint occurs in the middle of a benchmark.
SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "4GB"}
SHOWN = (
    *("server_version", "fsync", "synchronous_commit", "full_page_writes", "autovacuum"),
    *("shared_buffers", "max_wal_size", "checkpoint_timeout"),
)

# Creation times end one minute ago and are one microsecond apart, as if the events had been emitted one by one.
_PENDING = """
WITH emitted AS (
    INSERT INTO penstock_events (event_id, event_type, payload, created_at)
    SELECT gen_random_uuid(), %(event_type)s, %(payload)s,
           now() - (%(count)s - number) * interval '1 microsecond' - interval '1 minute'
    FROM generate_series(1, %(count)s) AS number
    RETURNING seq, created_at
)
INSERT INTO penstock_pending (seq, queue, priority, attempts, deliveries, replays, suspect, available_at)
SELECT seq, 'outbox', 0, 0, 0, 0, 0, created_at FROM emitted ORDER BY seq
"""


class Ground:
    """The database server of a run, and its progress messages on standard error."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self._began = time.monotonic()

    def note(self, text: str) -> None:
        print(f"[{time.monotonic() - self._began:5.0f} s] {text}", file=sys.stderr, flush=True)

    @contextmanager
    def database(self) -> Iterator[str]:
        """Provide a fresh database and drop it afterwards, so that its data cannot slow down other measurements."""
        url = self.server.create_database()
        try:
            yield url
        finally:
            self.server.drop_database(url)

    @contextmanager
    def outbox(self, pending: int = 0) -> Iterator[str]:
        """Provide a fresh database with Penstock's tables and the given number of pending events."""
        with self.database() as url:
            store = open_store(url)
            store.initialise()
            store.close()
            if pending:
                fill(url, pending)
            yield url

    def settings(self) -> dict[str, str]:
        """Return the server settings that influence the results."""
        with psycopg.connect(self.server.url()) as connection:
            rows = connection.execute(
                "SELECT name, current_setting(name) FROM unnest(CAST(%s AS text[])) AS name", [[*SHOWN]]
            )
            return dict(rows.fetchall())


def fill(url: str, count: int) -> None:
    """Insert pending events by one statement on the server."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_PENDING, {"event_type": EVENT_TYPE, "payload": PAYLOAD, "count": count})
    calm(url)


def calm(url: str) -> None:
    """Vacuum, analyse and checkpoint after loading.

    The measurement then has table statistics for its query plans, and pays only for its own writes.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


def rate(url: str, done: LiteralString, warm_up: int) -> float:
    """Return the number of events per second from the end of the warm-up to the last event, by the database's clock.

    `done` is a query that returns the time `at` of each event; `warm_up` is the number of events in the warm-up.
    """
    query = "WITH done AS MATERIALIZED (" + done + ")" + _SINCE_WARM
    with psycopg.connect(url) as connection:
        row = connection.execute(query, {"warm_up": warm_up}).fetchone()
    assert row is not None
    count, seconds = row
    if not count:
        raise PenstockError("run was too short to measure; use more events or smaller batches")
    return float(count) / float(seconds)


_SINCE_WARM: LiteralString = """,
warm AS MATERIALIZED (SELECT at FROM done ORDER BY at OFFSET %(warm_up)s LIMIT 1)
SELECT count(*), extract(epoch FROM max(at) - (SELECT at FROM warm)) FROM done WHERE at > (SELECT at FROM warm)
"""
