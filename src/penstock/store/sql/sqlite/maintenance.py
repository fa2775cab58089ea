"""Statements on SQLite outside claims and settlements: emits, replay, routes, purge, limits, cancels, maintenance."""

from penstock.store.sql.columns import COLUMNS, FRESH, REPLAYED, UNSETTLED, changing
from penstock.store.sql.schema import CHANGING

_SEQS = "(SELECT value FROM json_each(:seqs))"

_OWN_KEY = "(SELECT e.ordering_key FROM penstock_events e WHERE e.seq = penstock_archive.seq)"
REPLAY = (
    f"""
    INSERT INTO penstock_history (seq, at, what, attempts, lease_id, "by", detail)
    SELECT seq, :now, 'replayed', attempts, NULL, :by, 'was ' || state || coalesce(': ' || last_error, '')
    FROM penstock_archive WHERE seq IN {_SEQS}
    """,
    f"""
    INSERT INTO penstock_keys (queue, ordering_key, next_at)
    SELECT DISTINCT queue, {_OWN_KEY}, :now FROM penstock_archive WHERE seq IN {_SEQS} AND {_OWN_KEY} IS NOT NULL
    ON CONFLICT (queue, ordering_key) DO UPDATE SET next_at = min(next_at, excluded.next_at)
    """,
    f"""
    INSERT INTO penstock_pending ({COLUMNS})
    SELECT {changing(ordering_key=_OWN_KEY, **REPLAYED)} FROM penstock_archive WHERE seq IN {_SEQS}
    """,
    f"DELETE FROM penstock_notes WHERE seq IN {_SEQS}",
    f"DELETE FROM penstock_archive WHERE seq IN {_SEQS}",
)

LAST_NUMBER = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'penstock_events'"

# :rows is a list of [seq, queue, seq of the copy, id of the copy]. The event itself moves to its first queue; that row
# has no copy. The CROSS JOIN below makes SQLite look up each row; otherwise it searches the list for each event (10 s
# for 2,000 events).
_GIVEN = """
(SELECT value ->> 0 AS given_seq, value ->> 1 AS to_queue, value ->> 2 AS number, value ->> 3 AS copy_id
 FROM json_each(:rows)) g
"""
_FRESH = FRESH | {"queue": "g.to_queue"}
_ROUTED = f"FROM {_GIVEN} CROSS JOIN penstock_claimed c ON c.seq = g.given_seq AND c.lease_id = :lease_id"
ROUTED = f"SELECT DISTINCT c.seq {_ROUTED}"
HOLD_KEYS_OF = f"""
INSERT INTO penstock_keys (queue, ordering_key, next_at)
SELECT DISTINCT g.to_queue, c.ordering_key, :now {_ROUTED} WHERE c.ordering_key IS NOT NULL
ON CONFLICT DO NOTHING
"""
ROUTE = (
    f"""
    INSERT INTO penstock_events
        (seq, event_id, event_type, payload, headers, partition_key, ordering_key, created_at, origin)
    SELECT g.number, g.copy_id, e.event_type, e.payload, e.headers, e.partition_key, e.ordering_key, e.created_at,
           coalesce(e.origin, e.event_id)
    {_ROUTED} JOIN penstock_events e ON e.seq = c.seq WHERE g.number IS NOT NULL
    """,
    f"""
    INSERT INTO penstock_pending ({COLUMNS})
    SELECT {changing(seq="coalesce(g.number, c.seq)", **_FRESH)} {_ROUTED}
    """,
    f"DELETE FROM penstock_claimed WHERE lease_id = :lease_id AND seq IN {_SEQS}",
)

PURGE = (
    f"DELETE FROM penstock_history WHERE seq IN {_SEQS}",
    f"DELETE FROM penstock_notes WHERE seq IN {_SEQS}",
    f"DELETE FROM penstock_events WHERE seq IN {_SEQS}",
    f"DELETE FROM penstock_archive WHERE seq IN {_SEQS}",
)

# No lock is needed: there is one writer at a time.
LOCK_QUEUE = "SELECT max_claimed FROM penstock_queues WHERE queue = :queue"
CLAIMED_OF_QUEUE = """
SELECT count(*) FROM penstock_leases l JOIN penstock_claimed c ON c.lease_id = l.lease_id
WHERE l.closed_at IS NULL AND l.queue = :queue
"""


# Moves events from the table of a state, pending or claimed, to the archive.
_TO_ARCHIVE = (
    f"""
    INSERT INTO penstock_archive ({COLUMNS}, state, settled_at, lease_id)
    SELECT {changing(last_error=":reason")}, 'DEAD', :now, NULL FROM {{state}} WHERE seq IN {_SEQS}
    """,
    f"""
    INSERT INTO penstock_history (seq, at, what, attempts, lease_id, "by", detail)
    SELECT seq, :now, 'cancelled', attempts, NULL, :by, :reason FROM {{state}} WHERE seq IN {_SEQS}
    """,
    f"DELETE FROM {{state}} WHERE seq IN {_SEQS}",
)
ARCHIVE_AS_DEAD = {
    state: tuple(statement.format(state=table) for statement in _TO_ARCHIVE) for state, table in UNSETTLED.items()
}
WAKE_KEYS = """
UPDATE penstock_keys SET next_at = :now
WHERE lease_id IS NULL AND next_at > :now
  AND (queue, ordering_key) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:rows))
"""

# The next queue with pending events: one lookup in the index of each table.
NEXT_QUEUE = """
SELECT min(queue) FROM (
    SELECT min(queue) AS queue FROM penstock_pending WHERE ordering_key IS NULL AND queue > :after
    UNION ALL SELECT min(queue) FROM penstock_keys WHERE queue > :after)
"""

DROP_OLD_LEASES = """
DELETE FROM penstock_leases WHERE lease_id IN (
    SELECT lease_id FROM penstock_leases WHERE closed_at < :now - :seconds * 1000000 LIMIT :limit)
"""
DROP_OLD_DEDUPES = """
DELETE FROM penstock_dedupe WHERE (queue, dedupe_key) IN (
    SELECT queue, dedupe_key FROM penstock_dedupe WHERE expires_at < :now LIMIT :limit)
"""
DROP_OLD_RELAYS = "DELETE FROM penstock_relays WHERE seen_at < :now - :seconds * 1000000"


EMIT_EVENT = """
INSERT INTO penstock_events (event_id, event_type, payload, headers, partition_key, ordering_key, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""
EMIT_PENDING = f"INSERT INTO penstock_pending ({COLUMNS}) VALUES ({', '.join('?' * len(CHANGING))})"
ADD_KEY = "INSERT INTO penstock_keys (queue, ordering_key, next_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"

# :rows is a list of [queue, dedupe key, event id, end of the window].
OPEN_WINDOWS = """
INSERT INTO penstock_dedupe (queue, dedupe_key, event_id, expires_at)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(:rows) WHERE true
ON CONFLICT (queue, dedupe_key) DO UPDATE SET event_id = excluded.event_id, expires_at = excluded.expires_at
WHERE penstock_dedupe.expires_at <= :now
RETURNING queue, dedupe_key
"""
WINDOWS = """
SELECT queue, dedupe_key, event_id FROM penstock_dedupe
WHERE (queue, dedupe_key) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:rows))
"""
