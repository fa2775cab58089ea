"""Settling of claimed events, on every SQL backend. Each verb locks the lease, checks its token, and changes the events
in one transaction."""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.model.errors import UsageError
from penstock.model.lease import Lease, LeaseId, Settlement
from penstock.model.lifecycle import OrderPolicy
from penstock.model.outcome import Outcome
from penstock.store.sql.borrowed import borrowed
from penstock.store.sql.dialect import CLOSE_LEASE, Dialect
from penstock.store.sql.outcome_rows import Asked, RouteRow, route_rows, split
from penstock.store.sql.transaction import Transaction


class SettleVerbs(Dialect):
    """Verbs that end a claim. `penstock.store.api.Store` documents them."""

    def settle(self, lease: Lease, outcomes: Mapping[int, Outcome]) -> Settlement:
        if not outcomes:
            return Settlement()
        asked = split(outcomes)
        return self._transact(lambda tx: self._settle(tx, lease, asked))

    def settle_in(self, connection: object, lease: Lease, outcomes: Mapping[int, Outcome]) -> Settlement:
        """Settle inside the caller's transaction: its writes and the settlement commit together, or neither does."""
        if not outcomes:
            return Settlement()
        with borrowed(connection, self.engine.dialect.name) as cursor, self._translated():
            return self._settle(self._transaction(None, cursor), lease, split(outcomes))

    def _settle(self, tx: Transaction, lease: Lease, asked: Asked) -> Settlement:
        held = tx.row(self.statements.LOCK_LEASE, lease_id=lease.lease_id, token=lease.token)
        if held is None:
            return self._report_missing(tx, lease.lease_id, asked.seqs)
        max_attempts, keyed = held
        done = self._publish(tx, lease.lease_id, asked.published) if asked.published else frozenset()
        finals: list[Any] = []
        if asked.others:
            self.scan_everything()
            skip = self.options.order_policy is OrderPolicy.SKIP
            finals = self._apply(tx, lease.lease_id, asked.others, max_attempts, skip)
        if keyed:
            if asked.others:
                self._release_behind(tx, lease.lease_id, [row.seq for row in asked.others])
            self._free_keys(tx, [lease.lease_id])
        tx.run(CLOSE_LEASE, lease_id=lease.lease_id)
        settlement = self._settlement(tx, lease.lease_id, asked, done, finals)
        self._keep_or_drop(tx, asked, settlement)
        return settlement

    def _settlement(
        self, tx: Transaction, lease_id: LeaseId, asked: Asked, done: frozenset[int], finals: list[Any]
    ) -> Settlement:
        by_kind: dict[str, set[int]] = {}
        for seq, kind in finals:
            by_kind.setdefault(kind, set()).add(seq)
        applied = {seq for seq, _ in finals}
        missed = [row.seq for row in asked.others if row.seq not in applied]
        missed += [seq for seq in asked.published if seq not in done] if len(done) < len(asked.published) else []
        missing = self._report_missing(tx, lease_id, missed) if missed else Settlement()
        return Settlement(
            published=done,
            retried=frozenset(by_kind.get("RETRY", ())),
            dead=frozenset(by_kind.get("DEAD", ())),
            released=frozenset(by_kind.get("RELEASED", ())),
            already_settled=missing.already_settled,
            lost=missing.lost,
        )

    def _keep_or_drop(self, tx: Transaction, asked: Asked, settlement: Settlement) -> None:
        """Store the results of the events published now; delete events settled now with `keep=False`."""
        for seq in settlement.published & asked.results.keys():
            tx.run(self.upserts.NOTE_RESULT, seq=seq, result=asked.results[seq])
        dropped = asked.dropped & (settlement.published | settlement.dead)
        if dropped:
            self._purge(tx, sorted(dropped))

    def _report_missing(self, tx: Transaction, lease_id: LeaseId, seqs: list[int]) -> Settlement:
        rows = tx.rows(self.statements.SETTLED_BEFORE, lease_id=lease_id, seqs=seqs)
        before = frozenset(row[0] for row in rows)
        return Settlement(already_settled=before, lost=frozenset(seqs) - before)

    def route(self, lease: Lease, queues: Mapping[int, Sequence[str]]) -> Settlement:
        if not queues:
            return Settlement()
        if not all(queues.values()):
            raise UsageError("each event must be routed to at least one queue")
        self.scan_everything()
        return self._transact(lambda tx: self._routed(tx, lease, route_rows(queues)))

    def _routed(self, tx: Transaction, lease: Lease, rows: list[RouteRow]) -> Settlement:
        asked = frozenset(row.seq for row in rows)
        held = tx.row(self.statements.LOCK_LEASE, lease_id=lease.lease_id, token=lease.token)
        if held is None:
            return Settlement(lost=asked)
        _, keyed = held
        if keyed:
            self._hold_keys_of(tx, lease.lease_id, rows)
        routed = self._route(tx, lease.lease_id, rows)
        if keyed:
            self._free_keys(tx, [lease.lease_id])
        tx.run(CLOSE_LEASE, lease_id=lease.lease_id)
        return Settlement(released=routed, lost=asked - routed)

    def release(self, lease: Lease) -> int:
        self.scan_everything()

        def work(tx: Transaction) -> int:
            if tx.row(self.statements.LOCK_LEASE, lease_id=lease.lease_id, token=lease.token) is None:
                return 0
            count = self._release(tx, lease.lease_id)
            self._free_keys(tx, [lease.lease_id])
            tx.run(CLOSE_LEASE, lease_id=lease.lease_id)
            return count

        return self._transact(work)
