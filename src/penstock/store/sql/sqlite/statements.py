"""Every statement of claims and settlements on SQLite.

There is one writer at a time (`BEGIN IMMEDIATE`), so no row locks are needed. SQLite has no data-modifying CTE: a move
is an INSERT ... SELECT and then a DELETE. Lists are passed as JSON, times as microseconds (`:now`), ids as hexadecimal
text.
"""

from penstock.store.sql.columns import CHANGED_BY, COLUMNS, DELIVERY, RETRIED, changing

OPEN_LEASE = """
INSERT INTO penstock_leases (lease_id, queue, claimant, token, claims, moved, max_attempts, claimed_at, expires_at)
VALUES (:lease_id, :queue, :claimant, :token, 0, 0, :max_attempts, :now,
        :now + CAST(:lease_seconds * 1000000 AS INTEGER))
ON CONFLICT (lease_id) DO UPDATE SET
    token = excluded.token, moved = claimant <> excluded.claimant, claimant = excluded.claimant, claims = claims + 1,
    expires_at = CASE WHEN closed_at IS NULL THEN max(expires_at, excluded.expires_at) ELSE expires_at END
RETURNING claims, moved, closed_at, max_attempts, :now,
    (SELECT CASE WHEN q.paused_at IS NULL THEN q.max_claimed ELSE 0 END FROM penstock_queues q WHERE q.queue = :queue)
"""

_SEQS = "(SELECT value FROM json_each(:seqs))"
_LEASES = "(SELECT value FROM json_each(:lease_ids))"

OF_TYPES = """
  AND EXISTS (SELECT 1 FROM penstock_events t
              WHERE t.seq = p.seq AND t.event_type IN (SELECT value FROM json_each(:types)))"""

# The next lower priority with pending events, found by one index lookup.
LEVEL = """
SELECT max(priority) FROM penstock_pending WHERE queue = :queue AND ordering_key IS NULL AND priority < :above
"""

_MAY_GO = """
FROM penstock_pending p
WHERE p.queue = :queue AND p.ordering_key IS NULL AND p.priority = :priority AND p.available_at <= :now{of_types}
ORDER BY p.available_at, p.seq LIMIT :room
"""
CHOOSE_READY = f"SELECT p.seq, p.suspect {_MAY_GO}"
HEAD = f"SELECT p.available_at, p.seq {_MAY_GO}"
# An ordering key counts with its own `next_at`, whatever the priority of its events.
KEY_HEAD = """
SELECT k.next_at FROM penstock_keys k
WHERE k.queue = :queue AND k.lease_id IS NULL AND k.next_at <= :now{of_head} ORDER BY k.next_at LIMIT 1
"""
# An ordering key matches a type if its first pending event has this type.
HEAD_OF_TYPES = """
  AND (SELECT t.event_type FROM penstock_pending p JOIN penstock_events t ON t.seq = p.seq
       WHERE p.queue = k.queue AND p.ordering_key = k.ordering_key ORDER BY p.seq LIMIT 1)
      IN (SELECT value FROM json_each(:types))"""

TAKE_KEYS = """
UPDATE penstock_keys SET lease_id = :lease_id
WHERE queue = :queue AND ordering_key IN (
    SELECT ordering_key FROM penstock_keys
    WHERE queue = :queue AND lease_id IS NULL AND next_at <= :now ORDER BY next_at LIMIT :room)
"""

# The first pending events of each key, up to the first that is not claimable yet, which blocks the later ones. The key
# that has waited longest goes first: otherwise a key with enough events for every claim would starve the others.
CHOOSE_KEYED = """
SELECT seq, suspect FROM (
    SELECT p.seq, p.suspect, p.ordering_key, front.next_at,
           min(p.available_at <= :now{of_types}) OVER (PARTITION BY p.ordering_key ORDER BY p.seq) AS may_go
    FROM (
        SELECT queue, ordering_key, next_at, coalesce(
            (SELECT x.seq FROM penstock_pending x WHERE x.queue = k.queue AND x.ordering_key = k.ordering_key
             ORDER BY x.seq LIMIT 1 OFFSET :key_queue_limit - 1), 9223372036854775807) AS last_seq
        FROM penstock_keys k WHERE lease_id = :lease_id
    ) front JOIN penstock_pending p
      ON p.queue = front.queue AND p.ordering_key = front.ordering_key AND p.seq <= front.last_seq
)
WHERE may_go ORDER BY next_at, ordering_key, seq LIMIT :room
"""

TAKE = (
    f"""
    INSERT INTO penstock_claimed ({COLUMNS}, lease_id)
    SELECT {changing(deliveries="deliveries + 1")}, :lease_id FROM penstock_pending WHERE seq IN {_SEQS}
    """,
    f"DELETE FROM penstock_pending WHERE seq IN {_SEQS}",
)

READ_TAKEN = f"""
SELECT {DELIVERY.format(row="s", deliveries="s.deliveries")}
FROM penstock_claimed s JOIN penstock_events e ON e.seq = s.seq WHERE s.seq IN {_SEQS}
"""

READ_CLAIMED = f"""
SELECT {DELIVERY.format(row="s", deliveries="s.deliveries")}
FROM penstock_claimed s JOIN penstock_events e ON e.seq = s.seq WHERE s.lease_id = :lease_id
"""

_LOST = {"attempts": "attempts + 1", "last_error": ":error"}

# Records a lost attempt or an expired lease for the claimed events of a list.
RECORD_LOST = f"""
INSERT INTO penstock_history (seq, at, what, attempts, lease_id, "by", detail)
SELECT c.seq, :now, :what, c.attempts + 1, c.lease_id,
       (SELECT l.claimant FROM penstock_leases l WHERE l.lease_id = c.lease_id), :error
FROM penstock_claimed c WHERE c.seq IN {_SEQS}
"""
ARCHIVE_AS_DEAD = f"""
INSERT INTO penstock_archive ({COLUMNS}, state, settled_at, lease_id)
SELECT {changing(**_LOST)}, 'DEAD', :now, lease_id FROM penstock_claimed WHERE seq IN {_SEQS}
"""
GIVE_BACK = f"""
INSERT INTO penstock_pending ({COLUMNS})
SELECT {changing(suspect="min(suspect + 1, 9)", **_LOST)} FROM penstock_claimed WHERE seq IN {_SEQS}
"""
STAY = f"""
UPDATE penstock_claimed
SET deliveries = deliveries + 1, attempts = attempts + 1, suspect = min(suspect + 1, 9), last_error = :error
WHERE seq IN {_SEQS}
"""
DROP_CLAIMED = f"DELETE FROM penstock_claimed WHERE seq IN {_SEQS}"

LOCK_LEASE = """
SELECT max_attempts, EXISTS (SELECT 1 FROM penstock_keys k WHERE k.lease_id = l.lease_id)
FROM penstock_leases l WHERE l.lease_id = :lease_id AND l.token = :token AND l.closed_at IS NULL
"""

LOCK_HELD = f"SELECT seq FROM penstock_claimed WHERE lease_id = :lease_id AND seq IN {_SEQS}"
PUBLISH = (
    f"""
    INSERT INTO penstock_archive ({COLUMNS}, state, settled_at, lease_id)
    SELECT {changing()}, 'PUBLISHED', :now, lease_id FROM penstock_claimed WHERE seq IN {_SEQS}
    """,
    DROP_CLAIMED,
)

# Joins the given outcomes with the claimed events: :rows is a list of [seq, kind, error, delay in microseconds]. The
# CROSS JOIN makes SQLite look up each row; otherwise it searches the whole list for every event of the lease.
_GIVEN = """
WITH gone AS (
    SELECT c.*, value ->> 1 AS kind, value ->> 2 AS error, value ->> 3 AS delay
    FROM json_each(:rows) CROSS JOIN penstock_claimed c ON c.seq = value ->> 0 WHERE c.lease_id = :lease_id
)
"""
OUTCOMES = f"""
{_GIVEN}
SELECT seq, CASE
    WHEN kind = 'RETRY' AND attempts + 1 >= coalesce(max_attempts, :max_attempts) THEN 'DEAD' ELSE kind END
FROM gone
"""
# Runs after OUTCOMES: in :rows, a retry of the last attempt is already DEAD.
APPLY = (
    f"""
    {_GIVEN}
    INSERT INTO penstock_archive ({COLUMNS}, state, settled_at, lease_id)
    SELECT {changing(attempts="attempts + 1", last_error="error")}, 'DEAD', :now, lease_id
    FROM gone WHERE kind = 'DEAD'
    """,
    f"""
    {_GIVEN}
    INSERT INTO penstock_pending ({COLUMNS})
    SELECT {changing(available_at="{now} + delay", **RETRIED)} FROM gone WHERE kind = 'RETRY'
    """,
    f"""
    {_GIVEN}
    INSERT INTO penstock_pending ({COLUMNS})
    SELECT {changing(deliveries="deliveries - 1")} FROM gone WHERE kind = 'RELEASED'
    """,
    f"""
    {_GIVEN}
    INSERT INTO penstock_history (seq, at, what, attempts, lease_id, "by", detail)
    SELECT seq, :now, CASE kind WHEN 'DEAD' THEN 'died' WHEN 'RETRY' THEN 'retried' ELSE 'released' END,
           attempts + CASE kind WHEN 'RELEASED' THEN 0 ELSE 1 END, :lease_id, {CHANGED_BY}, error FROM gone
    """,
    "DELETE FROM penstock_claimed WHERE lease_id = :lease_id AND seq IN (SELECT value ->> 0 FROM json_each(:rows))",
)

# If an event returns to pending, so do the later events of its ordering key: a repeated claim would otherwise process
# them first.
BEHIND = f"""
SELECT c.seq FROM penstock_claimed c
WHERE c.lease_id = :lease_id AND c.ordering_key IS NOT NULL AND EXISTS (
    SELECT 1 FROM penstock_pending p
    WHERE p.queue = c.queue AND p.ordering_key = c.ordering_key AND p.seq < c.seq AND p.seq IN {_SEQS})
"""

# Retried and released events are pending again, without a lease id. Their history entries contain the lease id.
SETTLED_BEFORE = f"""
SELECT seq FROM penstock_archive WHERE seq IN {_SEQS} AND lease_id = :lease_id
UNION
SELECT seq FROM penstock_history WHERE seq IN {_SEQS} AND lease_id = :lease_id AND what IN ('retried', 'released')
"""

_IDLE = f"""
WHERE lease_id IN {_LEASES} AND NOT EXISTS (
    SELECT 1 FROM penstock_claimed c
    WHERE c.lease_id = penstock_keys.lease_id AND c.ordering_key = penstock_keys.ordering_key)
"""
# A key that was served is queued behind the others; an unserved key keeps its position.
FREE_KEYS = (
    f"""
    DELETE FROM penstock_keys {_IDLE} AND NOT EXISTS (
        SELECT 1 FROM penstock_pending p
        WHERE p.queue = penstock_keys.queue AND p.ordering_key = penstock_keys.ordering_key)
    """,
    f"""
    UPDATE penstock_keys SET lease_id = NULL, next_at = max(CASE WHEN :served THEN :now ELSE next_at END, (
        SELECT p.available_at FROM penstock_pending p
        WHERE p.queue = penstock_keys.queue AND p.ordering_key = penstock_keys.ordering_key ORDER BY p.seq LIMIT 1))
    {_IDLE}
    """,
)

EXTEND = """
UPDATE penstock_leases SET expires_at = max(expires_at, min(:now + g.delay, claimed_at + :max_age))
FROM (SELECT value ->> 0 AS lease_id, value ->> 1 AS token, value ->> 2 AS delay FROM json_each(:rows)) g
WHERE penstock_leases.lease_id = g.lease_id AND penstock_leases.token = g.token AND closed_at IS NULL
  AND claimed_at + :max_age > :now
RETURNING penstock_leases.lease_id, penstock_leases.token
"""

EXPIRED = """
SELECT lease_id FROM penstock_leases WHERE closed_at IS NULL AND expires_at < :now ORDER BY expires_at LIMIT 1000
"""
HELD_BY = """
SELECT c.seq, c.attempts + 1 >= coalesce(c.max_attempts, l.max_attempts)
FROM penstock_claimed c JOIN penstock_leases l ON l.lease_id = c.lease_id WHERE c.lease_id = :lease_id
"""
CLOSE_ENDED = f"UPDATE penstock_leases SET closed_at = :now WHERE lease_id IN {_LEASES}"

RELEASE = (
    f"""
    INSERT INTO penstock_history (seq, at, what, attempts, lease_id, "by", detail)
    SELECT seq, :now, 'released', attempts, :lease_id, {CHANGED_BY}, NULL
    FROM penstock_claimed WHERE lease_id = :lease_id
    """,
    f"""
    INSERT INTO penstock_pending ({COLUMNS})
    SELECT {changing(deliveries="deliveries - 1")} FROM penstock_claimed WHERE lease_id = :lease_id
    """,
    "DELETE FROM penstock_claimed WHERE lease_id = :lease_id",
)
