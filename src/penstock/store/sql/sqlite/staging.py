"""Statements of staging on SQLite: rows are staged, and a move of several statements turns them into events.

As in `statements`: lists are passed as JSON, times as microseconds (`:now`), ids as hexadecimal text.
"""

from penstock.store.sql.columns import COLUMNS
from penstock.store.sql.schema import staged

# Columns in the order of `staged_row`.
_COLUMNS = staged.columns.keys()
INSERT = f"INSERT INTO penstock_staged ({', '.join(_COLUMNS)}) VALUES ({', '.join(['?'] * len(_COLUMNS))})"

_CHOSEN = "write_id = :write_id AND batch_id = :batch_id AND part_id IN (SELECT value FROM json_each(:parts))"

# Drops all rows of a deduplication key but the first, and the first one too if the window is still open.
DROP_DUPLICATES = f"""
DELETE FROM penstock_staged WHERE rowid IN (
    SELECT number_of_row FROM (
        SELECT rowid AS number_of_row, queue, dedupe_key,
               row_number() OVER (PARTITION BY queue, dedupe_key ORDER BY place, part_id, number) AS turn
        FROM penstock_staged WHERE {_CHOSEN} AND dedupe_key IS NOT NULL
    ) s
    WHERE turn > 1 OR EXISTS (
        SELECT 1 FROM penstock_dedupe d
        WHERE d.queue = s.queue AND d.dedupe_key = s.dedupe_key AND d.expires_at > :now))
"""

OPEN_WINDOWS = f"""
INSERT INTO penstock_dedupe (queue, dedupe_key, event_id, expires_at)
SELECT queue, dedupe_key, event_id, :now + CAST(dedupe_seconds * 1000000 AS INTEGER)
FROM penstock_staged WHERE {_CHOSEN} AND dedupe_key IS NOT NULL
ON CONFLICT (queue, dedupe_key) DO UPDATE SET event_id = excluded.event_id, expires_at = excluded.expires_at
"""

HOLD_KEYS = f"""
INSERT INTO penstock_keys (queue, ordering_key, next_at)
SELECT DISTINCT queue, ordering_key, :now FROM penstock_staged WHERE {_CHOSEN} AND ordering_key IS NOT NULL
ON CONFLICT DO NOTHING
"""

# Events get their seqs in the order of insertion.
WRITE = f"""
INSERT INTO penstock_events (event_id, event_type, payload, headers, partition_key, ordering_key, created_at)
SELECT event_id, event_type, payload, headers, partition_key, ordering_key, :now
FROM penstock_staged WHERE {_CHOSEN} ORDER BY place, part_id, number
"""

WAIT = f"""
INSERT INTO penstock_pending ({COLUMNS})
SELECT e.seq, s.queue, s.ordering_key, s.priority, 0, 0, s.max_attempts, 0, 0,
       coalesce(s.available_at, :now + CAST(coalesce(s.delay_seconds, 0) * 1000000 AS INTEGER)), NULL
FROM penstock_staged s JOIN penstock_events e ON e.event_id = s.event_id WHERE {_CHOSEN}
"""


DROP_PARTS = """
DELETE FROM penstock_staged WHERE write_id = :write_id AND part_id IN (SELECT value FROM json_each(:parts))
"""


DROP_OLD = """
DELETE FROM penstock_staged WHERE rowid IN (
    SELECT rowid FROM penstock_staged WHERE staged_at < :now - :seconds * 1000000 LIMIT :limit)
"""
