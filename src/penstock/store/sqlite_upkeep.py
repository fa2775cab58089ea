"""The statements beside the flow on SQLite: replay, purge, relays and upkeep."""

from penstock.store.columns import COLUMNS, changing

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
    SELECT {
        changing(
            ordering_key=_OWN_KEY,
            attempts="0",
            deliveries="0",
            replays="replays + 1",
            suspect="0",
            available_at=":now",
            last_error="NULL",
        )
    } FROM penstock_archive WHERE seq IN {_SEQS}
    """,
    f"DELETE FROM penstock_archive WHERE seq IN {_SEQS}",
)

LAST_NUMBER = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'penstock_events'"

# Rows of seq, queue, the copy's number and its id; the event itself goes to its first queue, without a number.
_GIVEN = """
(SELECT value ->> 0 AS given_seq, value ->> 1 AS to_queue, value ->> 2 AS number, value ->> 3 AS copy_id
 FROM json_each(:rows)) g
"""
_FRESH = {
    "queue": "g.to_queue",
    "attempts": "0",
    "deliveries": "0",
    "replays": "0",
    "suspect": "0",
    "available_at": ":now",
    "last_error": "NULL",
}
_ROUTED = f"FROM {_GIVEN} JOIN penstock_claimed c ON c.seq = g.given_seq AND c.lease_id = :lease_id"
ROUTED = f"SELECT DISTINCT c.seq {_ROUTED}"
HOLD_LINES = f"""
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
    f"DELETE FROM penstock_events WHERE seq IN {_SEQS}",
    f"DELETE FROM penstock_archive WHERE seq IN {_SEQS}",
)

DROP_OLD_LEASES = """
DELETE FROM penstock_leases WHERE lease_id IN (
    SELECT lease_id FROM penstock_leases WHERE closed_at < :now - :seconds * 1000000 LIMIT :limit)
"""
DROP_OLD_DEDUPES = """
DELETE FROM penstock_dedupe WHERE (queue, dedupe_key) IN (
    SELECT queue, dedupe_key FROM penstock_dedupe WHERE expires_at < :now LIMIT :limit)
"""
DROP_OLD_RELAYS = "DELETE FROM penstock_relays WHERE seen_at < :now - :seconds * 1000000"

BEAT_RELAY = """
INSERT INTO penstock_relays (relay_id, queue, destination, host, started_at, seen_at, stopping)
VALUES (:relay_id, :queue, :destination, :host, :now, :now, :stopping)
ON CONFLICT (relay_id) DO UPDATE SET seen_at = excluded.seen_at, stopping = max(stopping, excluded.stopping)
RETURNING stopping
"""
RELAY_STOPPING = "SELECT stopping FROM penstock_relays WHERE relay_id = :relay_id"
FORGET_RELAY = "DELETE FROM penstock_relays WHERE relay_id = :relay_id"

CLOCK = "SELECT :now"

DEDUPED = """
SELECT queue, dedupe_key, event_id FROM penstock_dedupe
WHERE (queue, dedupe_key) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:rows))
"""
