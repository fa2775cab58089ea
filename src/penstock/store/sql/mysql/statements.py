"""Every statement of claims and settlements on MySQL and MariaDB.

One text serves both servers. MySQL returns no rows from an INSERT or DELETE, and neither server has a data-modifying
CTE. So a move is a locking SELECT, an INSERT ... SELECT and a DELETE, and a text that changes rows and returns some is
two statements, separated by a line `--;`. Values are bound (`:name`), lists of numbers as one JSON text; `{now}`, the
clock's expression, is substituted.

In READ COMMITTED, a plain read sees everything committed before it began, locks nothing and does not wait. A caller's
transaction (`settle_in`) may be stricter and see an older state. So a read that decides about an event takes a lock,
and thereby sees the newest version. Lock order: lease, keys (sorted), claimed, pending or archive.
"""

from penstock.store.sql.columns import CHANGED_BY, COLUMNS, DELIVERY, RETRIED, changing
from penstock.store.sql.mysql.ordering_keys import KEY_QUEUE

# Microseconds since 2000, which `Delivery` decodes on access.
_RAW_TIME = "TIMESTAMPDIFF(MICROSECOND, '2000-01-01', {})"
_DELIVERY = DELIVERY.format(row="s", deliveries="s.deliveries")
for _column in ("e.created_at", "s.available_at"):
    _DELIVERY = _DELIVERY.replace(_column, _RAW_TIME.format(_column))

# In microseconds, because seconds may have fractions, and the INTERVAL of a float would lose digits.
_LATER = "{{now}} + INTERVAL ROUND({} * 1000000) MICROSECOND"

# The seqs of a list, each looked up by key: one server or the other plans an IN list of thousands as a scan.
GIVEN = "JSON_TABLE(:seqs, '$[*]' COLUMNS (given_seq BIGINT PATH '$')) given STRAIGHT_JOIN"
PENDING = f"{GIVEN} penstock_pending p ON p.seq = given_seq"
# Forces the lookup by seq. For small leases a server prefers the index on leases. Through that index, a locking read
# would take the locks of a row in another order than the DELETE that follows, and lock rows that are not settled.
CLAIMED_ROWS = "penstock_claimed c FORCE INDEX (PRIMARY)"
CLAIMED = f"{GIVEN} {CLAIMED_ROWS} ON c.seq = given_seq"

# Every claim writes a new token, which invalidates the token of an earlier claimant. A closed lease keeps its expiry.
# Assignments run from left to right: `moved` is set first, while `claimant` is still the previous one.
OPEN_LEASE = f"""
INSERT INTO penstock_leases (lease_id, queue, claimant, token, claims, moved, max_attempts, claimed_at, expires_at)
VALUES (:lease_id, :queue, :claimant, :token, 0, 0, :max_attempts, {{now}}, {_LATER.format(":lease_seconds")})
ON DUPLICATE KEY UPDATE
    moved = claimant <> :claimant, claimant = :claimant, token = :token, claims = claims + 1,
    expires_at = CASE WHEN closed_at IS NULL THEN GREATEST(expires_at, {_LATER.format(":lease_seconds")})
                      ELSE expires_at END
--;
SELECT claims, moved, closed_at, max_attempts, {{now}},
    (SELECT CASE WHEN q.paused_at IS NULL THEN q.max_claimed ELSE 0 END FROM penstock_queues q WHERE q.queue = l.queue)
FROM penstock_leases l WHERE lease_id = :lease_id
"""

_READY = "penstock_pending p FORCE INDEX (penstock_pending_ready)"
# A scalar subquery, which cannot become a join: the rows must stay in index order.
OF_TYPES = " AND (SELECT t.event_type FROM penstock_events t WHERE t.seq = p.seq) IN :types"

# The next lower priority with pending events: one index lookup. A recursive query would read all rows of a priority.
LEVEL = f"SELECT max(priority) FROM {_READY} WHERE queue = :queue AND ordering_key IS NULL AND priority < :above"

_MAY_GO = f"""
FROM {_READY}
WHERE p.queue = :queue AND p.ordering_key IS NULL AND p.priority = :priority
  AND p.available_at >= :floor AND p.available_at <= {{now}}{{of_types}}
ORDER BY p.available_at, p.seq LIMIT :room
"""
CHOOSE_READY = f"SELECT p.seq, p.suspect {_MAY_GO} FOR UPDATE SKIP LOCKED"
HEAD = f"SELECT p.available_at, p.seq {_MAY_GO}"
# An ordering key counts with its own `next_at`, whatever the priority of its events.
KEY_HEAD = """
SELECT k.next_at FROM penstock_keys k FORCE INDEX (penstock_keys_ready)
WHERE k.queue = :queue AND k.lease_id IS NULL AND k.next_at <= {now}{of_head} ORDER BY k.next_at LIMIT 1
"""
# An ordering key matches a type if its first pending event has this type.
HEAD_OF_TYPES = f"""
  AND (SELECT t.event_type FROM {KEY_QUEUE} STRAIGHT_JOIN penstock_events t ON t.seq = p.seq
       WHERE p.queue = k.queue AND p.ordering_key = k.ordering_key ORDER BY p.seq LIMIT 1) IN :types"""

# The oldest time among the pending events of a priority.
OLDEST = (
    f"SELECT min(available_at) FROM {_READY} WHERE queue = :queue AND ordering_key IS NULL AND priority = :priority"
)

# The events of a key are chosen without locks, so as not to wait for an emitter; some may be gone by now. Locked in seq
# order, as by a cancel, so that the two cannot deadlock.
LOCK_WAITING = f"SELECT p.seq FROM {PENDING} FOR UPDATE"
TAKE = (
    f"""
    INSERT INTO penstock_claimed ({COLUMNS}, lease_id)
    SELECT {changing(deliveries="deliveries + 1")}, :lease_id FROM {PENDING}
    """,
    f"DELETE p FROM {PENDING}",
)
READ_TAKEN = f"""
SELECT {_DELIVERY} FROM {GIVEN} penstock_claimed s ON s.seq = given_seq STRAIGHT_JOIN penstock_events e ON e.seq = s.seq
"""
READ_CLAIMED = f"""
SELECT {_DELIVERY} FROM penstock_claimed s STRAIGHT_JOIN penstock_events e ON e.seq = s.seq WHERE s.lease_id = :lease_id
"""

_LOST = {"attempts": "attempts + 1", "last_error": ":error"}

# Records a lost attempt or an expired lease for the claimed events of a list.
RECORD_LOST = f"""
INSERT INTO penstock_history (seq, at, what, attempts, lease_id, `by`, detail)
SELECT c.seq, {{now}}, :what, c.attempts + 1, c.lease_id,
       (SELECT l.claimant FROM penstock_leases l WHERE l.lease_id = c.lease_id), :error
FROM {CLAIMED}
"""
ARCHIVE_AS_DEAD = f"""
INSERT INTO penstock_archive ({COLUMNS}, state, settled_at, lease_id)
SELECT {changing(**_LOST)}, 'DEAD', {{now}}, lease_id FROM {CLAIMED}
"""
GIVE_BACK = f"""
INSERT INTO penstock_pending ({COLUMNS}) SELECT {changing(suspect="LEAST(suspect + 1, 9)", **_LOST)} FROM {CLAIMED}
"""
STAY = f"""
UPDATE {CLAIMED} SET c.deliveries = c.deliveries + 1, c.attempts = c.attempts + 1,
    c.suspect = LEAST(c.suspect + 1, 9), c.last_error = :error
"""
DROP_CLAIMED = f"DELETE c FROM {CLAIMED}"

LOCK_LEASE = """
SELECT max_attempts, EXISTS (SELECT 1 FROM penstock_keys k WHERE k.lease_id = l.lease_id LOCK IN SHARE MODE)
FROM penstock_leases l WHERE l.lease_id = :lease_id AND l.token = :token AND l.closed_at IS NULL
FOR UPDATE
"""

LOCK_HELD = f"SELECT c.seq FROM {CLAIMED} WHERE c.lease_id = :lease_id FOR UPDATE"
PUBLISH = (
    f"""
    INSERT INTO penstock_archive ({COLUMNS}, state, settled_at, lease_id)
    SELECT {changing()}, 'PUBLISHED', {{now}}, lease_id FROM {CLAIMED}
    """,
    DROP_CLAIMED,
)

# Joins the given outcomes with the claimed events: :rows is a list of [seq, kind, error, delay in microseconds].
# Without a named character set, texts would be converted to the database's default.
_OUTCOMES = f"""
JSON_TABLE(:rows, '$[*]' COLUMNS (
    given_seq BIGINT PATH '$[0]', kind VARCHAR(8) PATH '$[1]',
    error LONGTEXT CHARACTER SET utf8mb4 PATH '$[2]', delay BIGINT PATH '$[3]')) given
STRAIGHT_JOIN {CLAIMED_ROWS} ON c.seq = given_seq AND c.lease_id = :lease_id
"""
_OUTCOME = """
CASE WHEN kind = 'RETRY' AND c.attempts + 1 >= coalesce(c.max_attempts, :max_attempts) THEN 'DEAD' ELSE kind END
"""
OUTCOMES = f"SELECT c.seq, {_OUTCOME} FROM {_OUTCOMES} FOR UPDATE"
# Runs after OUTCOMES: in :rows, a retry of the last attempt is already DEAD.
APPLY = (
    f"""
    INSERT INTO penstock_archive ({COLUMNS}, state, settled_at, lease_id)
    SELECT {changing(attempts="attempts + 1", last_error="error")}, 'DEAD', {{now}}, lease_id
    FROM {_OUTCOMES} WHERE kind = 'DEAD'
    """,
    f"""
    INSERT INTO penstock_pending ({COLUMNS})
    SELECT {changing(available_at="{now} + INTERVAL delay MICROSECOND", **RETRIED)}
    FROM {_OUTCOMES} WHERE kind = 'RETRY'
    """,
    f"""
    INSERT INTO penstock_pending ({COLUMNS})
    SELECT {changing(deliveries="deliveries - 1")} FROM {_OUTCOMES} WHERE kind = 'RELEASED'
    """,
    f"""
    INSERT INTO penstock_history (seq, at, what, attempts, lease_id, `by`, detail)
    SELECT seq, {{now}}, CASE kind WHEN 'DEAD' THEN 'died' WHEN 'RETRY' THEN 'retried' ELSE 'released' END,
           attempts + CASE kind WHEN 'RELEASED' THEN 0 ELSE 1 END, :lease_id, {CHANGED_BY}, error FROM {_OUTCOMES}
    """,
    f"DELETE c FROM {_OUTCOMES}",
)

# If an event returns to pending, so do the later events of its ordering key: a repeated claim would otherwise process
# them first.
WENT_BACK = f"SELECT p.ordering_key, p.seq FROM {PENDING} WHERE p.ordering_key IS NOT NULL"
HELD_KEYS_BY_SEQ = """
SELECT seq, ordering_key FROM penstock_claimed WHERE lease_id = :lease_id AND ordering_key IS NOT NULL FOR UPDATE
"""

# Retried and released events are pending again, without a lease id. Their history entries contain the lease id.
SETTLED_BEFORE = f"""
SELECT a.seq FROM {GIVEN} penstock_archive a ON a.seq = given_seq WHERE a.lease_id = :lease_id
UNION
SELECT h.seq FROM {GIVEN} penstock_history h ON h.seq = given_seq
WHERE h.lease_id = :lease_id AND h.what IN ('retried', 'released')
"""

# Refused beyond the maximum lease age: otherwise a hung handler with a live heartbeat would hold its events forever.
LOCK_LIVING = """
SELECT lease_id, token FROM penstock_leases
WHERE lease_id IN :lease_ids AND closed_at IS NULL
  AND claimed_at + INTERVAL ROUND(:max_age * 1000000) MICROSECOND > {now}
ORDER BY lease_id FOR UPDATE
"""
EXTEND = f"""
UPDATE penstock_leases SET expires_at = GREATEST(expires_at, LEAST(
    {_LATER.format(":seconds")}, claimed_at + INTERVAL ROUND(:max_age * 1000000) MICROSECOND))
WHERE lease_id = :lease_id
"""

EXPIRED = """
SELECT lease_id FROM penstock_leases FORCE INDEX (penstock_leases_open)
WHERE closed_at IS NULL AND expires_at < {now} ORDER BY expires_at LIMIT 1000 FOR UPDATE SKIP LOCKED
"""
HELD_BY = """
SELECT c.seq, c.attempts + 1 >= coalesce(c.max_attempts, l.max_attempts)
FROM penstock_leases l STRAIGHT_JOIN penstock_claimed c ON c.lease_id = l.lease_id WHERE l.lease_id = :lease_id
"""
CLOSE_ENDED = "UPDATE penstock_leases SET closed_at = {now} WHERE lease_id IN :lease_ids"

_OF_LEASE = "FROM penstock_claimed WHERE lease_id = :lease_id"
RELEASE = (
    f"""
    INSERT INTO penstock_history (seq, at, what, attempts, lease_id, `by`, detail)
    SELECT seq, {{now}}, 'released', attempts, :lease_id, {CHANGED_BY}, NULL {_OF_LEASE}
    """,
    f"INSERT INTO penstock_pending ({COLUMNS}) SELECT {changing(deliveries='deliveries - 1')} {_OF_LEASE}",
    f"DELETE {_OF_LEASE}",
)
