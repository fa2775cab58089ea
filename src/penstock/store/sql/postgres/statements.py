"""Every statement of claims and settlements on PostgreSQL.

Values are bound (`:name`); only `{now}`, the clock's expression, is substituted, once per statement text. Locks are
always taken in this order: lease, ordering keys (sorted), claimed, then pending or archive.
"""

from penstock.store.sql.columns import CHANGED_BY, COLUMNS, DELIVERY, RETRIED, changing

# Every claim writes a new token, which invalidates the token of an earlier claimant. A closed lease keeps its expiry.
OPEN_LEASE = """
INSERT INTO penstock_leases AS l
    (lease_id, queue, claimant, token, claims, moved, max_attempts, claimed_at, expires_at)
VALUES (:lease_id, :queue, :claimant, :token, 0, false, :max_attempts, {now},
        {now} + :lease_seconds * interval '1 second')
ON CONFLICT (lease_id) DO UPDATE SET
    token = excluded.token, claimant = excluded.claimant, claims = l.claims + 1,
    moved = l.claimant <> excluded.claimant,
    expires_at = CASE WHEN l.closed_at IS NULL THEN greatest(l.expires_at, excluded.expires_at) ELSE l.expires_at END
RETURNING claims, moved, closed_at, max_attempts, {now},
    (SELECT CASE WHEN q.paused_at IS NULL THEN q.max_claimed ELSE 0 END FROM penstock_queues q WHERE q.queue = l.queue)
"""

# Subqueries hide these bounds from the planner. With known bounds it would trust its statistics, expect fewer rows than
# the limit, and fetch and sort all rows, even if many were added since the statistics were collected.
_FLOOR = "(SELECT CAST(:floor AS timestamptz))"
_ROOM = "(SELECT CAST(:room AS bigint))"
# Also hidden, so that a generic plan costs no more than a custom one: otherwise every claim would be planned again.
_LOAD = "(SELECT CAST(:room AS float8))"
_MOST = "(SELECT CAST(:limit AS float8))"
_ALONE = "(SELECT CAST(:alone AS boolean))"

# The priorities of the pending events, highest first, found by one index probe each.
_LEVELS = f"""
RECURSIVE level AS (
    (SELECT priority FROM penstock_pending
     WHERE queue = :queue AND ordering_key IS NULL AND available_at >= {_FLOOR}
     ORDER BY priority DESC LIMIT 1)
    UNION ALL
    SELECT (SELECT p.priority FROM penstock_pending p
            WHERE p.queue = :queue AND p.ordering_key IS NULL AND p.available_at >= {_FLOOR}
              AND p.priority < level.priority
            ORDER BY p.priority DESC LIMIT 1)
    FROM level WHERE level.priority IS NOT NULL
)"""

_OF_TYPES = """
          AND EXISTS (SELECT 1 FROM penstock_events t WHERE t.seq = p.seq
                      AND t.event_type = ANY (CAST(:types AS text[])))"""

# Events are fetched by an array of their seqs: one index scan instead of one lookup per event. FULL JOIN, because
# PostgreSQL cannot run that as a nested loop. If ANALYZE has found no live row in pending, an inner join would be
# planned for one event and repeat the index scan for each: 990 ms for a claim of 5,000 events instead of 24 ms. The
# WHERE clause restores the result of an inner join; `e.seq IS NOT NULL` would let the planner use an inner join.
_MOVE_TAKEN = f"""\
moved AS (
    INSERT INTO penstock_claimed ({COLUMNS}, lease_id)
    SELECT {changing(deliveries="deliveries + 1")}, :lease_id FROM taken
)
SELECT {DELIVERY.format(row="s", deliveries="s.deliveries + 1")}
FROM taken s FULL JOIN (SELECT * FROM penstock_events WHERE seq = ANY (ARRAY(SELECT seq FROM taken))) e ON e.seq = s.seq
WHERE coalesce(e.seq, 0) <> 0
"""

# The lowest priority and the oldest time of the events that a full scan has left pending.
LEFT = """
WITH RECURSIVE level AS (
    (SELECT priority, available_at FROM penstock_pending WHERE queue = :queue AND ordering_key IS NULL
     ORDER BY priority DESC, available_at LIMIT 1)
    UNION ALL
    SELECT below.* FROM level CROSS JOIN LATERAL (
        SELECT p.priority, p.available_at FROM penstock_pending p
        WHERE p.queue = :queue AND p.ordering_key IS NULL AND p.priority < level.priority
        ORDER BY p.priority DESC, p.available_at LIMIT 1
    ) below
)
SELECT min(priority), min(available_at) FROM level
"""

# Rows are deleted by ctid, which cannot change while the row is locked; a join would read all of pending. The load is a
# running sum in the order of the choice, so nothing is sorted.
_TAKE_READY = f"""
WITH {_LEVELS},
chosen AS MATERIALIZED (
    SELECT ready.place, ready.suspect FROM level, LATERAL (
        SELECT p.ctid AS place, p.suspect FROM penstock_pending p
        WHERE p.queue = :queue AND p.ordering_key IS NULL AND p.priority = level.priority
          AND p.available_at >= {_FLOOR} AND p.available_at <= {{now}}{{of_types}}
        ORDER BY p.available_at, p.seq LIMIT {_ROOM} FOR UPDATE SKIP LOCKED
    ) ready
    LIMIT {_ROOM}
),
weighed AS (
    SELECT place, row_number() OVER () AS number,
           sum(least(10 ^ suspect, {_MOST})) OVER (ROWS UNBOUNDED PRECEDING) AS load
    FROM chosen
),
taken AS (
    DELETE FROM penstock_pending
    WHERE ctid = ANY (ARRAY(SELECT place FROM weighed WHERE load <= {_LOAD} OR number = 1 AND {_ALONE}))
    RETURNING *
),
{_MOVE_TAKEN}"""
TAKE_READY = _TAKE_READY.replace("{of_types}", "")
TAKE_READY_TYPED = _TAKE_READY.replace("{of_types}", _OF_TYPES)

_READY = f"""
WITH {_LEVELS}
SELECT (EXISTS (
    SELECT 1 FROM level, LATERAL (
        SELECT 1 FROM penstock_pending p
        WHERE p.queue = :queue AND p.ordering_key IS NULL AND p.priority = level.priority
          AND p.available_at >= {_FLOOR} AND p.available_at <= {{now}}{{of_types}}
        ORDER BY p.available_at LIMIT 1
    ) ready
) OR EXISTS (SELECT 1 FROM penstock_keys k WHERE queue = :queue AND lease_id IS NULL AND next_at <= {{now}}{{head}}))
   AND NOT EXISTS (SELECT 1 FROM penstock_queues q WHERE q.queue = :queue AND q.paused_at IS NOT NULL)
"""
# An ordering key matches a type if its first pending event has this type.
_HEAD_OF_TYPES = """
      AND (SELECT e.event_type FROM penstock_pending p JOIN penstock_events e ON e.seq = p.seq
           WHERE p.queue = k.queue AND p.ordering_key = k.ordering_key ORDER BY p.seq LIMIT 1)
          = ANY (CAST(:types AS text[]))"""
READY = _READY.replace("{of_types}", "").replace("{head}", "")
READY_TYPED = _READY.replace("{of_types}", _OF_TYPES).replace("{head}", _HEAD_OF_TYPES)

# Emitters lock their keys FOR KEY SHARE, which does not conflict with FOR NO KEY UPDATE: neither waits for the other.
TAKE_KEYS = """
WITH free AS MATERIALIZED (
    SELECT ordering_key FROM penstock_keys
    WHERE queue = :queue AND lease_id IS NULL AND next_at <= {now}
    ORDER BY next_at LIMIT :key_limit FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE penstock_keys k SET lease_id = :lease_id FROM free
WHERE k.queue = :queue AND k.ordering_key = free.ordering_key
"""

# The first pending events of each key, up to the first that is not claimable yet, which blocks the later ones. The key
# that has waited longest goes first: otherwise a key with enough events for every claim would starve the others.
_TAKE_KEYED = f"""
WITH front AS MATERIALIZED (
    SELECT k.next_at, k.ordering_key, line.seq, line.suspect, line.may_go
    FROM (SELECT ordering_key, next_at FROM penstock_keys WHERE lease_id = :lease_id
          ORDER BY next_at, ordering_key) k
    CROSS JOIN LATERAL (
        SELECT p.seq, p.suspect, p.available_at <= {{now}}{{of_types}} AS may_go FROM penstock_pending p
        WHERE p.queue = :queue AND p.ordering_key = k.ordering_key ORDER BY p.seq LIMIT :key_queue_limit
    ) line
    LIMIT :room
),
head AS (
    SELECT next_at, ordering_key, seq, suspect,
           bool_and(may_go) OVER (PARTITION BY ordering_key ORDER BY seq) AS may_go
    FROM front
),
weighed AS (
    SELECT seq, row_number() OVER line AS number, sum(least(10 ^ suspect, :limit)) OVER line AS load
    FROM head WHERE may_go WINDOW line AS (ORDER BY next_at, ordering_key, seq)
),
taken AS (
    DELETE FROM penstock_pending
    WHERE seq = ANY (ARRAY(SELECT seq FROM weighed WHERE load <= :room OR number = 1 AND :alone))
    RETURNING *
),
{_MOVE_TAKEN}"""
TAKE_KEYED = _TAKE_KEYED.replace("{of_types}", "")
TAKE_KEYED_TYPED = _TAKE_KEYED.replace("{of_types}", _OF_TYPES)

READ_CLAIMED = f"""
SELECT {DELIVERY.format(row="s", deliveries="s.deliveries")}
FROM penstock_claimed s JOIN penstock_events e ON e.seq = s.seq WHERE s.lease_id = :lease_id
"""

# Moves the events of a lost attempt or an expired lease: exhausted ones to the archive, the others to pending.
_LOSE = f"""\
buried AS (
    INSERT INTO penstock_archive ({COLUMNS}, state, settled_at, lease_id)
    SELECT {changing(attempts="attempts + 1", last_error="'{error}'")}, 'DEAD', {{now}}, lease_id
    FROM gone WHERE dead
),
returned AS (
    INSERT INTO penstock_pending ({COLUMNS})
    SELECT {changing(attempts="attempts + 1", suspect="least(suspect + 1, 9)", last_error="'{error}'")}
    FROM gone WHERE NOT dead
)"""

# A repeated claim by another claimant: the attempt of the previous claimant is lost. Suspects that no longer fit into
# one claim return to pending, from the end: an ordering key never loses its first event while it keeps later ones.
COUNT_LOST = f"""
WITH weighed AS MATERIALIZED (
    SELECT seq, dead, count(*) FILTER (WHERE NOT dead) OVER line AS number,
           sum(least(10 ^ least(suspect + 1, 9), :limit)) FILTER (WHERE NOT dead) OVER line AS load
    FROM (SELECT *, attempts + 1 >= coalesce(max_attempts, :max_attempts) AS dead
          FROM penstock_claimed WHERE lease_id = :lease_id) held
    WINDOW line AS (ORDER BY ordering_key NULLS LAST, CASE WHEN ordering_key IS NULL THEN available_at END, seq)
),
leaving AS (SELECT seq, dead FROM weighed WHERE dead OR (load > :limit AND number > 1)),
gone AS (
    DELETE FROM penstock_claimed c USING leaving l WHERE c.seq = l.seq AND c.lease_id = :lease_id RETURNING c.*, l.dead
),
{_LOSE.replace("{error}", "attempt lost")},
staying AS (
    UPDATE penstock_claimed
    SET deliveries = deliveries + 1, attempts = attempts + 1, suspect = least(suspect + 1, 9),
        last_error = 'attempt lost'
    WHERE lease_id = :lease_id AND seq NOT IN (SELECT seq FROM leaving)
    RETURNING seq, attempts
),
recorded AS (
    INSERT INTO penstock_history (seq, at, what, attempts, lease_id, by, detail)
    SELECT seq, {{now}}, CASE WHEN dead THEN 'died' ELSE 'lost' END, attempts + 1, :lease_id,
           {CHANGED_BY}, 'attempt lost' FROM gone
    UNION ALL
    SELECT seq, {{now}}, 'lost', attempts, :lease_id, {CHANGED_BY}, 'attempt lost' FROM staying
)
SELECT 1
"""

LOCK_LEASE = """
SELECT max_attempts, EXISTS (SELECT 1 FROM penstock_keys k WHERE k.lease_id = l.lease_id)
FROM penstock_leases l
WHERE l.lease_id = :lease_id AND l.token = :token AND l.closed_at IS NULL
FOR UPDATE OF l
"""

PUBLISH = f"""
WITH done AS (
    DELETE FROM penstock_claimed WHERE lease_id = :lease_id AND seq = ANY (CAST(:seqs AS bigint[])) RETURNING *
),
kept AS (
    INSERT INTO penstock_archive ({COLUMNS}, state, settled_at, lease_id)
    SELECT {changing()}, 'PUBLISHED', {{now}}, :lease_id FROM done
)
SELECT count(*), CASE WHEN count(*) < cardinality(CAST(:seqs AS bigint[])) THEN array_agg(seq) END FROM done
"""

# All outcomes except success. A retry of the last attempt is a death; a retry with :skip removes the ordering key.
APPLY = f"""
WITH given AS MATERIALIZED (
    SELECT * FROM unnest(
        CAST(:seqs AS bigint[]), CAST(:kinds AS text[]), CAST(:errors AS text[]), CAST(:delays AS float8[]))
        AS given (given_seq, kind, error, delay)
),
gone AS (
    DELETE FROM penstock_claimed c USING given g WHERE c.seq = g.given_seq AND c.lease_id = :lease_id
    RETURNING c.*, g.error, g.delay, CASE
        WHEN g.kind = 'RETRY' AND c.attempts + 1 >= coalesce(c.max_attempts, :max_attempts) THEN 'DEAD'
        ELSE g.kind END AS outcome
),
buried AS (
    INSERT INTO penstock_archive ({COLUMNS}, state, settled_at, lease_id)
    SELECT {changing(attempts="attempts + 1", last_error="error")}, 'DEAD', {{now}}, lease_id
    FROM gone WHERE outcome = 'DEAD'
),
retried AS (
    INSERT INTO penstock_pending ({COLUMNS})
    SELECT {changing(available_at="{now} + delay * interval '1 second'", **RETRIED)} FROM gone WHERE outcome = 'RETRY'
),
released AS (
    INSERT INTO penstock_pending ({COLUMNS})
    SELECT {changing(deliveries="deliveries - 1")} FROM gone WHERE outcome = 'RELEASED'
),
recorded AS (
    INSERT INTO penstock_history (seq, at, what, attempts, lease_id, by, detail)
    SELECT seq, {{now}}, CASE outcome WHEN 'DEAD' THEN 'died' WHEN 'RETRY' THEN 'retried' ELSE 'released' END,
           attempts + CASE outcome WHEN 'RELEASED' THEN 0 ELSE 1 END, :lease_id, {CHANGED_BY}, error
    FROM gone
)
SELECT seq, outcome FROM gone
"""

# Retried and released events are pending again, without a lease id. Their history entries contain the lease id.
SETTLED_BEFORE = """
SELECT seq FROM penstock_archive WHERE seq = ANY (CAST(:seqs AS bigint[])) AND lease_id = :lease_id
UNION
SELECT seq FROM penstock_history WHERE seq = ANY (CAST(:seqs AS bigint[])) AND lease_id = :lease_id
  AND what IN ('retried', 'released')
"""

# Keys of these leases without a claimed event. NOT IN is planned as a hash; NOT EXISTS may become a nested loop that
# reads all claimed events for each key.
_IDLE = """\
WHERE lease_id = ANY (CAST(:lease_ids AS uuid[])) AND (lease_id, ordering_key) NOT IN (
    SELECT lease_id, ordering_key FROM penstock_claimed
    WHERE lease_id = ANY (CAST(:lease_ids AS uuid[])) AND ordering_key IS NOT NULL)"""
# FOR UPDATE SKIP LOCKED skips a key that an emitter has locked.
LOCK_IDLE_KEYS = f"""
SELECT queue, ordering_key FROM penstock_keys k
{_IDLE}
ORDER BY queue, ordering_key FOR UPDATE SKIP LOCKED
"""

# A separate statement: its snapshot includes everything that emitters committed before the keys were locked.
DROP_DRAINED_KEYS = """
DELETE FROM penstock_keys k
USING unnest(CAST(:queues AS text[]), CAST(:names AS text[])) AS idle (queue, ordering_key)
WHERE k.queue = idle.queue AND k.ordering_key = idle.ordering_key AND NOT EXISTS (
    SELECT 1 FROM penstock_pending p WHERE p.queue = k.queue AND p.ordering_key = k.ordering_key)
"""

# A key that was served is queued behind the others; an unserved key keeps its position. A key looks empty while none of
# its events is committed; it becomes claimable again after 50 ms.
FREE_KEYS = f"""
UPDATE penstock_keys k SET lease_id = NULL, next_at = coalesce(
    (SELECT greatest(p.available_at, CASE WHEN :served THEN {{now}} ELSE k.next_at END) FROM penstock_pending p
     WHERE p.queue = k.queue AND p.ordering_key = k.ordering_key ORDER BY p.seq LIMIT 1),
    {{now}} + interval '50 milliseconds')
{_IDLE}
"""

HOLD_KEYS = "SELECT penstock_hold_keys(:queue, CAST(:names AS text[]), {now})"

# Refused beyond the maximum lease age: otherwise a hung handler with a live heartbeat would hold its events forever.
EXTEND = """
WITH given AS (
    SELECT * FROM unnest(CAST(:lease_ids AS uuid[]), CAST(:tokens AS uuid[]), CAST(:seconds AS float8[]))
        AS given (lease_id, token, seconds)
),
held AS (
    SELECT l.lease_id, g.seconds FROM penstock_leases l JOIN given g ON l.lease_id = g.lease_id AND l.token = g.token
    WHERE l.closed_at IS NULL AND l.claimed_at + :max_age * interval '1 second' > {now}
    ORDER BY l.lease_id FOR UPDATE OF l
)
UPDATE penstock_leases l SET expires_at = greatest(l.expires_at, least(
    {now} + h.seconds * interval '1 second', l.claimed_at + :max_age * interval '1 second'))
FROM held h WHERE l.lease_id = h.lease_id
RETURNING l.lease_id, l.token
"""

# Ends whole leases, as many as their events fit into :limit, and always at least one.
REAP = f"""
WITH expired AS MATERIALIZED (
    SELECT lease_id, claimant, max_attempts FROM penstock_leases WHERE closed_at IS NULL AND expires_at < {{now}}
    ORDER BY expires_at LIMIT 1000 FOR UPDATE SKIP LOCKED
),
sized AS (
    SELECT *, row_number() OVER () AS number, sum(held) OVER (ROWS UNBOUNDED PRECEDING) AS load
    FROM (SELECT *, (SELECT count(*) FROM penstock_claimed c WHERE c.lease_id = x.lease_id) AS held
          FROM expired x) counted
),
ended AS MATERIALIZED (
    SELECT lease_id, claimant, max_attempts FROM sized WHERE load <= :limit OR number = 1
),
gone AS (
    DELETE FROM penstock_claimed c USING ended x WHERE c.lease_id = x.lease_id
    RETURNING c.*, x.claimant, c.attempts + 1 >= coalesce(c.max_attempts, x.max_attempts) AS dead
),
{_LOSE.replace("{error}", "lease expired")},
recorded AS (
    INSERT INTO penstock_history (seq, at, what, attempts, lease_id, by, detail)
    SELECT seq, {{now}}, CASE WHEN dead THEN 'died' ELSE 'reaped' END, attempts + 1, lease_id, claimant, 'lease expired'
    FROM gone
),
closed AS (
    UPDATE penstock_leases l SET closed_at = {{now}} FROM ended x WHERE l.lease_id = x.lease_id
)
SELECT x.lease_id, (SELECT count(*) FROM gone g WHERE g.lease_id = x.lease_id) FROM ended x
"""

_RELEASE = f"""
returned AS (
    INSERT INTO penstock_pending ({COLUMNS}) SELECT {changing(deliveries="deliveries - 1")} FROM gone
),
recorded AS (
    INSERT INTO penstock_history (seq, at, what, attempts, lease_id, by, detail)
    SELECT seq, {{now}}, 'released', attempts, :lease_id, {CHANGED_BY}, NULL FROM gone
)
SELECT count(*) FROM gone
"""
RELEASE = f"""
WITH gone AS (DELETE FROM penstock_claimed WHERE lease_id = :lease_id RETURNING *),
{_RELEASE}"""

# If an event returns to pending, so do the later events of its ordering key: a repeated claim would otherwise process
# them first.
RELEASE_BEHIND = f"""
WITH back AS (
    SELECT ordering_key, min(seq) AS seq FROM penstock_pending
    WHERE seq = ANY (CAST(:seqs AS bigint[])) AND ordering_key IS NOT NULL GROUP BY ordering_key
),
gone AS (
    DELETE FROM penstock_claimed c USING back b
    WHERE c.lease_id = :lease_id AND c.ordering_key = b.ordering_key AND c.seq > b.seq
    RETURNING c.*
),
{_RELEASE}"""
