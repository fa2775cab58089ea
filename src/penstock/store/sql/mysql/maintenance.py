"""Statements on MySQL and MariaDB outside claims and settlements: replay, routes, purge, limits, cancels, maintenance.

As in `statements`: values are bound, lists of numbers are passed as JSON, and `{now}`, the clock's expression, is
substituted.
"""

from penstock.store.sql.columns import COLUMNS, FRESH, REPLAYED, UNSETTLED, changing
from penstock.store.sql.mysql.ordering_keys import KEYS
from penstock.store.sql.mysql.statements import CLAIMED_ROWS, GIVEN

_ARCHIVED = f"{GIVEN} penstock_archive a ON a.seq = given_seq"

# The ordering key is restored from the event: under the policy `skip` a retried event loses the key of its row.
OWN_KEYS = f"""
SELECT a.queue, e.ordering_key FROM {_ARCHIVED} STRAIGHT_JOIN penstock_events e ON e.seq = a.seq
WHERE e.ordering_key IS NOT NULL
"""
_OWN_KEY = "(SELECT e.ordering_key FROM penstock_events e WHERE e.seq = a.seq)"
REPLAY = (
    f"""
    INSERT INTO penstock_history (seq, at, what, attempts, lease_id, `by`, detail)
    SELECT a.seq, {{now}}, 'replayed', a.attempts, NULL, :by,
           CONCAT('was ', a.state, coalesce(CONCAT(': ', a.last_error), ''))
    FROM {_ARCHIVED}
    """,
    f"""
    INSERT INTO penstock_pending ({COLUMNS})
    SELECT {changing(ordering_key=_OWN_KEY, **REPLAYED)} FROM {_ARCHIVED}
    """,
    f"DELETE n FROM {GIVEN} penstock_notes n ON n.seq = given_seq",
    f"DELETE a FROM {_ARCHIVED}",
)

# Make keys claimable now that were scheduled for later: their events have changed.
WAKE_KEYS = f"""
UPDATE {KEYS} SET next_at = {{now}}
WHERE queue = :queue AND ordering_key IN :names AND lease_id IS NULL AND next_at > {{now}}
"""

# :rows is a list of [seq, queue, id of the copy]. The event itself moves to its first queue; that row has no id. Copies
# get their seqs as they are inserted, in the order of the events, which keeps the order within an ordering key.
_ROUTED = f"""
JSON_TABLE(:rows, '$[*]' COLUMNS (
    place FOR ORDINALITY, given_seq BIGINT PATH '$[0]',
    to_queue VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[1]', copy_id CHAR(32) PATH '$[2]')) given
STRAIGHT_JOIN {CLAIMED_ROWS} ON c.seq = given_seq AND c.lease_id = :lease_id
"""
_FRESH = FRESH | {"queue": "to_queue", "ordering_key": "c.ordering_key"}
ROUTED = f"SELECT DISTINCT c.seq FROM {_ROUTED} FOR UPDATE"
ROUTE = (
    f"""
    INSERT INTO penstock_events
        (event_id, event_type, payload, headers, partition_key, ordering_key, created_at, origin)
    SELECT UNHEX(copy_id), e.event_type, e.payload, e.headers, e.partition_key, e.ordering_key, e.created_at,
           coalesce(e.origin, e.event_id)
    FROM {_ROUTED} STRAIGHT_JOIN penstock_events e ON e.seq = c.seq WHERE copy_id IS NOT NULL ORDER BY place
    """,
    f"""
    INSERT INTO penstock_pending ({COLUMNS})
    SELECT {changing(seq="c.seq", **_FRESH)} FROM {_ROUTED} WHERE copy_id IS NULL
    """,
    f"""
    INSERT INTO penstock_pending ({COLUMNS})
    SELECT {changing(seq="e.seq", **_FRESH)}
    FROM {_ROUTED} STRAIGHT_JOIN penstock_events e ON e.event_id = UNHEX(copy_id) WHERE copy_id IS NOT NULL
    """,
    f"DELETE c FROM {_ROUTED}",
)

PURGE = (
    f"DELETE h FROM {GIVEN} penstock_history h ON h.seq = given_seq",
    f"DELETE n FROM {GIVEN} penstock_notes n ON n.seq = given_seq",
    f"DELETE e FROM {GIVEN} penstock_events e ON e.seq = given_seq",
    f"DELETE a FROM {_ARCHIVED}",
)

LOCK_QUEUE = "SELECT max_claimed FROM penstock_queues WHERE queue = :queue FOR UPDATE"
CLAIMED_OF_QUEUE = """
SELECT count(*) FROM penstock_leases l FORCE INDEX (penstock_leases_open)
STRAIGHT_JOIN penstock_claimed c ON c.lease_id = l.lease_id WHERE l.closed_at IS NULL AND l.queue = :queue
"""


# Moves events from the table of a state, pending or claimed, to the archive.
_STATE = f"{GIVEN} {{state}} s ON s.seq = given_seq"
_TO_ARCHIVE = (
    f"SELECT s.seq FROM {_STATE} FOR UPDATE",
    f"""
    INSERT INTO penstock_archive ({COLUMNS}, state, settled_at, lease_id)
    SELECT {changing(last_error=":reason")}, 'DEAD', {{now}}, NULL FROM {_STATE}
    """,
    f"""
    INSERT INTO penstock_history (seq, at, what, attempts, lease_id, `by`, detail)
    SELECT seq, {{now}}, 'cancelled', attempts, NULL, :by, :reason FROM {_STATE}
    """,
    f"DELETE s FROM {_STATE}",
)
ARCHIVE_AS_DEAD = {
    state: tuple(statement.replace("{state}", table) for statement in _TO_ARCHIVE) for state, table in UNSETTLED.items()
}

# The next queue with pending events, found by one index lookup.
NEXT_QUEUE = "SELECT min(queue) FROM penstock_pending FORCE INDEX (penstock_pending_ready) WHERE queue > :after"

DROP_OLD_LEASES = """
DELETE FROM penstock_leases WHERE closed_at < {now} - INTERVAL ROUND(:seconds * 1000000) MICROSECOND LIMIT :limit
"""
# Skips expired windows that an emitter has locked to reopen them.
DROP_OLD_DEDUPES = """
DELETE d FROM (
    SELECT queue, dedupe_key FROM penstock_dedupe FORCE INDEX (penstock_dedupe_expiry) WHERE expires_at < {now}
    LIMIT :limit FOR UPDATE SKIP LOCKED) old
STRAIGHT_JOIN penstock_dedupe d ON d.queue = old.queue AND d.dedupe_key = old.dedupe_key
"""
DROP_OLD_RELAYS = "DELETE FROM penstock_relays WHERE seen_at < {now} - INTERVAL ROUND(:seconds * 1000000) MICROSECOND"


# An open transaction keeps the rows deleted since its start. `trx_started` is in the time zone of the system.
OLDEST_SNAPSHOT = """
SELECT max(TIMESTAMPDIFF(SECOND, trx_started, CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', 'SYSTEM')))
FROM information_schema.innodb_trx WHERE trx_mysql_thread_id <> CONNECTION_ID()
"""
