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
