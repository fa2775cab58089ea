"""Interface of the SQL backends: connections and set-based steps. Also runs and retries transactions and translates
driver errors. `penstock.store.sql.store` combines the steps into verbs."""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from math import inf
from types import ModuleType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar
from uuid import UUID

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from penstock.config.urls import mask_url
from penstock.model.errors import NotInitialised, PenstockError, StoreConflict, StoreUnavailable, UsageError
from penstock.model.event import Delivery, Event, EventId
from penstock.model.lease import Lease, LeaseId, Token
from penstock.model.lifecycle import State
from penstock.model.times import Clock
from penstock.store.api import Capabilities, Committed, Progress, StagedPart, StoreOptions
from penstock.store.sql import upserts
from penstock.store.sql.outcome_rows import OutcomeRow, RouteRow
from penstock.store.sql.pool import PoolGenerations
from penstock.store.sql.transaction import Transaction

Row = Any
Result = TypeVar("Result")
Given = ParamSpec("Given")

CONFLICT_TRIES = 8
KEY_QUEUE_LIMIT = 100
CLOCK = "SELECT {now}"
CLOSE_LEASE = """
UPDATE penstock_leases SET closed_at = {now}
WHERE lease_id = :lease_id AND NOT EXISTS (SELECT 1 FROM penstock_claimed WHERE lease_id = :lease_id)
"""
# Positions of the fields that claims are sorted by: sorting compares the raw values, without decoding them.
SEQ, PRIORITY, AVAILABLE_AT = map(Delivery._fields.index, ("seq", "priority", "available_at"))


@dataclass(frozen=True, slots=True)
class ClaimTerms:
    """Parameters of one claim."""

    lease: Lease
    types: Sequence[str] | None
    opened_at: datetime
    limit: int

    def parameters(self, room: int) -> dict[str, Any]:
        """Return the parameters of a statement that takes events up to a total weight of `room`.

        `alone` is true while the claim is empty: its first event is taken even if it is heavier than `room`.
        """
        return {
            "lease_id": self.lease.lease_id,
            "queue": self.lease.queue,
            "types": None if self.types is None else list(self.types),
            "limit": self.limit,
            "key_queue_limit": min(self.limit, KEY_QUEUE_LIMIT),
            "room": room,
            "alone": room == self.limit,
        }


class Steps(Protocol):
    """Operations that differ between databases: connections, and steps that are each set-based."""

    def _create_engine(self, url: str) -> Engine: ...
    def _begin(self, *, write: bool = True) -> AbstractContextManager[Transaction]: ...
    def _transaction(self, connection: Any, cursor: Any) -> Transaction: ...
    def _driver_errors(self) -> tuple[type[BaseException], ...]: ...
    def _translate(self, error: BaseException) -> PenstockError | None: ...
    def _time(self, raw: Any) -> datetime: ...
    def _append(self, cursor: Any, events: Sequence[Event]) -> list[EventId]: ...
    def _take_ready(self, tx: Transaction, terms: ClaimTerms, room: int) -> list[Delivery]: ...
    def _take_from(self, tx: Transaction, terms: ClaimTerms, room: int, floor: datetime) -> list[Delivery]: ...
    def _take_keyed(self, tx: Transaction, terms: ClaimTerms, room: int) -> list[Delivery]: ...
    def _ready(self, tx: Transaction, queue: str, types: Sequence[str] | None) -> bool: ...
    def _ready_from(self, tx: Transaction, queue: str, types: Sequence[str] | None, floor: datetime) -> bool: ...
    def _extend(self, tx: Transaction, leases: Sequence[Lease], max_age: float) -> set[tuple[LeaseId, Token]]: ...
    def _publish(self, tx: Transaction, lease_id: LeaseId, seqs: list[int]) -> frozenset[int]: ...
    def _apply(
        self, tx: Transaction, lease_id: LeaseId, rows: list[OutcomeRow], max_attempts: int, skip: bool
    ) -> list[Any]: ...
    def _route(self, tx: Transaction, lease_id: LeaseId, rows: list[RouteRow]) -> frozenset[int]: ...
    def _hold_keys_of(self, tx: Transaction, lease_id: LeaseId, rows: list[RouteRow]) -> None: ...
    def _release(self, tx: Transaction, lease_id: LeaseId) -> int: ...
    def _release_behind(self, tx: Transaction, lease_id: LeaseId, seqs: list[int]) -> None: ...
    def _free_keys(self, tx: Transaction, lease_ids: Sequence[LeaseId], *, served: bool = True) -> None: ...
    def _count_lost(self, tx: Transaction, lease_id: LeaseId, limit: int, max_attempts: int) -> None: ...
    def _reap(self, tx: Transaction, limit: int) -> tuple[list[LeaseId], int]: ...
    def _replay(self, tx: Transaction, seqs: list[int], by: str) -> int: ...
    def _purge(self, tx: Transaction, seqs: list[int]) -> int: ...
    def _stage(self, tx: Transaction, part: StagedPart, events: Sequence[Event], start: int) -> None: ...
    def _move_staged(self, tx: Transaction, write_id: UUID, batch_id: int, parts: list[UUID]) -> Committed: ...

    def scan_everything(self) -> None:
        """Make the next claim and probe scan whole queues: events may have become pending with an earlier time.

        Backends without a `ScanFloor` always scan whole queues, and do nothing here.
        """

    def _oldest_snapshot_seconds(self, tx: Transaction) -> float | None:
        """Return the age in seconds of the oldest snapshot that keeps deleted rows from removal; None if unknown."""

    def _heads(self, tx: Transaction, prefix: str, queues: list[str] | None) -> list[Any]:
        """Return (queue, priority, time, seq) of the ready heads of the queues.

        A queue has up to two heads: its first event without an ordering key, and its first free key, with priority
        and seq 0.
        """

    def _archive_as_dead(self, tx: Transaction, state: State, seqs: list[int], reason: str, by: str) -> int:
        """Move the events that are still in `state` to the archive. Their claimant's settlement reports them as
        lost."""

    def _wake_keys(self, tx: Transaction, keys: Sequence[tuple[str, str]]) -> None:
        """Lock these (queue, ordering key) pairs and make free keys claimable now, because their events change."""


class Dialect(Steps):
    """The database-specific half of a SQL store."""

    capabilities: Capabilities
    statements: ModuleType
    maintenance: ModuleType
    upserts: ModuleType = upserts

    _conflict_seconds = inf
    """Seconds after which a conflict is not retried: a database with a lock time-out has waited that long itself."""

    def __init__(self, url: str, options: StoreOptions, clock: Clock | None = None) -> None:
        self.url = mask_url(url)
        self.options = options
        self.clock = clock
        try:
            self.engine = self._create_engine(url)
        except (ValueError, ArgumentError):
            # Do not show the URL: in a malformed URL the password cannot be found and masked.
            example = "postgresql://user:password@host:5432/database or sqlite:///penstock.db"
            raise UsageError(f"invalid store URL; expected one such as {example}") from None
        self._connections = PoolGenerations(self.engine)

    # -- transactions -----------------------------------------------------------------------------------------

    def _transact(self, work: Callable[[Transaction], Result]) -> Result:
        """Run `work` in a new transaction; retry it on a conflict with concurrent transactions."""
        began = time.monotonic()
        for attempt in range(CONFLICT_TRIES):
            try:
                with self._translated(), self._begin() as tx:
                    return work(tx)
            except StoreConflict:
                if attempt == CONFLICT_TRIES - 1 or time.monotonic() - began >= self._conflict_seconds:
                    raise
                time.sleep(random.random() * 0.02 * 2**attempt)
        raise AssertionError("unreachable")

    def _look(self, look: Callable[[Transaction], Result]) -> Result:
        """Run a query in a new read-only transaction, which does not wait for a writer and is not retried."""
        with self._translated(), self._begin(write=False) as tx:
            return look(tx)

    def _in_batches(
        self, choose: Callable[[Transaction, int], Sequence[Row]], move: Callable[[Transaction, Sequence[Row]], int]
    ) -> Iterator[int]:
        """Move the chosen rows in seq order, one transaction per batch, and yield the count of each batch.

        An interruption keeps the batches that were moved before.
        """
        after: int | None = 0
        while after is not None:

            def work(tx: Transaction, start: int = after) -> tuple[int, int | None]:
                rows = choose(tx, start)
                return (move(tx, rows), rows[-1].seq) if rows else (0, None)

            count, after = self._transact(work)
            yield count

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Open a transaction for several steps: pass its connection to each step; all commit together or none does."""
        with self._translated(), self._begin() as tx:
            yield tx.connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate driver errors into Penstock errors; raise an error without a translation unchanged.

        If the server is unavailable, also replace the pool's connections.
        """
        expected: tuple[type[BaseException], ...] = (SQLAlchemyError, *self._driver_errors())
        generation = self._connections.current
        try:
            yield
        except expected as error:
            translated = self._translate(error)
            if translated is None:
                raise
            if isinstance(translated, StoreUnavailable):
                self._connections.renew(generation)
            raise translated from error

    def _cause(self, error: BaseException) -> BaseException | None:
        """Return the driver's own error."""
        return error.orig if isinstance(error, DBAPIError) else error

    def _not_initialised(self) -> NotInitialised:
        return NotInitialised(f"tables in {self.url} are missing or outdated; run: penstock init --store {self.url}")

    def _conflict(self) -> StoreConflict:
        return StoreConflict(f"deadlock, serialization failure or lock time-out at {self.url}; try again")


def reading(query: Callable[Concatenate[Connection, Given], Result]) -> Callable[Concatenate[Dialect, Given], Result]:
    """Return a method that runs `query` in a new read-only transaction."""

    @wraps(query)
    def method(self: Dialect, /, *given: Given.args, **named: Given.kwargs) -> Result:
        return self._look(lambda tx: query(tx.connection, *given, **named))

    return method


def total_of(counts: Iterable[int], progress: Progress | None) -> int:
    """Return the sum of the counts; report each running total to `progress`."""
    total = 0
    for count in counts:
        total += count
        if progress is not None:
            progress(total)
    return total
