"""Ordering keys on MySQL and MariaDB: the lease of each key, and the time from which the key can be claimed.

PostgreSQL has a row lock that prevents a DELETE but permits an UPDATE. InnoDB has no such lock, so each key has two
rows. The row in `penstock_keys` is locked and updated by claims. The row in `penstock_holds` is locked in share mode by
an emitter until the emitter commits. Therefore emitters and claims do not wait for each other. Both rows are inserted
together and deleted together, and are not deleted while an emitter has its lock. Therefore every event with an ordering
key has the two rows of the key.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from penstock.model.lease import LeaseId
from penstock.store.sql.dialect import ClaimTerms
from penstock.store.sql.server_dialect import by_queue
from penstock.store.sql.transaction import Transaction

# Names in one IN list: few enough that no server turns the list into a join, which could scan and lock the whole table.
NAMES = 500

# A plain read: in a caller's stricter transaction, a locking read of a missing row would lock the gap in the index, and
# block inserts by others.
KNOWN = "SELECT ordering_key FROM penstock_holds WHERE queue = :queue AND ordering_key IN :names"
HOLD = f"{KNOWN} ORDER BY ordering_key LOCK IN SHARE MODE"
ADD_HOLDS = "INSERT IGNORE INTO penstock_holds (queue, ordering_key) VALUES (%s, %s)"
ADD_KEYS = "INSERT IGNORE INTO penstock_keys (queue, ordering_key, next_at) VALUES (%s, %s, %s)"

# Forces the lookup by name: with few statistics on a new table, a server may scan keys of other claims and wait for
# their locks.
KEYS = "penstock_keys FORCE INDEX (PRIMARY)"
FREE = """
SELECT ordering_key FROM penstock_keys FORCE INDEX (penstock_keys_ready)
WHERE queue = :queue AND lease_id IS NULL AND next_at <= {now} ORDER BY next_at LIMIT :key_limit FOR UPDATE SKIP LOCKED
"""
TAKE = f"UPDATE {KEYS} SET lease_id = :lease_id WHERE queue = :queue AND ordering_key IN :names"

KEY_QUEUE = "penstock_pending p FORCE INDEX (penstock_pending_line)"
# The key that has waited longest goes first: otherwise a key with enough events for every claim would starve the
# others. A key is long if it has more pending events than `key_queue_limit`.
TAKEN = f"""
SELECT k.ordering_key, (
    SELECT p.seq FROM {KEY_QUEUE} WHERE p.queue = k.queue AND p.ordering_key = k.ordering_key
    ORDER BY p.seq LIMIT 1 OFFSET :key_queue_limit) IS NOT NULL
FROM penstock_keys k FORCE INDEX (penstock_keys_lease) WHERE k.lease_id = :lease_id ORDER BY k.next_at, k.ordering_key
"""
_FRONT = "SELECT p.ordering_key, p.seq, p.suspect, p.available_at <= {now}{of_types}"
# All events of many short keys are read by one statement; the first events of a long key by a separate one.
SHORT_KEY_QUEUES = (
    f"{_FRONT} FROM {KEY_QUEUE} WHERE p.queue = :queue AND p.ordering_key IN :names ORDER BY p.ordering_key, p.seq"
)
LONG_KEY_QUEUE = (
    f"{_FRONT} FROM {KEY_QUEUE} WHERE p.queue = :queue AND p.ordering_key = :name ORDER BY p.seq LIMIT :key_queue_limit"
)

HELD_KEYS = """
SELECT lease_id, queue, ordering_key FROM penstock_keys WHERE lease_id IN :lease_ids
ORDER BY queue, ordering_key FOR UPDATE
"""
STILL_CLAIMED = """
SELECT lease_id, ordering_key FROM penstock_claimed
WHERE lease_id IN :lease_ids AND ordering_key IS NOT NULL FOR UPDATE
"""

# Skips a key that an emitter has locked, which must not be deleted.
UNHELD = f"{KNOWN} FOR UPDATE SKIP LOCKED"
# Separate statements, which see everything that emitters committed before the keys were locked.
DROP_DRAINED = """
DELETE FROM penstock_keys WHERE queue = :queue AND ordering_key IN :names AND NOT EXISTS (
    SELECT 1 FROM penstock_pending p
    WHERE p.queue = penstock_keys.queue AND p.ordering_key = penstock_keys.ordering_key)
"""
DROP_HOLDS = """
DELETE FROM penstock_holds WHERE queue = :queue AND ordering_key IN :names AND NOT EXISTS (
    SELECT 1 FROM penstock_keys k WHERE k.queue = penstock_holds.queue AND k.ordering_key = penstock_holds.ordering_key)
"""
# A key that was served is queued behind the others; an unserved key keeps its position. A key looks empty while none of
# its events is committed; it becomes claimable again after 50 ms.
FREE_KEYS = f"""
UPDATE {KEYS} SET lease_id = NULL, next_at = coalesce(
    (SELECT GREATEST(p.available_at, CASE WHEN :served THEN {{now}} ELSE penstock_keys.next_at END) FROM {KEY_QUEUE}
     WHERE p.queue = penstock_keys.queue AND p.ordering_key = penstock_keys.ordering_key ORDER BY p.seq LIMIT 1),
    {{now}} + INTERVAL 50000 MICROSECOND)
WHERE queue = :queue AND ordering_key IN :names
"""

KeyQueue = tuple[str, str]


def hold(tx: Transaction, cursor: Any, keys: Iterable[KeyQueue], now: Any) -> None:
    """Insert the missing rows of these keys, and lock all keys in share mode until the transaction ends. Keys are
    locked in sorted order: in the order of their events, two batches could deadlock."""
    for queue, names in in_bounds(keys):
        left = names
        while left:
            known = [row[0] for row in tx.rows(KNOWN, queue=queue, names=left)]
            held = {row[0] for row in tx.rows(HOLD, queue=queue, names=known)} if known else set()
            missing = [name for name in left if name not in held]
            if missing and _add(cursor, ADD_HOLDS, [(queue, name) for name in missing]):
                _add(cursor, ADD_KEYS, [(queue, name, now) for name in missing])
            # Other transactions may have inserted or deleted some of the rows meanwhile.
            held = {row[0] for row in tx.rows(HOLD, queue=queue, names=missing)} if missing else set()
            left = [name for name in missing if name not in held]


def take(tx: Transaction, queue: str, lease_id: LeaseId, key_limit: int) -> bool:
    """Put free keys under a lease, longest waiting first; return True if there were any."""
    free = sorted(row[0] for row in tx.rows(FREE, queue=queue, key_limit=key_limit))
    for names in in_parts(free):
        tx.run(TAKE, queue=queue, names=names, lease_id=lease_id)
    return bool(free)


def front(tx: Transaction, terms: ClaimTerms, room: int, of_types: str) -> list[tuple[int, int]]:
    """Return (seq, suspect) of the first events of each key under the lease, longest waiting key first.

    The first event that is not claimable yet blocks the later events of its key.
    """
    given = terms.parameters(room)
    keys = tx.rows(TAKEN, lease_id=given["lease_id"], key_queue_limit=given["key_queue_limit"])
    chosen: list[tuple[int, int]] = []
    seen = 0
    for is_long, some in groupby(keys, key=lambda row: bool(row[1])):
        names = [row[0] for row in some]
        statement = (LONG_KEY_QUEUE if is_long else SHORT_KEY_QUEUES).replace("{of_types}", of_types)
        for part in in_parts(names, 1 if is_long else NAMES):
            if seen >= room:
                return chosen[:room]
            given_names = {"name": part[0]} if is_long else {"names": part}
            rows = {name: list(of_key) for name, of_key in groupby(tx.rows(statement, **given, **given_names), _first)}
            seen += sum(map(len, rows.values()))
            chosen += [event for name in part for event in _may_go(rows.get(name, ()))]
    return chosen[:room]


def free(tx: Transaction, lease_ids: Sequence[LeaseId], *, served: bool) -> None:
    """Free the keys of these leases without claimed events; delete those that also have no pending events."""
    ids = list(lease_ids)
    keys = tx.rows(HELD_KEYS, lease_ids=ids)
    claimed = {(row[0], row[1]) for row in tx.rows(STILL_CLAIMED, lease_ids=ids)} if keys else set()
    for queue, names in in_bounds((queue, key) for lease_id, queue, key in keys if (lease_id, key) not in claimed):
        unheld = [row[0] for row in tx.rows(UNHELD, queue=queue, names=names)]
        if unheld and tx.run(DROP_DRAINED, queue=queue, names=unheld):
            tx.run(DROP_HOLDS, queue=queue, names=unheld)
        tx.run(FREE_KEYS, queue=queue, names=names, served=served)


def wake(tx: Transaction, statement: str, keys: Iterable[KeyQueue]) -> None:
    """Make these keys claimable now, by running `statement` for them."""
    for queue, names in in_bounds(keys):
        tx.run(statement, queue=queue, names=names)


def in_parts(names: Iterable[str], size: int = NAMES) -> Iterator[list[str]]:
    left = list(names)
    for start in range(0, len(left), size):
        yield left[start : start + size]


def in_bounds(keys: Iterable[KeyQueue]) -> Iterator[tuple[str, list[str]]]:
    """Yield each queue with its ordering keys, at most NAMES keys at a time."""
    for queue, names in by_queue(keys):
        for some in in_parts(names):
            yield queue, some


def _add(cursor: Any, statement: str, rows: list[tuple[Any, ...]]) -> int:
    return int(cursor.executemany(statement, rows) or 0)


def _may_go(events: Iterable[Any]) -> Iterator[tuple[int, int]]:
    for _, seq, suspect, may_go in events:
        if not may_go:
            return
        yield seq, suspect


def _first(row: Any) -> Any:
    return row[0]
