"""Statements of staging on PostgreSQL: rows are staged by COPY, and one set-based move turns them into events.

As in `statements`, values are bound, and only `{now}`, the clock's expression, is substituted.
"""

from penstock.store.sql.columns import COLUMNS
from penstock.store.sql.schema import staged

# Columns in the order of `staged_row`.
COPY = f"COPY penstock_staged ({', '.join(staged.columns.keys())}) FROM STDIN (FORMAT binary)"
# Values are passed in the wire format, as in `maintenance.COPY_EVENTS`.
TYPES = (
    *("bytea", "int8", "int4", "bytea", "int8"),
    *("bytea", "text", "text", "bytea", "bytea", "text", "text", "int2", "int4", "int8", "float8", "text", "float8"),
    "int8",
)

_CHOSEN = "write_id = :write_id AND batch_id = :batch_id AND part_id = ANY (CAST(:parts AS uuid[]))"

# Queues are sorted here, and the function sorts the keys of a queue: two commits cannot deadlock.
HOLD_KEYS = f"""
SELECT penstock_hold_keys(queue, names, {{now}}) FROM (
    SELECT queue, array_agg(DISTINCT ordering_key) AS names FROM penstock_staged
    WHERE {_CHOSEN} AND ordering_key IS NOT NULL GROUP BY queue ORDER BY queue
) lines
"""

# Deduplication takes three steps, each a join over the primary key of the windows. There are no statistics on rows just
# staged: a join with the rows that an INSERT returns was planned as a nested loop (half a minute for 20,000 rows).
_DUPLICATES = f"""
DELETE FROM penstock_staged s USING penstock_dedupe d
WHERE {_CHOSEN} AND d.queue = s.queue AND d.dedupe_key = s.dedupe_key AND {{}}
"""

# Deletes the staged rows whose deduplication key has an open window, from an event that was emitted before.
DROP_KNOWN = _DUPLICATES.format("d.expires_at > {now}")

# Opens a window for the first staged row of each deduplication key, unless another transaction has just opened one.
OPEN_WINDOWS = f"""
INSERT INTO penstock_dedupe AS d (queue, dedupe_key, event_id, expires_at)
SELECT DISTINCT ON (queue, dedupe_key)
       queue, dedupe_key, event_id, {{now}} + dedupe_seconds * interval '1 second'
FROM penstock_staged WHERE {_CHOSEN} AND dedupe_key IS NOT NULL
ORDER BY queue, dedupe_key, place, part_id, number
ON CONFLICT (queue, dedupe_key) DO UPDATE
SET event_id = excluded.event_id, expires_at = excluded.expires_at WHERE d.expires_at <= {{now}}
"""

# Deletes the staged rows whose deduplication window was opened by another row.
DROP_OTHERS = _DUPLICATES.format("d.event_id <> s.event_id")

# A subquery looks up the sequence once, instead of once per number.
MOVE = f"""
WITH moved AS MATERIALIZED (
    SELECT nextval((SELECT CAST(pg_get_serial_sequence('penstock_events', 'seq') AS regclass))) AS seq, s.*
    FROM (SELECT * FROM penstock_staged WHERE {_CHOSEN} ORDER BY place, part_id, number) s
),
written AS (
    INSERT INTO penstock_events
        (seq, event_id, event_type, payload, headers, partition_key, ordering_key, created_at)
    SELECT seq, event_id, event_type, payload, headers, partition_key, ordering_key, {{now}} FROM moved
),
waiting AS (
    INSERT INTO penstock_pending ({COLUMNS})
    SELECT seq, queue, ordering_key, priority, 0, 0, max_attempts, 0, 0,
           coalesce(available_at, {{now}} + coalesce(delay_seconds, 0) * interval '1 second'), NULL
    FROM moved
)
SELECT count(*) FROM moved
"""


DROP_PARTS = """
DELETE FROM penstock_staged WHERE write_id = :write_id AND part_id = ANY (CAST(:parts AS uuid[]))
"""


DROP_OLD = """
DELETE FROM penstock_staged WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM penstock_staged WHERE staged_at < {now} - :seconds * interval '1 second' LIMIT :limit))
"""
