"""The statements beside the flow on PostgreSQL: replay, purge, relays, upkeep, and the bulk way in.

As in `postgres_statements`, values are bound and only `{now}`, the clock, is put in.
"""

from penstock.store.columns import COLUMNS, changing

_FRESH = {
    "attempts": "0",
    "deliveries": "0",
    "replays": "0",
    "suspect": "0",
    "available_at": "{now}",
    "last_error": "CAST(NULL AS text)",
}

# The key comes back from the event itself: one that had left its line returns to it.
REPLAY = f"""
WITH gone AS (
    DELETE FROM penstock_archive a USING penstock_events e
    WHERE a.seq = ANY (CAST(:seqs AS bigint[])) AND e.seq = a.seq
    RETURNING a.*, e.ordering_key AS own_key
),
returned AS (
    INSERT INTO penstock_pending ({COLUMNS})
    SELECT {
    changing(
        ordering_key="own_key",
        attempts="0",
        deliveries="0",
        replays="replays + 1",
        suspect="0",
        available_at="{now}",
        last_error="NULL",
    )
} FROM gone
),
recorded AS (
    INSERT INTO penstock_history (seq, at, what, attempts, lease_id, by, detail)
    SELECT seq, {{now}}, 'replayed', attempts, NULL, :by,
           'was ' || state || coalesce(': ' || last_error, '') FROM gone
)
SELECT queue, own_key FROM gone
"""

# A key whose turn would come later has an event again that may go now.
WAKE_KEYS = """
UPDATE penstock_keys k SET next_at = {now}
FROM (
    SELECT ordering_key FROM penstock_keys
    WHERE queue = :queue AND ordering_key = ANY (CAST(:names AS text[])) AND lease_id IS NULL AND next_at > {now}
    ORDER BY ordering_key FOR NO KEY UPDATE
) idle
WHERE k.queue = :queue AND k.ordering_key = idle.ordering_key
"""

# The event itself goes to its first queue. Copies take their numbers in the order of the events, after the sort: an
# ordering key's line stays one. Their time is now: claimers look for new events from where they last found some.
ROUTE = f"""
WITH given AS MATERIALIZED (
    SELECT * FROM unnest(CAST(:seqs AS bigint[]), CAST(:queues AS text[]), CAST(:copy_ids AS uuid[]))
        WITH ORDINALITY AS given (given_seq, to_queue, copy_id, place)
),
gone AS (
    DELETE FROM penstock_claimed c USING given g
    WHERE g.copy_id IS NULL AND c.seq = g.given_seq AND c.lease_id = :lease_id RETURNING c.*, g.to_queue
),
copies AS MATERIALIZED (
    SELECT nextval((SELECT CAST(pg_get_serial_sequence('penstock_events', 'seq') AS regclass))) AS copy_seq, sorted.*
    FROM (SELECT gone.*, g.to_queue AS copy_queue, g.copy_id FROM gone JOIN given g ON g.given_seq = gone.seq
          WHERE g.copy_id IS NOT NULL ORDER BY g.place) sorted
),
written AS (
    INSERT INTO penstock_events
        (seq, event_id, event_type, payload, headers, partition_key, ordering_key, created_at, origin)
    SELECT c.copy_seq, c.copy_id, e.event_type, e.payload, e.headers, e.partition_key, e.ordering_key, e.created_at,
           coalesce(e.origin, e.event_id)
    FROM copies c JOIN penstock_events e ON e.seq = c.seq AND e.seq = ANY (ARRAY(SELECT seq FROM copies))
),
waiting AS (
    INSERT INTO penstock_pending ({COLUMNS})
    SELECT {changing(queue="to_queue", **_FRESH)} FROM gone
    UNION ALL
    SELECT {changing(seq="copy_seq", queue="copy_queue", **_FRESH)} FROM copies
)
SELECT seq FROM gone
"""

LINES_HELD = "SELECT seq, ordering_key FROM penstock_claimed WHERE lease_id = :lease_id AND ordering_key IS NOT NULL"

PURGE = """
WITH gone AS (DELETE FROM penstock_archive WHERE seq = ANY (CAST(:seqs AS bigint[])) RETURNING seq),
lines AS (DELETE FROM penstock_history WHERE seq IN (SELECT seq FROM gone)),
bodies AS (DELETE FROM penstock_events WHERE seq IN (SELECT seq FROM gone))
SELECT count(*) FROM gone
"""

DROP_OLD_LEASES = """
DELETE FROM penstock_leases WHERE lease_id = ANY (ARRAY(
    SELECT lease_id FROM penstock_leases WHERE closed_at < {now} - :seconds * interval '1 second' LIMIT :limit))
"""

DROP_OLD_DEDUPES = """
DELETE FROM penstock_dedupe d USING (
    SELECT queue, dedupe_key FROM penstock_dedupe WHERE expires_at < {now} ORDER BY queue, dedupe_key
    LIMIT :limit FOR UPDATE SKIP LOCKED) old
WHERE d.queue = old.queue AND d.dedupe_key = old.dedupe_key
"""

DROP_OLD_RELAYS = "DELETE FROM penstock_relays WHERE seen_at < {now} - :seconds * interval '1 second'"

BEAT_RELAY = """
INSERT INTO penstock_relays AS r (relay_id, queue, destination, host, started_at, seen_at, stopping)
VALUES (:relay_id, :queue, :destination, :host, {now}, {now}, :stopping)
ON CONFLICT (relay_id) DO UPDATE SET seen_at = excluded.seen_at, stopping = r.stopping OR excluded.stopping
RETURNING stopping
"""

RELAY_STOPPING = "SELECT stopping FROM penstock_relays WHERE relay_id = :relay_id"

FORGET_RELAY = "DELETE FROM penstock_relays WHERE relay_id = :relay_id"

CLOCK = "SELECT {now}"

DEDUPED = """
SELECT queue, dedupe_key, event_id FROM penstock_dedupe
WHERE (queue, dedupe_key) IN (SELECT * FROM unnest(CAST(:queues AS text[]), CAST(:names AS text[])))
"""

TABLE_BYTES = "SELECT pg_relation_size(CAST(:table_name AS regclass)) + pg_indexes_size(CAST(:table_name AS regclass))"

OLDEST_SNAPSHOT = """
SELECT extract(epoch FROM max(now() - xact_start)) FROM pg_stat_activity
WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()
"""

# The time as microseconds since 2000, as COPY takes it. The sequence is found once by its own query, not anew for every
# number.
TAKE_NUMBERS = """
SELECT array_agg(nextval((SELECT CAST(pg_get_serial_sequence('penstock_events', 'seq') AS regclass)))),
       CAST(extract(epoch FROM coalesce(CAST(:now AS timestamptz), clock_timestamp()) - timestamptz '2000-01-01 UTC')
            * 1000000 AS bigint)
FROM generate_series(1, :count)
"""

# Ids, JSON and times go as the bytes and numbers that they are on the wire: the driver takes far longer over objects.
COPY_EVENTS = """
COPY penstock_events (seq, event_id, event_type, payload, headers, partition_key, ordering_key, created_at)
FROM STDIN (FORMAT binary)
"""
EVENT_TYPES = ("int8", "bytea", "text", "bytea", "bytea", "text", "text", "int8")

COPY_PENDING = f"COPY penstock_pending ({COLUMNS}) FROM STDIN (FORMAT binary)"
PENDING_TYPES = ("int8", "text", "text", "int2", "int4", "int4", "int4", "int4", "int2", "int8", "text")

SHORT_LOCK = "SET LOCAL lock_timeout = '100ms'"
SET_ASIDE = "CREATE TEMPORARY TABLE penstock_aside ON COMMIT DROP AS SELECT * FROM {table} LIMIT {limit}"
DROP_ASIDE = "DROP TABLE penstock_aside"
REWRITE = (
    "LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE",
    SET_ASIDE,
    "TRUNCATE {table}",
    "INSERT INTO {table} SELECT * FROM penstock_aside",
    DROP_ASIDE,
)
