"""Claims and upkeep in plain steps: choose, insert, delete, read. For databases without statements that change and
return rows at once: what SQLite and MySQL share; each says how it chooses."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from penstock.model.event import Delivery
from penstock.model.lease import LeaseId
from penstock.model.lifecycle import fitting
from penstock.store.sql.dialect import ClaimTerms
from penstock.store.sql.store import SqlStore
from penstock.store.sql.transaction import Transaction

PAUSED = "SELECT EXISTS (SELECT 1 FROM penstock_queues WHERE queue = :queue AND paused_at IS NOT NULL)"


class StepwiseStore(SqlStore):
    """A SQL store whose every move is some statements after each other, in one transaction."""

    def _move(self, tx: Transaction, terms: ClaimTerms, chosen: list[tuple[int, int]], room: int) -> list[Delivery]:
        """Claim as many of the chosen (seq, suspect) as fit: the pure core decides how many that are."""
        count = fitting((suspect for _, suspect in chosen), terms.limit, taken=terms.limit - room)
        seqs = [seq for seq, _ in chosen[:count]]
        if not seqs:
            return []
        tx.run_all(self.statements.TAKE, lease_id=terms.lease.lease_id, seqs=seqs)
        return tx.deliveries(self.statements.READ_TAKEN, seqs=seqs)

    def _of_types(self, statement: str, types: Sequence[str] | None) -> str:
        return statement.replace("{of_types}", "" if types is None else self.statements.OF_TYPES)

    def _choose_lost(
        self, tx: Transaction, lease_id: LeaseId, limit: int, max_attempts: int
    ) -> tuple[list[int], list[int], list[int]]:
        """Of what a lost attempt held: the dead, those that leave, and those that fit into one claim and stay."""
        held = tx.rows(self.statements.CHOOSE_HELD, lease_id=lease_id, max_attempts=max_attempts)
        alive = [(seq, suspect) for seq, suspect, exhausted in held if not exhausted]
        stay = fitting((min(suspect + 1, 9) for _, suspect in alive), limit)
        dead = [seq for seq, _, exhausted in held if exhausted]
        return dead, [seq for seq, _ in alive[stay:]], [seq for seq, _ in alive[:stay]]

    def _release(self, tx: Transaction, lease_id: LeaseId) -> int:
        return tx.run_all(self.statements.RELEASE, lease_id=lease_id)

    def _purge(self, tx: Transaction, seqs: list[int]) -> int:
        return tx.run_all(self.maintenance.PURGE, seqs=seqs)

    def _heads(self, tx: Transaction, prefix: str, queues: list[str] | None) -> list[Any]:
        names = self._queues(tx) if queues is None else queues
        wanted = [name for name in names if name.startswith(prefix) and not tx.scalar(PAUSED, queue=name)]
        return [row for name in wanted for row in self._heads_of(tx, name)]

    def _heads_of(self, tx: Transaction, queue: str) -> Iterator[Any]:
        for priority in self._levels(tx, queue):
            row = self._head(tx, queue, priority)
            if row is not None:
                yield queue, priority, *row
                break
        at = tx.scalar(self.maintenance.KEY_HEAD, queue=queue)
        if at is not None:
            yield queue, 0, at, 0

    @abstractmethod
    def _levels(self, tx: Transaction, queue: str) -> Iterable[int]:
        """The priorities that have anything, highest first."""

    @abstractmethod
    def _queues(self, tx: Transaction) -> Iterable[str]:
        """The queues that have anything pending."""

    @abstractmethod
    def _head(self, tx: Transaction, queue: str, priority: int) -> Any:
        """The time and number of the first event of a priority that may go, or None."""
