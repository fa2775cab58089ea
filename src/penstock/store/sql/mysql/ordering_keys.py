"""Ordering keys on MySQL and MariaDB: who holds one, whose turn it is, and when it may go.

PostgreSQL has a lock that keeps a row from being deleted and lets it be changed. InnoDB has not, so a key has two rows:
its turn in `penstock_keys`, which claimers lock and change, and one in `penstock_holds`, which an emitter shares until
it commits. Both are made together and deleted together, and nobody deletes them while a hold is shared. So emitters
and claimers don't wait for each other, and no event is left in a line without a key.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from penstock.model.lease import LeaseId
from penstock.store.sql.dialect import ClaimTerms
from penstock.store.sql.server_dialect import by_queue
from penstock.store.sql.transaction import Transaction

# Fewer than a server would turn into a join, which could then scan, and lock, the whole table.
NAMES = 500

# Without a lock: one on a row that isn't there would, in a caller's stricter transaction, lock the place where others
# want to put theirs.
KNOWN = "SELECT ordering_key FROM penstock_holds WHERE queue = :queue AND ordering_key IN :names"
HOLD = f"{KNOWN} ORDER BY ordering_key LOCK IN SHARE MODE"
ADD_HOLDS = "INSERT IGNORE INTO penstock_holds (queue, ordering_key) VALUES (%s, %s)"
ADD_KEYS = "INSERT IGNORE INTO penstock_keys (queue, ordering_key, next_at) VALUES (%s, %s, %s)"

# By their names: a server that knows little of a young table may go through those of other claims, and wait for them.
KEYS = "penstock_keys FORCE INDEX (PRIMARY)"
FREE = """
SELECT ordering_key FROM penstock_keys FORCE INDEX (penstock_keys_ready)
WHERE queue = :queue AND lease_id IS NULL AND next_at <= {now} ORDER BY next_at LIMIT :key_limit FOR UPDATE SKIP LOCKED
"""
TAKE = f"UPDATE {KEYS} SET lease_id = :lease_id WHERE queue = :queue AND ordering_key IN :names"

KEY_QUEUE = "penstock_pending p FORCE INDEX (penstock_pending_line)"
# The key that has waited longest goes first, or one that always has more than enough would keep the others waiting.
# Keys with a long line are told by the event that a claim would be cut at.
TAKEN = f"""
SELECT k.ordering_key, (
    SELECT p.seq FROM {KEY_QUEUE} WHERE p.queue = k.queue AND p.ordering_key = k.ordering_key
    ORDER BY p.seq LIMIT 1 OFFSET :key_queue_limit) IS NOT NULL
FROM penstock_keys k FORCE INDEX (penstock_keys_lease) WHERE k.lease_id = :lease_id ORDER BY k.next_at, k.ordering_key
"""
_FRONT = "SELECT p.ordering_key, p.seq, p.suspect, p.available_at <= {now}{of_types}"
# Short lines in one go, to their ends; the front of a long one by itself.
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

# A key that an emitter holds is skipped: it is not to be deleted.
UNHELD = f"{KNOWN} FOR UPDATE SKIP LOCKED"
# Statements of their own: what an emitter committed before the lock was had is seen.
DROP_DRAINED = """
DELETE FROM penstock_keys WHERE queue = :queue AND ordering_key IN :names AND NOT EXISTS (
    SELECT 1 FROM penstock_pending p
    WHERE p.queue = penstock_keys.queue AND p.ordering_key = penstock_keys.ordering_key)
"""
DROP_HOLDS = """
DELETE FROM penstock_holds WHERE queue = :queue AND ordering_key IN :names AND NOT EXISTS (
    SELECT 1 FROM penstock_keys k WHERE k.queue = penstock_holds.queue AND k.ordering_key = penstock_holds.ordering_key)
"""
# A key that was not served keeps its turn, one that was goes to the back. A key whose only events are not yet
# committed looks empty: its next claimer looks again in 50 ms.
FREE_KEYS = f"""
UPDATE {KEYS} SET lease_id = NULL, next_at = coalesce(
    (SELECT GREATEST(p.available_at, CASE WHEN :served THEN {{now}} ELSE penstock_keys.next_at END) FROM {KEY_QUEUE}
     WHERE p.queue = penstock_keys.queue AND p.ordering_key = penstock_keys.ordering_key ORDER BY p.seq LIMIT 1),
    {{now}} + INTERVAL 50000 MICROSECOND)
WHERE queue = :queue AND ordering_key IN :names
"""

KeyQueue = tuple[str, str]


def hold(tx: Transaction, cursor: Any, keys: Iterable[KeyQueue], now: Any) -> None:
    """Make sure that each of these keys has its rows, and hold them until the transaction ends. Sorted: two batches
    that held theirs in the order of their events could wait for each other."""
    for queue, names in in_bounds(keys):
        left = names
        while left:
            known = [row[0] for row in tx.rows(KNOWN, queue=queue, names=left)]
            held = {row[0] for row in tx.rows(HOLD, queue=queue, names=known)} if known else set()
            missing = [name for name in left if name not in held]
            if missing and _add(cursor, ADD_HOLDS, [(queue, name) for name in missing]):
                _add(cursor, ADD_KEYS, [(queue, name, now) for name in missing])
            # Others may have added, or dropped, some of them meanwhile.
            held = {row[0] for row in tx.rows(HOLD, queue=queue, names=missing)} if missing else set()
            left = [name for name in missing if name not in held]


def take(tx: Transaction, queue: str, lease_id: LeaseId, key_limit: int) -> bool:
    """Put free keys under a lease, those that have waited longest."""
    free = sorted(row[0] for row in tx.rows(FREE, queue=queue, key_limit=key_limit))
    for names in in_parts(free):
        tx.run(TAKE, queue=queue, names=names, lease_id=lease_id)
    return bool(free)


def front(tx: Transaction, terms: ClaimTerms, room: int, of_types: str) -> list[tuple[int, int]]:
    """The head of each line under the lease, up to the first event that may not go yet: what stands behind it waits
    too. Rows of seq and suspect, in turn."""
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
    """Give up the keys under these leases that hold nothing claimed any more; those without a line go altogether."""
    ids = list(lease_ids)
    keys = tx.rows(HELD_KEYS, lease_ids=ids)
    claimed = {(row[0], row[1]) for row in tx.rows(STILL_CLAIMED, lease_ids=ids)} if keys else set()
    for queue, names in in_bounds((queue, key) for lease_id, queue, key in keys if (lease_id, key) not in claimed):
        unheld = [row[0] for row in tx.rows(UNHELD, queue=queue, names=names)]
        if unheld and tx.run(DROP_DRAINED, queue=queue, names=unheld):
            tx.run(DROP_HOLDS, queue=queue, names=unheld)
        tx.run(FREE_KEYS, queue=queue, names=names, served=served)


def wake(tx: Transaction, statement: str, keys: Iterable[KeyQueue]) -> None:
    """Let keys be looked at now that were to be looked at later."""
    for queue, names in in_bounds(keys):
        tx.run(statement, queue=queue, names=names)


def in_parts(names: Iterable[str], size: int = NAMES) -> Iterator[list[str]]:
    left = list(names)
    for start in range(0, len(left), size):
        yield left[start : start + size]


def in_bounds(keys: Iterable[KeyQueue]) -> Iterator[tuple[str, list[str]]]:
    """Queue by queue, the names that go with it, not too many at a time."""
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
