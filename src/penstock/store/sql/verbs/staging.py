"""Staging: rows from the tasks of a Spark write become events in one transaction, or never.

A task that dies, is run again or runs twice leaves parts that no commit names. They are dropped by the next commit of
the same write, or by age.
"""

from collections.abc import Collection, Mapping, Sequence
from types import ModuleType
from uuid import UUID

from penstock.model.errors import StoreError
from penstock.model.event import Event
from penstock.store.api import Committed, StagedPart, require_staging
from penstock.store.sql.dialect import Dialect
from penstock.store.sql.transaction import Transaction

# Longer than any write takes: staged rows must not be dropped while their write runs.
STAGED_RETENTION_SECONDS = 7 * 86_400.0

# Affects no row if this batch, or a later one, was committed before. A concurrent commit of the same write waits.
REMEMBER = """
INSERT INTO penstock_sinks AS s (query_id, batch_id, committed_at) VALUES (:write_id, :batch_id, {now})
ON CONFLICT (query_id) DO UPDATE SET batch_id = excluded.batch_id, committed_at = excluded.committed_at
WHERE s.batch_id < excluded.batch_id
"""
# Rows of this batch, staged by any attempt, and of earlier batches.
DROP_BATCH = "DELETE FROM penstock_staged WHERE write_id = :write_id AND batch_id <= :batch_id"
DROP_WRITE = "DELETE FROM penstock_staged WHERE write_id = :write_id"


class StagingVerbs(Dialect):
    """Verbs that stage and commit. `penstock.store.api.Store` documents them.

    A store that declares the capability supplies `staging`, `_stage` and `_move_staged`.
    """

    staging: ModuleType

    def stage(self, part: StagedPart, events: Sequence[Event], *, start: int = 0) -> int:
        require_staging(self.url, self.capabilities)
        if events:
            self._transact(lambda tx: self._stage(tx, part, events, start))
        return start + len(events)

    def commit_staged(self, write_id: UUID, batch_id: int, parts: Mapping[UUID, int], *, once: bool) -> Committed:
        require_staging(self.url, self.capabilities)
        self.scan_everything()
        return self._transact(lambda tx: self._commit_staged(tx, write_id, batch_id, parts, once=once))

    def _commit_staged(
        self, tx: Transaction, write_id: UUID, batch_id: int, parts: Mapping[UUID, int], *, once: bool
    ) -> Committed:
        done = Committed(repeated=True)
        if not once or tx.run(REMEMBER, write_id=write_id, batch_id=batch_id):
            named = [part_id for part_id, count in parts.items() if count]
            done = self._move_staged(tx, write_id, batch_id, named) if named else Committed()
            require_all(done.events + done.duplicates, sum(parts.values()))
        tx.run(DROP_BATCH, write_id=write_id, batch_id=batch_id)
        return done

    def drop_staged(self, write_id: UUID, *, parts: Collection[UUID] | None = None) -> int:
        require_staging(self.url, self.capabilities)
        if parts is None:
            return self._transact(lambda tx: tx.run(DROP_WRITE, write_id=write_id))
        named = list(parts)
        return self._transact(lambda tx: tx.run(self.staging.DROP_PARTS, write_id=write_id, parts=named))


def require_all(found: int, expected: int) -> None:
    """Raise `StoreError` if staged rows are missing, rather than emit part of a batch."""
    if found != expected:
        raise StoreError(
            f"{found} of {expected} staged rows remain, no event was emitted: the database was restarted, or the rows "
            "expired after 7 days; run the write again"
        )
