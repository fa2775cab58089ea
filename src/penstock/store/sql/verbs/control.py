"""Control of queues, single events and relays: pauses, limits, cancellations, notes, queue heads, presence of relays.
`penstock.store.api` documents the verbs."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any
from uuid import UUID

from penstock.model.errors import UsageError
from penstock.model.event import EventId, require_queue
from penstock.model.lease import Lease, LeaseId
from penstock.model.lifecycle import State
from penstock.model.records import Head, Note
from penstock.model.selection import Selection, cancellable
from penstock.model.stats import Relay
from penstock.model.text import storable
from penstock.store.api import CANCELLED, Progress
from penstock.store.sql.dialect import CLOSE_LEASE, Dialect, Row, reading, total_of
from penstock.store.sql.transaction import Transaction
from penstock.store.sql.verbs import queries

CANCEL_BATCH = 5_000
GREATEST_LIMIT = 2**31 - 1

RESUME = "UPDATE penstock_queues SET paused_at = NULL, paused_by = NULL WHERE queue = :queue AND paused_at IS NOT NULL"
RELAY_STOPPING = "SELECT stopping FROM penstock_relays WHERE relay_id = :relay_id"
FORGET_RELAY = "DELETE FROM penstock_relays WHERE relay_id = :relay_id"

Move = Callable[[Transaction, Sequence[Any]], int]


class ControlVerbs(Dialect):
    """Operations on queues, single events and relays."""

    # -- queues -----------------------------------------------------------------------------------------------

    def pause(self, queue: str, *, by: str = "operator") -> None:
        require_queue(queue)
        self._transact(lambda tx: tx.run(self.upserts.PAUSE, queue=queue, by=by))

    def resume(self, queue: str) -> bool:
        require_queue(queue)
        self.scan_everything()
        return self._transact(lambda tx: tx.run(RESUME, queue=queue)) > 0

    def limit(self, queue: str, max_claimed: int | None) -> None:
        require_queue(queue)
        if max_claimed is not None and max_claimed < 1:
            raise UsageError(f"limit must be at least 1, got {max_claimed}; pause the queue to stop claims")
        if max_claimed is not None and max_claimed > GREATEST_LIMIT:
            raise UsageError(f"limit must be at most {GREATEST_LIMIT}, got {max_claimed}; remove the limit instead")
        self._transact(lambda tx: tx.run(self.upserts.LIMIT, queue=queue, max_claimed=max_claimed))

    controls = reading(queries.controls)

    def _allowed(self, tx: Transaction, queue: str, limit: int, control: int | None) -> int:
        """Return the number of events that a claim may take.

        `control` was read when the lease was opened: None for an unrestricted queue, 0 for a paused one, a positive
        number for a limited one. Claims on a limited queue lock the queue's row, so that no two count the same claimed
        events.
        """
        if not control:
            return limit if control is None else 0
        most = tx.scalar(self.maintenance.LOCK_QUEUE, queue=queue)
        if most is None:
            return limit
        held = int(tx.scalar(self.maintenance.CLAIMED_OF_QUEUE, queue=queue))
        return max(0, min(limit, int(most) - held))

    def heads(self, prefix: str, *, queues: Collection[str] | None = None) -> Sequence[Head]:
        wanted = None if queues is None else sorted(set(queues))
        rows = self._look(lambda tx: self._heads(tx, prefix, wanted))
        return sorted(Head(-priority, self._time(at), seq, queue) for queue, priority, at, seq in rows)

    # -- events -----------------------------------------------------------------------------------------------

    def cancel(
        self,
        selection: Selection,
        *,
        reason: str = CANCELLED,
        by: str = "operator",
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> int:
        selection.require("cancel")
        if dry_run:
            return sum(kind.count for kind in self.unsettled_counts(selection))
        self.scan_everything()
        chosen = cancellable(selection)
        recorded = storable(reason)
        moves: dict[State, Move] = {
            State.PENDING: lambda tx, rows: self._cancel_waiting(tx, rows, recorded, by),
            State.CLAIMED: lambda tx, rows: self._cancel_held(tx, rows, recorded, by),
        }
        batches = (self._cancel(chosen, state, moves[state]) for state in moves if state in (chosen.states or ()))
        return total_of(chain.from_iterable(batches), progress)

    def _cancel(self, selection: Selection, state: State, move: Move) -> Iterator[int]:
        """Cancel the selected events of one state in batches. Events emitted after the start are left out."""
        _, until = self._look(lambda tx: queries.bounds(tx.connection))

        def choose(tx: Transaction, after: int) -> Sequence[Row]:
            found = queries.live(tx.connection, selection, state, after=after, limit=CANCEL_BATCH)
            return [row for row in found if row.seq <= until]

        return self._in_batches(choose, move)

    unsettled_counts = reading(queries.unsettled_counts)

    def _cancel_waiting(self, tx: Transaction, rows: Sequence[Any], reason: str, by: str) -> int:
        """Cancel pending events. Lock the ordering keys first, in the order of claims, to prevent deadlocks."""
        self._wake_keys(tx, [(row.queue, row.ordering_key) for row in rows if row.ordering_key is not None])
        return self._archive_as_dead(tx, State.PENDING, [row.seq for row in rows], reason, by)

    def _cancel_held(self, tx: Transaction, rows: Sequence[Any], reason: str, by: str) -> int:
        """Cancel claimed events. Lock the leases first, like all operations that end a claim."""
        seqs = [row.seq for row in rows]
        leases = [LeaseId(row[0]) for row in tx.connection.execute(queries.leases_over(seqs))]
        count = self._archive_as_dead(tx, State.CLAIMED, seqs, reason, by)
        self._free_keys(tx, leases)
        for lease_id in leases:
            tx.run(CLOSE_LEASE, lease_id=lease_id)
        return count

    def note(self, lease: Lease, progress: Mapping[int, bytes]) -> frozenset[int]:
        def work(tx: Transaction) -> frozenset[int]:
            if tx.row(self.statements.LOCK_LEASE, lease_id=lease.lease_id, token=lease.token) is None:
                return frozenset()
            held = queries.held_seqs(tx.connection, lease.lease_id, list(progress))
            for seq in held:
                tx.run(self.upserts.NOTE_PROGRESS, seq=seq, progress=progress[seq])
            return frozenset(held)

        return self._transact(work) if progress else frozenset()

    def notes(self, ids: Collection[EventId]) -> Mapping[EventId, Note]:
        return self._look(lambda tx: queries.notes(tx.connection, ids)) if ids else {}

    # -- relays -----------------------------------------------------------------------------------------------

    def announce(self, relay: Relay, *, stopping: bool = False) -> bool:
        given = {"relay_id": relay.relay_id, "queue": relay.queue, "destination": relay.destination, "host": relay.host}
        return bool(self._transact(lambda tx: tx.scalar(self.upserts.ANNOUNCE_RELAY, stopping=stopping, **given)))

    def asked_to_stop(self, relay_id: UUID) -> bool:
        return bool(self._look(lambda tx: tx.scalar(RELAY_STOPPING, relay_id=relay_id)))

    def withdraw(self, relay_id: UUID) -> None:
        self._transact(lambda tx: tx.run(FORGET_RELAY, relay_id=relay_id))
