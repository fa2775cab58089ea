"""Statements that insert or update a row (upserts), for MySQL and MariaDB. See `penstock.store.sql.upserts`."""

# Assignments run from left to right: `paused_by` is set while `paused_at` still shows an earlier pause.
PAUSE = """
INSERT INTO penstock_queues (queue, paused_at, paused_by) VALUES (:queue, {now}, :by)
ON DUPLICATE KEY UPDATE paused_by = CASE WHEN paused_at IS NULL THEN :by ELSE paused_by END,
    paused_at = coalesce(paused_at, {now})
"""
LIMIT = """
INSERT INTO penstock_queues (queue, max_claimed) VALUES (:queue, :max_claimed)
ON DUPLICATE KEY UPDATE max_claimed = :max_claimed
"""
COUNT_PURGED = """
INSERT INTO penstock_queues (queue, purged) VALUES (:queue, :count)
ON DUPLICATE KEY UPDATE purged = purged + :count
"""

_NOTE = """
INSERT INTO penstock_notes (seq, {column}, noted_at) VALUES (:seq, :{column}, {now})
ON DUPLICATE KEY UPDATE {column} = :{column}, noted_at = {now}
"""
NOTE_PROGRESS = _NOTE.replace("{column}", "progress")
NOTE_RESULT = _NOTE.replace("{column}", "result")

ANNOUNCE_RELAY = """
INSERT INTO penstock_relays (relay_id, queue, destination, host, started_at, seen_at, stopping)
VALUES (:relay_id, :queue, :destination, :host, {now}, {now}, :stopping)
ON DUPLICATE KEY UPDATE seen_at = {now}, stopping = stopping OR :stopping
--;
SELECT stopping FROM penstock_relays WHERE relay_id = :relay_id
"""
