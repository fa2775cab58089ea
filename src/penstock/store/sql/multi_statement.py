"""Claims and maintenance in separate statements: choose, insert, delete, read. Shared by SQLite and MySQL, which have
no statement that moves rows and returns them. Each dialect supplies the statements that choose."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from penstock.model.event import Delivery
from penstock.model.lease import LeaseId
from penstock.model.lifecycle import MAX_SUSPECT, fitting
from penstock.store.sql.claim_hints import ALWAYS
from penstock.store.sql.dialect import ClaimTerms
from penstock.store.sql.event_rows import microseconds
from penstock.store.sql.outcome_rows import OutcomeRow
from penstock.store.sql.store import SqlStore
from penstock.store.sql.transaction import Transaction

ABOVE_ALL = 32_767

PAUSED = "SELECT EXISTS (SELECT 1 FROM penstock_queues WHERE queue = :queue AND paused_at IS NOT NULL)"

# Events that do not fit return to pending from the end of this order: an ordering key never loses its first event while
# it keeps later ones.
CHOOSE_HELD = """
SELECT seq, suspect, attempts + 1 >= coalesce(max_attempts, :max_attempts) FROM penstock_claimed
WHERE lease_id = :lease_id
ORDER BY ordering_key IS NULL, ordering_key, CASE WHEN ordering_key IS NULL THEN available_at END, seq
"""


class StepwiseStore(SqlStore):
    """A SQL store that moves rows by several statements in one transaction."""

    # -- claiming ---------------------------------------------------------------------------------------------

    def _take_from(self, tx: Transaction, terms: ClaimTerms, room: int, floor: datetime) -> list[Delivery]:
        chosen: list[tuple[int, int]] = []
        statement = self._of_types(self.statements.CHOOSE_READY, terms.types)
        for priority in self._levels(tx, terms.lease.queue):
            given = terms.parameters(room - len(chosen))
            chosen += tx.rows(statement, **given, priority=priority, floor=floor)
            if len(chosen) == room:
                break
        return self._move(tx, terms, chosen, room)

    def _move(self, tx: Transaction, terms: ClaimTerms, chosen: list[tuple[int, int]], room: int) -> list[Delivery]:
        """Claim as many of the chosen (seq, suspect) rows as fit; `penstock.model.lifecycle.fitting` counts them."""
        count = fitting((suspect for _, suspect in chosen), terms.limit, taken=terms.limit - room)
        seqs = [seq for seq, _ in chosen[:count]]
        if not seqs:
            return []
        tx.run_all(self.statements.TAKE, lease_id=terms.lease.lease_id, seqs=seqs)
        return tx.deliveries(self.statements.READ_TAKEN, seqs=seqs)

    def _ready_from(self, tx: Transaction, queue: str, types: Sequence[str] | None, floor: datetime) -> bool:
        if tx.scalar(PAUSED, queue=queue):
            return False
        given = {"queue": queue, "types": None if types is None else list(types)}
        head, key_head = (self._of_types(one, types) for one in (self.statements.HEAD, self.statements.KEY_HEAD))
        found = (tx.row(head, **given, priority=one, floor=floor, room=1) for one in self._levels(tx, queue))
        return any(found) or tx.row(key_head, **given) is not None

    def _of_types(self, statement: str, types: Sequence[str] | None) -> str:
        of_types, of_head = ("", "") if types is None else (self.statements.OF_TYPES, self.statements.HEAD_OF_TYPES)
        return statement.replace("{of_types}", of_types).replace("{of_head}", of_head)

    def _levels(self, tx: Transaction, queue: str) -> Iterator[int]:
        """Yield the priorities of the pending events without an ordering key, highest first."""
        priority = tx.scalar(self.statements.LEVEL, queue=queue, above=ABOVE_ALL)
        while priority is not None:
            yield priority
            priority = tx.scalar(self.statements.LEVEL, queue=queue, above=priority)

    # -- leases and settling ----------------------------------------------------------------------------------

    def _publish(self, tx: Transaction, lease_id: LeaseId, seqs: list[int]) -> frozenset[int]:
        done = [row[0] for row in tx.rows(self.statements.LOCK_HELD, lease_id=lease_id, seqs=seqs)]
        if done:
            tx.run_all(self.statements.PUBLISH, seqs=done)
        return frozenset(done)

    def _apply(
        self, tx: Transaction, lease_id: LeaseId, rows: list[OutcomeRow], max_attempts: int, skip: bool
    ) -> list[Any]:
        given = [[row.seq, row.kind, row.error, microseconds(row.delay)] for row in rows]
        decided = dict(tx.rows(self.statements.OUTCOMES, lease_id=lease_id, rows=given, max_attempts=max_attempts))
        final = [[row[0], decided[row[0]], *row[2:]] for row in given if row[0] in decided]
        if final:
            tx.run_all(self.statements.APPLY, lease_id=lease_id, rows=final, skip=skip)
        return list(decided.items())

    def _release(self, tx: Transaction, lease_id: LeaseId) -> int:
        return tx.run_all(self.statements.RELEASE, lease_id=lease_id)

    def _count_lost(self, tx: Transaction, lease_id: LeaseId, limit: int, max_attempts: int) -> None:
        """Count a lost attempt for each event of the lease.

        Exhausted events die. Of the others, as many stay claimed as fit into one claim with their increased weights;
        the rest returns to pending.
        """
        held = tx.rows(CHOOSE_HELD, lease_id=lease_id, max_attempts=max_attempts)
        dead = [seq for seq, _, exhausted in held if exhausted]
        alive = [(seq, suspect) for seq, suspect, exhausted in held if not exhausted]
        stay = fitting((min(suspect + 1, MAX_SUSPECT) for _, suspect in alive), limit)
        self._lose(tx, dead, [seq for seq, _ in alive[stay:]], what="lost", error="attempt lost")
        staying = [seq for seq, _ in alive[:stay]]
        if staying:
            steps = (self.statements.RECORD_LOST, self.statements.STAY)
            tx.run_all(steps, seqs=staying, what="lost", error="attempt lost")

    def _lose(self, tx: Transaction, dead: list[int], leaving: list[int], *, what: str, error: str) -> None:
        known = self.statements
        for seqs, step, move in ((dead, "died", known.ARCHIVE_AS_DEAD), (leaving, what, known.GIVE_BACK)):
            if seqs:
                tx.run_all((known.RECORD_LOST, move, known.DROP_CLAIMED), seqs=seqs, what=step, error=error)

    def _reap(self, tx: Transaction, limit: int) -> tuple[list[Any], int]:
        ended: list[Any] = []
        held: list[Any] = []
        for (lease_id,) in tx.rows(self.statements.EXPIRED):
            under = tx.rows(self.statements.HELD_BY, lease_id=lease_id)
            if ended and len(held) + len(under) > limit:
                break
            ended.append(lease_id)
            held += under
        if ended:
            dead = [seq for seq, exhausted in held if exhausted]
            leaving = [seq for seq, exhausted in held if not exhausted]
            self._lose(tx, dead, leaving, what="reaped", error="lease expired")
            tx.run(self.statements.CLOSE_ENDED, lease_ids=ended)
        return ended, len(held)

    # -- beside the flow --------------------------------------------------------------------------------------

    def _purge(self, tx: Transaction, seqs: list[int]) -> int:
        return tx.run_all(self.maintenance.PURGE, seqs=seqs)

    def _heads(self, tx: Transaction, prefix: str, queues: list[str] | None) -> list[Any]:
        names = self._queues(tx) if queues is None else queues
        wanted = [name for name in names if name.startswith(prefix) and not tx.scalar(PAUSED, queue=name)]
        return [row for name in wanted for row in self._heads_of(tx, name)]

    def _queues(self, tx: Transaction) -> Iterator[str]:
        """Yield the queues with pending events."""
        queue = tx.scalar(self.maintenance.NEXT_QUEUE, after="")
        while queue is not None:
            yield queue
            queue = tx.scalar(self.maintenance.NEXT_QUEUE, after=queue)

    def _heads_of(self, tx: Transaction, queue: str) -> Iterator[Any]:
        head, key_head = (self._of_types(one, None) for one in (self.statements.HEAD, self.statements.KEY_HEAD))
        for priority in self._levels(tx, queue):
            row = tx.row(head, queue=queue, priority=priority, room=1, floor=ALWAYS)
            if row is not None:
                yield queue, priority, *row
                break
        at = tx.scalar(key_head, queue=queue)
        if at is not None:
            yield queue, 0, at, 0
