"""The statements of staging on MySQL and MariaDB: rows kept aside, and a move of a few steps that makes events of them.

As in `mysql_statements`: values are bound, and `{now}`, the clock, is put in.
"""

import json
from datetime import datetime
from typing import Any

from penstock.event import Event, EventId
from penstock.store.base import Part
from penstock.store.columns import COLUMNS
from penstock.store.mysql_transaction import utc
from penstock.store.schema import staged

# In the order of what `row` returns.
_COLUMNS = staged.columns.keys()
INSERT = f"INSERT INTO penstock_staged ({', '.join(_COLUMNS)}) VALUES ({', '.join(['%s'] * len(_COLUMNS))})"

_CHOSEN = "s.write_id = :write_id AND s.batch_id = :batch_id AND s.part_id IN :parts"
_STAGED = "penstock_staged s FORCE INDEX (PRIMARY)"

# No row is touched by the last statement if that batch, or a later one, was committed before. Whoever commits the same
# batch meanwhile waits.
REMEMBER = """
INSERT IGNORE INTO penstock_sinks (query_id, batch_id, committed_at) VALUES (:write_id, :batch_id - 1, {now})
--;
UPDATE penstock_sinks SET batch_id = :batch_id, committed_at = {now}
WHERE query_id = :write_id AND batch_id < :batch_id
"""

LINES = f"SELECT DISTINCT s.queue, s.ordering_key FROM {_STAGED} WHERE {_CHOSEN} AND s.ordering_key IS NOT NULL"

_DUPLICATES = f"""
DELETE s FROM {_STAGED} STRAIGHT_JOIN penstock_dedupe d ON d.queue = s.queue AND d.dedupe_key = s.dedupe_key
WHERE {_CHOSEN} AND {{}}
"""

# Where a window is open.
DROP_KNOWN = _DUPLICATES.format("d.expires_at > {now}")

# The first of each key opens one. Somebody else may have done so meanwhile: then nothing changes here. VALUES() is what
# both servers know; assignments are made from left to right.
OPEN_WINDOWS = f"""
INSERT INTO penstock_dedupe (queue, dedupe_key, event_id, expires_at)
SELECT s.queue, s.dedupe_key, s.event_id, {{now}} + INTERVAL ROUND(s.dedupe_seconds * 1000000) MICROSECOND
FROM {_STAGED} WHERE {_CHOSEN} AND s.dedupe_key IS NOT NULL
ORDER BY s.queue, s.dedupe_key, s.place, s.part_id, s.number
ON DUPLICATE KEY UPDATE
    event_id = CASE WHEN penstock_dedupe.expires_at <= {{now}} THEN VALUES(event_id) ELSE penstock_dedupe.event_id END,
    expires_at = CASE WHEN penstock_dedupe.expires_at <= {{now}} THEN VALUES(expires_at)
                      ELSE penstock_dedupe.expires_at END
"""

# Those whose window another row opened.
DROP_OTHERS = _DUPLICATES.format("d.event_id <> s.event_id")

# Numbered as they are inserted.
WRITE = f"""
INSERT INTO penstock_events (event_id, event_type, payload, headers, partition_key, ordering_key, created_at)
SELECT s.event_id, s.event_type, s.payload, s.headers, s.partition_key, s.ordering_key, {{now}}
FROM {_STAGED} WHERE {_CHOSEN} ORDER BY s.place, s.part_id, s.number
"""

WAIT = f"""
INSERT INTO penstock_pending ({COLUMNS})
SELECT e.seq, s.queue, s.ordering_key, s.priority, 0, 0, s.max_attempts, 0, 0,
       coalesce(s.available_at, {{now}} + INTERVAL ROUND(coalesce(s.delay_seconds, 0) * 1000000) MICROSECOND), NULL
FROM {_STAGED} STRAIGHT_JOIN penstock_events e ON e.event_id = s.event_id WHERE {_CHOSEN}
"""

# Of this batch, whatever attempt staged it, and of older ones.
DROP_BATCH = "DELETE FROM penstock_staged WHERE write_id = :write_id AND batch_id <= :batch_id"

DROP_PARTS = "DELETE FROM penstock_staged WHERE write_id = :write_id AND part_id IN :parts"

DROP_WRITE = "DELETE FROM penstock_staged WHERE write_id = :write_id"

DROP_OLD = """
DELETE FROM penstock_staged WHERE staged_at < {now} - INTERVAL ROUND(:seconds * 1000000) MICROSECOND LIMIT :limit
"""


def row(part: Part, number: int, event_id: EventId, event: Event, now: datetime) -> tuple[Any, ...]:
    return (
        part.write_id.bytes,
        part.batch_id,
        part.place,
        part.part_id.bytes,
        number,
        event_id.bytes,
        event.event_type,
        event.queue,
        event.payload,
        json.dumps(dict(event.headers)) if event.headers else None,
        event.partition_key,
        event.ordering_key,
        event.priority,
        event.max_attempts,
        None if event.available_at is None else utc(event.available_at),
        event.delay_seconds,
        event.dedupe_key,
        event.dedupe_seconds,
        now,
    )
