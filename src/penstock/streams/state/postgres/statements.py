"""Tables and statements of the state store in PostgreSQL. Statements take many rows at once, as arrays."""

# Advisory lock number shared by all processes that create these tables.
LOCK_TABLES = "SELECT pg_advisory_xact_lock(7366818045271)"
PATIENCE = "SET LOCAL lock_timeout = '30s'"
HAS_TABLES = "SELECT to_regclass('penstock_stream_timers_due') IS NOT NULL"

# Text is compared as bytes (COLLATE "C"): faster, and the same order as in the other state stores. The last index is
# created last: if it exists, so do all tables.
TABLES = (
    """
    CREATE TABLE IF NOT EXISTS penstock_streams (
        stream text COLLATE "C" PRIMARY KEY, epoch bigint NOT NULL, parts integer NOT NULL, identity text NOT NULL
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS penstock_stream_parts (
        stream text COLLATE "C", part integer, token uuid, batch bigint NOT NULL DEFAULT 0, PRIMARY KEY (stream, part)
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS penstock_inbox (
        stream text COLLATE "C", part integer, event_id text COLLATE "C", replays integer, at timestamptz NOT NULL,
        PRIMARY KEY (stream, part, event_id, replays)
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS penstock_stream_offsets (
        stream text COLLATE "C", part integer, line text COLLATE "C", reached bigint NOT NULL,
        PRIMARY KEY (stream, part, line)
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS penstock_stream_state (
        stream text COLLATE "C", part integer, key text COLLATE "C", data bytea NOT NULL, expires_at double precision,
        PRIMARY KEY (stream, part, key)
    )
    """,
    """
    CREATE INDEX IF NOT EXISTS penstock_stream_expiry ON penstock_stream_state (stream, part, expires_at)
    WHERE expires_at IS NOT NULL
    """,
    """
    CREATE TABLE IF NOT EXISTS penstock_stream_outgoing (
        stream text COLLATE "C", part integer, batch bigint, place integer, event bytea NOT NULL,
        PRIMARY KEY (stream, part, batch, place)
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS penstock_stream_timers (
        stream text COLLATE "C", part integer, key text COLLATE "C", name text COLLATE "C",
        at double precision NOT NULL, PRIMARY KEY (stream, part, key, name)
    )
    """,
    """
    CREATE INDEX IF NOT EXISTS penstock_stream_timers_due ON penstock_stream_timers (stream, part, at, key, name)
    """,
)

# -- streams and fencing --------------------------------------------------------------------------------------

TAKE_EPOCH = """
    INSERT INTO penstock_streams AS known (stream, epoch, parts, identity) VALUES (%s, 1, %s, %s)
    ON CONFLICT (stream) DO UPDATE SET epoch = known.epoch + 1
    RETURNING epoch, parts, identity
"""
MAKE_PARTS = """
    INSERT INTO penstock_stream_parts (stream, part) SELECT %s, number FROM generate_series(0, %s::integer - 1) number
    ON CONFLICT DO NOTHING
"""
# A starting driver updates this row, and so waits for all transactions that have seen the older epoch.
HOLD_EPOCH = "SELECT 1 FROM penstock_streams WHERE stream = %s AND epoch = %s FOR SHARE"
HOLD_PART = "SELECT 1 FROM penstock_stream_parts WHERE stream = %s AND part = %s AND token = %s FOR UPDATE"
LOCK_PART = "SELECT 1 FROM penstock_stream_parts WHERE stream = %s AND part = %s FOR UPDATE"
# The first two parameters of every statement on a state partition are the stream and the state partition.
TAKE = """
    WITH part AS (SELECT %s::text AS stream, %s::integer AS part)
    UPDATE penstock_stream_parts AS held SET token = %s FROM part
    WHERE held.stream = part.stream AND held.part = part.part AND (held.token IS NULL OR held.token < %s)
    RETURNING 1
"""
STREAMS = "SELECT stream, epoch, parts, identity FROM penstock_streams ORDER BY stream"
PARTS_OF = "SELECT parts FROM penstock_streams WHERE stream = %s"

# -- one state partition --------------------------------------------------------------------------------------

# Sorted, so that neighbouring rows are written together.
ENTER = """
    INSERT INTO penstock_inbox (stream, part, event_id, replays, at)
    SELECT %s, %s, event_id, replays, now()
    FROM unnest(%s::text[], %s::integer[]) arrival (event_id, replays)
    ORDER BY event_id COLLATE "C", replays
    ON CONFLICT DO NOTHING
    RETURNING event_id, replays
"""
TRIM = "DELETE FROM penstock_inbox WHERE stream = %s AND part = %s AND replays = %s AND event_id = ANY(%s::text[])"
REACHED = "SELECT line, reached FROM penstock_stream_offsets WHERE stream = %s AND part = %s AND line = ANY(%s::text[])"
ADVANCE = """
    INSERT INTO penstock_stream_offsets AS known (stream, part, line, reached)
    SELECT %s, %s, line, reached FROM unnest(%s::text[], %s::bigint[]) given (line, reached)
    ON CONFLICT (stream, part, line) DO UPDATE SET reached = excluded.reached WHERE excluded.reached > known.reached
"""
LOAD = """
    SELECT key, data, expires_at FROM penstock_stream_state
    WHERE stream = %s AND part = %s AND key = ANY(%s::text[])
"""
SAVE = """
    INSERT INTO penstock_stream_state (stream, part, key, data, expires_at)
    SELECT %s, %s, key, data, expires_at
    FROM unnest(%s::text[], %s::bytea[], %s::double precision[]) changed (key, data, expires_at)
    ON CONFLICT (stream, part, key) DO UPDATE SET data = excluded.data, expires_at = excluded.expires_at
"""
DROP = "DELETE FROM penstock_stream_state WHERE stream = %s AND part = %s AND key = ANY(%s::text[])"

SET_TIMERS = """
    INSERT INTO penstock_stream_timers (stream, part, key, name, at)
    SELECT %s, %s, key, name, at FROM unnest(%s::text[], %s::text[], %s::double precision[]) given (key, name, at)
    ON CONFLICT (stream, part, key, name) DO UPDATE SET at = excluded.at
"""
# The condition on the key lets the index find the rows. A join with pairs may read the whole state partition for each.
CANCEL_TIMERS = """
    DELETE FROM penstock_stream_timers
    WHERE stream = %s AND part = %s AND key = ANY(%s::text[])
      AND (key, name) IN (SELECT gone.key, gone.name FROM unnest(%s::text[], %s::text[]) gone (key, name))
"""
DUE = """
    SELECT at, key, name FROM penstock_stream_timers
    WHERE stream = %s AND part = %s AND at <= %s
    ORDER BY at, key, name LIMIT %s
"""

# The state partition's row is locked, so the numbers are in the order of the commits.
NEXT_BATCH = "UPDATE penstock_stream_parts SET batch = batch + 1 WHERE stream = %s AND part = %s RETURNING batch"
EMIT = """
    INSERT INTO penstock_stream_outgoing (stream, part, batch, place, event)
    SELECT %s, %s, %s, place, event FROM unnest(%s::integer[], %s::bytea[]) emitted (place, event)
"""
BATCHES = "SELECT DISTINCT batch FROM penstock_stream_outgoing WHERE stream = %s AND part = %s ORDER BY batch"
OUTGOING = "SELECT event FROM penstock_stream_outgoing WHERE stream = %s AND part = %s AND batch = %s ORDER BY place"
SENT = "DELETE FROM penstock_stream_outgoing WHERE stream = %s AND part = %s AND batch <= %s"

# -- access from outside the stream ---------------------------------------------------------------------------

READ = "SELECT key, data, expires_at FROM penstock_stream_state WHERE stream = %s ORDER BY key"
READ_PART = "SELECT key, data, expires_at FROM penstock_stream_state WHERE stream = %s AND part = %s ORDER BY key"
# The state partitions are named even if all are wanted: the primary key then finds single keys.
READ_KEYS = """
    SELECT key, data, expires_at FROM penstock_stream_state
    WHERE stream = %s AND part = ANY(%s::integer[]) AND key = ANY(%s::text[])
    ORDER BY key
"""
FORGET_INBOX = """
    WITH gone AS (
        DELETE FROM penstock_inbox
        WHERE stream = %s AND part = %s AND at <= clock_timestamp() - make_interval(secs => %s)
        RETURNING 1
    )
    SELECT count(*) FROM gone
"""
FORGET_STATE = """
    WITH gone AS (
        DELETE FROM penstock_stream_state
        WHERE stream = %s AND part = %s AND expires_at <= extract(epoch FROM clock_timestamp())
        RETURNING 1
    )
    SELECT count(*) FROM gone
"""
