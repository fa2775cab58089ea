"""Statements on PostgreSQL outside claims and settlements: replay, routes, purge, heads, maintenance and bulk emits.

As in `statements`, values are bound, and only `{now}`, the clock's expression, is substituted.
"""

from penstock.store.sql.columns import COLUMNS, FRESH, REPLAYED, UNSETTLED, changing

_FRESH = FRESH | {"last_error": "CAST(NULL AS text)"}

# The ordering key is restored from the event: under the policy `skip` a retried event loses the key of its row.
REPLAY = f"""
WITH gone AS (
    DELETE FROM penstock_archive a USING penstock_events e
    WHERE a.seq = ANY (CAST(:seqs AS bigint[])) AND e.seq = a.seq
    RETURNING a.*, e.ordering_key AS own_key
),
returned AS (
    INSERT INTO penstock_pending ({COLUMNS})
    SELECT {changing(ordering_key="own_key", **REPLAYED)} FROM gone
),
forgotten AS (DELETE FROM penstock_notes WHERE seq IN (SELECT seq FROM gone)),
recorded AS (
    INSERT INTO penstock_history (seq, at, what, attempts, lease_id, by, detail)
    SELECT seq, {{now}}, 'replayed', attempts, NULL, :by,
           'was ' || state || coalesce(': ' || last_error, '') FROM gone
)
SELECT queue, own_key FROM gone
"""

# Make keys claimable now that were scheduled for later: their events have changed.
WAKE_KEYS = """
UPDATE penstock_keys k SET next_at = {now}
FROM (
    SELECT ordering_key FROM penstock_keys
    WHERE queue = :queue AND ordering_key = ANY (CAST(:names AS text[])) AND lease_id IS NULL AND next_at > {now}
    ORDER BY ordering_key FOR NO KEY UPDATE
) idle
WHERE k.queue = :queue AND k.ordering_key = idle.ordering_key
"""

# The event itself moves to its first queue. Copies get their seqs after the sort, in the order of the events, which
# keeps the order within an ordering key. All become available now: an earlier time could be below the scan floor of the
# claims.
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
    FROM copies c
    FULL JOIN (SELECT * FROM penstock_events WHERE seq = ANY (ARRAY(SELECT seq FROM copies))) e ON e.seq = c.seq
),
waiting AS (
    INSERT INTO penstock_pending ({COLUMNS})
    SELECT {changing(queue="to_queue", **_FRESH)} FROM gone
    UNION ALL
    SELECT {changing(seq="copy_seq", queue="copy_queue", **_FRESH)} FROM copies
)
SELECT seq FROM gone
"""

HELD_KEYS_BY_SEQ = (
    "SELECT seq, ordering_key FROM penstock_claimed WHERE lease_id = :lease_id AND ordering_key IS NOT NULL"
)

PURGE = """
WITH gone AS (DELETE FROM penstock_archive WHERE seq = ANY (CAST(:seqs AS bigint[])) RETURNING seq),
lines AS (DELETE FROM penstock_history WHERE seq IN (SELECT seq FROM gone)),
said AS (DELETE FROM penstock_notes WHERE seq IN (SELECT seq FROM gone)),
bodies AS (DELETE FROM penstock_events WHERE seq IN (SELECT seq FROM gone))
SELECT count(*) FROM gone
"""

LOCK_QUEUE = "SELECT max_claimed FROM penstock_queues WHERE queue = :queue FOR UPDATE"
# Counted through the open leases, which are few: a separate index on claimed events would slow every claim.
CLAIMED_OF_QUEUE = """
SELECT count(*) FROM penstock_leases l JOIN penstock_claimed c ON c.lease_id = l.lease_id
WHERE l.closed_at IS NULL AND l.queue = :queue
"""


_BURY = f"""
buried AS (
    INSERT INTO penstock_archive ({COLUMNS}, state, settled_at, lease_id)
    SELECT {changing(last_error=":reason")}, 'DEAD', {{now}}, NULL FROM gone
),
recorded AS (
    INSERT INTO penstock_history (seq, at, what, attempts, lease_id, by, detail)
    SELECT seq, {{now}}, 'cancelled', attempts, NULL, :by, :reason FROM gone
)
SELECT count(*) FROM gone
"""
ARCHIVE_AS_DEAD = {
    state: f"WITH gone AS (DELETE FROM {table} WHERE seq = ANY (CAST(:seqs AS bigint[])) RETURNING *), {_BURY}"
    for state, table in UNSETTLED.items()
}

# The queues with pending events are found by one index probe each, the first ready event of a queue by one probe per
# priority. An ordering key counts with its own `next_at`, whatever the priority of its events.
HEADS = """
WITH RECURSIVE loose AS (
    (SELECT queue FROM penstock_pending WHERE ordering_key IS NULL AND CAST(:queues AS text[]) IS NULL
     ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT p.queue FROM penstock_pending p WHERE p.ordering_key IS NULL AND p.queue > loose.queue
            ORDER BY p.queue LIMIT 1)
    FROM loose WHERE loose.queue IS NOT NULL
),
keyed AS (
    (SELECT queue FROM penstock_keys WHERE CAST(:queues AS text[]) IS NULL ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT k.queue FROM penstock_keys k WHERE k.queue > keyed.queue ORDER BY k.queue LIMIT 1)
    FROM keyed WHERE keyed.queue IS NOT NULL
),
wanted AS (
    SELECT queue FROM loose UNION SELECT queue FROM keyed UNION SELECT unnest(CAST(:queues AS text[]))
)
SELECT w.queue, head.priority, head.available_at, head.seq
FROM wanted w CROSS JOIN LATERAL (
    (WITH RECURSIVE level AS (
        (SELECT p.priority FROM penstock_pending p WHERE p.queue = w.queue AND p.ordering_key IS NULL
         ORDER BY p.priority DESC LIMIT 1)
        UNION ALL
        SELECT (SELECT p.priority FROM penstock_pending p
                WHERE p.queue = w.queue AND p.ordering_key IS NULL AND p.priority < level.priority
                ORDER BY p.priority DESC LIMIT 1)
        FROM level WHERE level.priority IS NOT NULL
    )
    SELECT ready.* FROM level, LATERAL (
        SELECT p.priority, p.available_at, p.seq FROM penstock_pending p
        WHERE p.queue = w.queue AND p.ordering_key IS NULL AND p.priority = level.priority AND p.available_at <= {now}
        ORDER BY p.available_at, p.seq LIMIT 1
    ) ready LIMIT 1)
    UNION ALL
    (SELECT 0, k.next_at, 0 FROM penstock_keys k
     WHERE k.queue = w.queue AND k.lease_id IS NULL AND k.next_at <= {now} ORDER BY k.next_at LIMIT 1)
) head
WHERE starts_with(w.queue, :prefix)
  AND NOT EXISTS (SELECT 1 FROM penstock_queues q WHERE q.queue = w.queue AND q.paused_at IS NOT NULL)
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


# Opens the windows that are not open, and locks all of them, in sorted order: two batches cannot deadlock.
OPEN_WINDOWS = """
INSERT INTO penstock_dedupe AS d (queue, dedupe_key, event_id, expires_at)
SELECT queue, name, id, {now} + seconds * interval '1 second'
FROM unnest(CAST(:queues AS text[]), CAST(:names AS text[]), CAST(:ids AS uuid[]), CAST(:seconds AS float8[]))
    AS given (queue, name, id, seconds)
ORDER BY queue, name
ON CONFLICT (queue, dedupe_key) DO UPDATE
SET event_id = excluded.event_id, expires_at = excluded.expires_at WHERE d.expires_at <= {now}
RETURNING queue, dedupe_key
"""
WINDOWS = """
SELECT queue, dedupe_key, event_id FROM penstock_dedupe
WHERE (queue, dedupe_key) IN (SELECT * FROM unnest(CAST(:queues AS text[]), CAST(:names AS text[])))
"""

OLDEST_SNAPSHOT = """
SELECT extract(epoch FROM max(now() - xact_start)) FROM pg_stat_activity
WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()
"""

# The time is in microseconds since 2000, the binary format of COPY. A subquery looks up the sequence once, instead of
# once per number.
TAKE_NUMBERS = """
SELECT array_agg(nextval((SELECT CAST(pg_get_serial_sequence('penstock_events', 'seq') AS regclass)))),
       CAST(extract(epoch FROM coalesce(CAST(:now AS timestamptz), clock_timestamp()) - timestamptz '2000-01-01 UTC')
            * 1000000 AS bigint)
FROM generate_series(1, :count)
"""

# Ids, JSON and times are passed as the bytes and numbers of the wire format: the driver converts objects far slower.
COPY_EVENTS = """
COPY penstock_events (seq, event_id, event_type, payload, headers, partition_key, ordering_key, created_at)
FROM STDIN (FORMAT binary)
"""
EVENT_TYPES = ("int8", "bytea", "text", "bytea", "bytea", "text", "text", "int8")

COPY_PENDING = f"COPY penstock_pending ({COLUMNS}) FROM STDIN (FORMAT binary)"
PENDING_TYPES = ("int8", "text", "text", "int2", "int4", "int4", "int4", "int4", "int2", "int8", "text")
