"""Verbs of a SQL store, common to all backends: the order of their steps, the transaction around them and the result.
The backend supplies the steps, each of them set-based."""

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any
from uuid import uuid4

import uuid_utils.compat as uuid7

from penstock.model.errors import UsageError
from penstock.model.event import Delivery, Event, EventId
from penstock.model.lease import DEFAULT_LEASE_SECONDS, Claim, Held, Lease, LeaseId, Token
from penstock.model.lifecycle import DEFAULT_MAX_ATTEMPTS, weight
from penstock.model.selection import Selection, purgeable
from penstock.model.stats import Stats
from penstock.store.api import PURGE_BATCH, REAP_BATCH, REPLAY_BATCH, Progress, Upgrade
from penstock.store.event_ids import refuse_twins
from penstock.store.sql import migrate
from penstock.store.sql.borrowed import borrowed
from penstock.store.sql.dialect import AVAILABLE_AT, CLOCK, CLOSE_LEASE, SEQ, ClaimTerms, Row, reading, total_of
from penstock.store.sql.transaction import Transaction
from penstock.store.sql.verbs import dead_letters, queries
from penstock.store.sql.verbs.control import ControlVerbs
from penstock.store.sql.verbs.settle import SettleVerbs
from penstock.store.sql.verbs.staging import STAGED_RETENTION_SECONDS, StagingVerbs

UPKEEP_BATCH = 10_000
LEASE_RETENTION_SECONDS = 86_400.0
RELAY_RETENTION_SECONDS = 300.0


class SqlStore(SettleVerbs, ControlVerbs, StagingVerbs):
    """The database-independent half of a SQL store. `penstock.store.api.Store` documents the verbs."""

    _keyed_first = False

    # -- emit -------------------------------------------------------------------------------------------------

    def append(self, events: Sequence[Event], *, connection: object | None = None) -> list[EventId]:
        self.scan_everything()
        if not events:
            return []
        refuse_twins(events)
        if connection is not None:
            with borrowed(connection, self.engine.dialect.name) as cursor, self._translated():
                return self._append(cursor, events)
        return self._transact(lambda tx: self._append(tx.connection.connection.cursor(), events))

    # -- claim ------------------------------------------------------------------------------------------------

    def claim(
        self,
        queue: str,
        *,
        limit: int,
        claimant: str,
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
        lease_id: LeaseId | None = None,
        types: Sequence[str] | None = None,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    ) -> Claim:
        if limit < 1 or lease_seconds <= 0 or max_attempts < 1:
            raise UsageError("limit, lease_seconds and max_attempts must be greater than 0")

        def work(tx: Transaction) -> Claim:
            lease = Lease(lease_id or LeaseId(uuid7.uuid7()), Token(uuid4()), queue, lease_seconds)
            opened = self._open_lease(tx, lease, claimant, max_attempts)
            return self._claim(tx, lease, opened, limit, types)

        return self._transact(work)

    def _open_lease(self, tx: Transaction, lease: Lease, claimant: str, max_attempts: int) -> Any:
        given = {"lease_id": lease.lease_id, "token": lease.token, "queue": lease.queue}
        given |= {"lease_seconds": lease.lease_seconds, "claimant": claimant, "max_attempts": max_attempts}
        return tx.row(self.statements.OPEN_LEASE, **given)

    def _claim(self, tx: Transaction, lease: Lease, opened: Any, limit: int, types: Sequence[str] | None) -> Claim:
        repeats, new_claimant, closed_at, lease_attempts, opened_at, control = opened
        if closed_at is not None:
            return Claim(lease, (), repeated=True)
        if repeats:
            if new_claimant:
                self.scan_everything()
                self._count_lost(tx, lease.lease_id, limit, lease_attempts)
                self._free_keys(tx, [lease.lease_id])
            events = tx.deliveries(self.statements.READ_CLAIMED, lease_id=lease.lease_id)
        else:
            room = self._allowed(tx, lease.queue, limit, control)
            events = self._take(tx, ClaimTerms(lease, types, self._time(opened_at), room), room) if room else []
        if not events:
            tx.run(CLOSE_LEASE, lease_id=lease.lease_id)
        return Claim(lease, _in_delivery_order(events), repeated=bool(repeats))

    def _take(self, tx: Transaction, terms: ClaimTerms, limit: int) -> list[Delivery]:
        """Take events with and without an ordering key. The kind taken first alternates, so that neither starves."""
        self._keyed_first = not self._keyed_first
        takers = (self._take_keyed, self._take_ready)
        first, second = takers if self._keyed_first else reversed(takers)
        events = first(tx, terms, limit)
        if len(events) < limit:
            room = limit - sum(weight(event.suspect, limit) for event in events)
            events += second(tx, terms, room) if room > 0 else []
        return events

    def ready(self, queue: str, *, types: Sequence[str] | None = None) -> bool:
        return self._look(lambda tx: self._ready(tx, queue, types))

    # -- heartbeat --------------------------------------------------------------------------------------------

    def extend(self, leases: Sequence[Lease]) -> list[Lease]:
        if not leases:
            return []
        held = self._transact(lambda tx: self._extend(tx, leases, self.options.max_lease_age_seconds))
        return [lease for lease in leases if (lease.lease_id, lease.token) in held]

    def held(self, lease_ids: Sequence[LeaseId]) -> Sequence[Held]:
        return self._look(lambda tx: queries.held(tx.connection, lease_ids)) if lease_ids else []

    # -- beside the flow --------------------------------------------------------------------------------------

    def reap(self, *, limit: int = REAP_BATCH) -> int:
        self.scan_everything()

        def work(tx: Transaction) -> int:
            lease_ids, count = self._reap(tx, limit)
            if lease_ids:
                self._free_keys(tx, lease_ids)
            return count

        return self._transact(work)

    def replay(
        self, selection: Selection, *, dry_run: bool = False, by: str = "operator", progress: Progress | None = None
    ) -> int:
        selection.require("replay")
        if dry_run:
            return sum(kind.count for kind in self.settled_counts(selection))
        self.scan_everything()
        return self._settled_in_batches(selection, REPLAY_BATCH, lambda tx, seqs: self._replay(tx, seqs, by), progress)

    def purge(
        self,
        selection: Selection,
        *,
        batch: int = PURGE_BATCH,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> int:
        selection.require("purge")
        chosen = purgeable(selection)
        if dry_run:
            return sum(kind.count for kind in self.settled_counts(chosen))
        return self._settled_in_batches(chosen, batch, self._purge_and_count, progress)

    def _purge_and_count(self, tx: Transaction, seqs: list[int]) -> int:
        """Purge settled events, and add the published ones to the purged count of their queue."""
        published = queries.published_by_queue(tx.connection, seqs)
        purged = self._purge(tx, seqs)
        for queue in sorted(published):
            tx.run(self.upserts.COUNT_PURGED, queue=queue, count=published[queue])
        return purged

    def _settled_in_batches(
        self,
        selection: Selection,
        batch: int,
        move: Callable[[Transaction, list[int]], int],
        progress: Progress | None,
    ) -> int:
        until = self._look(lambda tx: queries.last_seq(tx.connection))

        def choose(tx: Transaction, after: int) -> Sequence[Row]:
            return queries.settled(tx.connection, selection, after=after, until=until, limit=batch)

        return total_of(self._in_batches(choose, lambda tx, rows: move(tx, [row.seq for row in rows])), progress)

    def maintain(self) -> None:
        """Delete closed leases, dedupe windows, relays and staged rows that have outlived their retention."""
        drops = [
            (self.maintenance.DROP_OLD_LEASES, LEASE_RETENTION_SECONDS),
            (self.maintenance.DROP_OLD_DEDUPES, 0.0),
            (self.maintenance.DROP_OLD_RELAYS, RELAY_RETENTION_SECONDS),
        ]
        if self.capabilities.staging:
            drops.append((self.staging.DROP_OLD, STAGED_RETENTION_SECONDS))
        for statement, seconds in drops:
            work = partial(Transaction.run, statement=statement, seconds=seconds, limit=UPKEEP_BATCH)
            while self._transact(work) == UPKEEP_BATCH:
                pass

    # -- queries ----------------------------------------------------------------------------------------------

    find = reading(queries.find)
    bounds = reading(queries.bounds)
    history = reading(queries.history)
    settled_counts = reading(queries.settled_counts)
    deaths = reading(dead_letters.deaths)
    death_counts = reading(dead_letters.death_counts)

    def stats(self) -> Stats:
        return self._look(
            lambda tx: queries.stats(tx.connection, self._time(tx.scalar(CLOCK)), self._oldest_snapshot_seconds(tx))
        )

    def initialise(self) -> Upgrade:
        """Create or upgrade the tables; return the steps that ran. Safe to repeat."""
        return migrate.upgrade(self.transaction)

    def versions(self) -> tuple[str | None, str]:
        """Return the version of the tables (None if there are none) and the version of the newest migration."""
        return self._look(lambda tx: (migrate.current(tx.connection), migrate.head(self.engine.dialect.name)))

    def now(self) -> datetime:
        """Return the time of the store's clock, which applies to all its events and leases."""
        return self._look(lambda tx: self._time(tx.scalar(CLOCK)))

    def close(self) -> None:
        self.engine.dispose()


_by_time = itemgetter(AVAILABLE_AT, SEQ)
_by_seq = itemgetter(SEQ)
_priority = attrgetter("priority")
_ordering_key = attrgetter("ordering_key")


def _in_delivery_order(events: list[Delivery]) -> list[Delivery]:
    """Sort events by priority, then time. Events with an ordering key follow, in the order of their emission."""
    keyed: list[Delivery] = []
    if any(map(_ordering_key, events)):
        keyed = sorted((event for event in events if event.ordering_key is not None), key=_by_seq)
        events = [event for event in events if event.ordering_key is None]
    events.sort(key=_by_time)
    if len(set(map(_priority, events))) > 1:
        events.sort(key=_priority, reverse=True)
    return events + keyed
