"""Statements that insert or update a row (upserts), for PostgreSQL and SQLite."""

PAUSE = """
INSERT INTO penstock_queues AS q (queue, paused_at, paused_by) VALUES (:queue, {now}, :by)
ON CONFLICT (queue) DO UPDATE SET paused_at = excluded.paused_at, paused_by = excluded.paused_by
WHERE q.paused_at IS NULL
"""
LIMIT = """
INSERT INTO penstock_queues (queue, max_claimed) VALUES (:queue, :max_claimed)
ON CONFLICT (queue) DO UPDATE SET max_claimed = excluded.max_claimed
"""
COUNT_PURGED = """
INSERT INTO penstock_queues AS q (queue, purged) VALUES (:queue, :count)
ON CONFLICT (queue) DO UPDATE SET purged = q.purged + excluded.purged
"""

_NOTE = """
INSERT INTO penstock_notes (seq, {column}, noted_at) VALUES (:seq, :{column}, {now})
ON CONFLICT (seq) DO UPDATE SET {column} = excluded.{column}, noted_at = excluded.noted_at
"""
NOTE_PROGRESS = _NOTE.replace("{column}", "progress")
NOTE_RESULT = _NOTE.replace("{column}", "result")

ANNOUNCE_RELAY = """
INSERT INTO penstock_relays AS r (relay_id, queue, destination, host, started_at, seen_at, stopping)
VALUES (:relay_id, :queue, :destination, :host, {now}, {now}, :stopping)
ON CONFLICT (relay_id) DO UPDATE SET seen_at = excluded.seen_at, stopping = r.stopping OR excluded.stopping
RETURNING stopping
"""
