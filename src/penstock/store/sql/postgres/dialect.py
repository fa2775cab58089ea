"""Store on PostgreSQL: data-modifying CTEs move rows, `SKIP LOCKED` keeps claims from waiting for each other, COPY
serves bulk emits, and a lower bound on scans keeps claims fast while vacuum is held up."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Any
from uuid import UUID

from sqlalchemy import Engine, make_url
from sqlalchemy import event as hooks

from penstock.config.extras import needs_extra
from penstock.model.errors import (
    InvalidEvent,
    PenstockError,
    StoreError,
    StoreUnavailable,
)
from penstock.model.event import Delivery, Event, EventId, encode_time
from penstock.model.lease import Lease, LeaseId, Token
from penstock.model.lifecycle import State
from penstock.store.api import Capabilities, Committed, StagedPart
from penstock.store.event_ids import ids_for
from penstock.store.sql.claim_hints import KeyQueueLength
from penstock.store.sql.dedupe import first_of_windows, without_duplicates
from penstock.store.sql.dialect import CLOCK, ClaimTerms
from penstock.store.sql.event_rows import event_row, headers_text, microseconds, pending_row, staged_row
from penstock.store.sql.outcome_rows import OutcomeRow, RouteRow
from penstock.store.sql.postgres import maintenance, staging, statements
from penstock.store.sql.postgres.connections import bare, prepare_for_claims
from penstock.store.sql.server_dialect import ServerDialect, by_queue
from penstock.store.sql.store import SqlStore
from penstock.store.sql.transaction import Transaction, percent_style

COPY_FROM = 20

# Without the deduplication columns: a separate statement opens the windows.
EMIT_COLUMNS = (
    *("event_id", "event_type", "queue", "payload", "headers", "partition_key", "ordering_key", "priority"),
    *("max_attempts", "available_at", "delay_seconds", "created_at"),
)
INSERT = f"INSERT INTO penstock_outbox ({', '.join(EMIT_COLUMNS)}) VALUES ({', '.join(['%s'] * len(EMIT_COLUMNS))})"


class PostgresStore(ServerDialect, SqlStore):
    capabilities = Capabilities(transactional_emit=True, ordering=True, concurrent_writers=True)
    statements = statements
    maintenance = maintenance
    staging = staging

    # Constant within a statement, so that an index condition can use it, unlike clock_timestamp(); and more recent than
    # now(), the start of the transaction.
    _clock_now = "statement_timestamp()"
    _given_now = "CAST(:now AS timestamptz)"

    # -- connections ------------------------------------------------------------------------------------------

    def _create_engine(self, url: str) -> Engine:
        with needs_extra("a PostgreSQL store", "postgres"):
            import psycopg  # noqa: F401
        target = make_url(url).set(drivername="postgresql+psycopg")
        engine = self._create_pool(target, {"application_name": "penstock"})
        hooks.listen(engine, "connect", prepare_for_claims)
        return engine

    @contextmanager
    def _begin(self, *, write: bool = True) -> Iterator[Transaction]:  # noqa: ARG002
        with self.engine.connect() as connection, connection.begin():
            raw: Any = connection.connection.dbapi_connection
            with raw.cursor(binary=True) as cursor:
                yield self._transaction(connection, cursor)

    def _transaction(self, connection: Any, cursor: Any) -> Transaction:
        return Transaction(connection, cursor, self._prepare, self._time_given(), bare=lambda: bare(cursor.connection))

    def _driver_errors(self) -> tuple[type[BaseException], ...]:
        import psycopg

        return (psycopg.Error,)

    def _translate(self, error: BaseException) -> PenstockError | None:
        from psycopg import Error, InterfaceError, OperationalError, errors

        cause = self._cause(error)
        match cause:
            case errors.DeadlockDetected() | errors.SerializationFailure() | errors.LockNotAvailable():
                return self._conflict()
            case errors.UndefinedTable() | errors.UndefinedColumn() | errors.UndefinedFunction():
                return self._not_initialised()
            case errors.UniqueViolation() if "event_id" in str(cause):
                return InvalidEvent("an event with this event_id already exists; use another event_id")
            case errors.CheckViolation() if "penstock_outbox: " in str(cause):
                return InvalidEvent(_summary(cause))
            case OperationalError() | InterfaceError():
                return StoreUnavailable(f"cannot reach {self.url}: {_summary(cause)}")
            case Error():
                return StoreError(f"{self.url} rejected the statement: {_summary(cause)}")
            case _:
                return None

    def _time(self, raw: Any) -> datetime:
        time: datetime = raw
        return time

    # -- emitting ---------------------------------------------------------------------------------------------

    def _append(self, cursor: Any, events: Sequence[Event]) -> list[EventId]:
        if any(event.dedupe_key is not None for event in events):
            return self._append_once(cursor, events)
        return self._write(cursor, ids_for(events), events)

    def _append_once(self, cursor: Any, events: Sequence[Event]) -> list[EventId]:
        """Open the deduplication windows of a batch; write the events that opened one or have no deduplication key.

        All windows are locked in sorted order by one statement, before any ordering key: two emits cannot deadlock.
        """
        given = list(zip(ids_for(events), events, strict=True))
        first = first_of_windows(given)
        windows = {
            "queues": [queue for queue, _ in first],
            "names": [name for _, name in first],
            "ids": [str(event_id) for event_id, _ in first.values()],
            "seconds": [event.dedupe_seconds for _, event in first.values()],
            "now": None if self.clock is None else self.clock(),
        }
        cursor.execute(self._prepare(maintenance.OPEN_WINDOWS), windows)
        written = without_duplicates(given, {opened: first[opened] for opened in cursor.fetchall()})
        cursor.execute(self._prepare(maintenance.WINDOWS), windows)
        holders = {(queue, name): event_id for queue, name, event_id in cursor.fetchall()}
        self._write(cursor, (event_id for event_id, _ in written), [event for _, event in written])
        return [holders.get((event.queue, event.dedupe_key), event_id) for event_id, event in given]

    def _write(self, cursor: Any, ids: Iterator[EventId], events: Sequence[Event]) -> list[EventId]:
        if len(events) > 1:
            self._hold_keys(cursor, events)
        if len(events) >= COPY_FROM and hasattr(cursor, "copy"):
            return self._copy(cursor, ids, events)
        written = list(ids)
        rows = list(map(self._emit_row, events, written))
        if len(rows) == 1:
            cursor.execute(INSERT, rows[0])  # executemany opens a pipeline, a third slower for one row
        elif rows:
            cursor.executemany(INSERT, rows)
        return written

    def _emit_row(self, event: Event, event_id: EventId) -> tuple[Any, ...]:
        return (
            str(event_id),
            event.event_type,
            event.queue,
            event.payload,
            headers_text(event),
            event.partition_key,
            event.ordering_key,
            event.priority,
            event.max_attempts,
            event.available_at,
            event.delay_seconds,
            None if self.clock is None else self.clock(),
        )

    def _hold_keys(self, cursor: Any, events: Sequence[Event]) -> None:
        """Lock the ordering keys of a batch, all at once and sorted. Locked one by one, two batches could deadlock."""
        keys = ((event.queue, event.ordering_key) for event in events if event.ordering_key is not None)
        for queue, names in by_queue(keys):
            given = {"queue": queue, "names": names, **self._time_given()}
            cursor.execute(self._prepare(statements.HOLD_KEYS), given)

    def _copy(self, cursor: Any, new_ids: Iterator[EventId], events: Sequence[Event]) -> list[EventId]:
        """Write the events by two COPYs, the fastest way, with seqs taken from the sequence beforehand."""
        given = {"count": len(events), "now": None if self.clock is None else self.clock()}
        cursor.execute(percent_style(maintenance.TAKE_NUMBERS), given)
        numbers, now = cursor.fetchone()
        ids: list[EventId] = []
        with cursor.copy(maintenance.COPY_EVENTS) as copy:
            copy.set_types(maintenance.EVENT_TYPES)
            for seq, event_id, event in zip(numbers, new_ids, events, strict=True):
                ids.append(event_id)
                copy.write_row((seq, *event_row(event_id.bytes, event, now, _jsonb)))
        with cursor.copy(maintenance.COPY_PENDING) as copy:
            copy.set_types(maintenance.PENDING_TYPES)
            for seq, event in zip(numbers, events, strict=True):
                copy.write_row(pending_row(seq, event, now, encode_time, microseconds))
        return ids

    def _stage(self, tx: Transaction, part: StagedPart, events: Sequence[Event], start: int) -> None:
        now = encode_time(tx.scalar(CLOCK))
        raw: Any = tx.connection.connection.dbapi_connection
        with raw.cursor() as cursor, cursor.copy(staging.COPY) as copy:
            copy.set_types(staging.TYPES)
            row = partial(staged_row, attrgetter("bytes"), encode_time, part)
            for number, (event_id, event) in enumerate(zip(ids_for(events), events, strict=True), start):
                copy.write_row(row(number, event_id, event, _jsonb(event), now))

    def _move_staged(self, tx: Transaction, write_id: UUID, batch_id: int, parts: list[UUID]) -> Committed:
        given = {"write_id": write_id, "batch_id": batch_id, "parts": parts}
        duplicates = tx.run(staging.DROP_KNOWN, **given)
        tx.run(staging.OPEN_WINDOWS, **given)
        duplicates += tx.run(staging.DROP_OTHERS, **given)
        tx.rows(staging.HOLD_KEYS, **given)
        return Committed(tx.scalar(staging.MOVE, **given), duplicates)

    # -- claiming ---------------------------------------------------------------------------------------------

    def _take_from(self, tx: Transaction, terms: ClaimTerms, room: int, floor: datetime) -> list[Delivery]:
        statement = statements.TAKE_READY if terms.types is None else statements.TAKE_READY_TYPED
        return tx.deliveries(statement, **terms.parameters(room), floor=floor)

    def _left(self, tx: Transaction, queue: str) -> tuple[int | None, datetime | None]:
        lowest, oldest = tx.row(statements.LEFT, queue=queue)
        return lowest, oldest

    def _take_keyed(self, tx: Transaction, terms: ClaimTerms, room: int) -> list[Delivery]:
        given = terms.parameters(room)
        lengths = self._key_queues.setdefault(terms.lease.queue, KeyQueueLength())
        keys = tx.run(statements.TAKE_KEYS, **given, key_limit=lengths.key_limit(room))
        if not keys:
            return []
        # A separate statement, so that its snapshot is newer than the locks on the keys.
        statement = statements.TAKE_KEYED if terms.types is None else statements.TAKE_KEYED_TYPED
        rows = tx.deliveries(statement, **given)
        lengths.learn(rows)
        # Free the keys of which no event was claimed. After a claim by type (`served`), move them behind the keys that
        # wait: their first event may have another type, and the next claim by type would take the same keys again.
        self._free_keys(tx, [terms.lease.lease_id], served=terms.types is not None)
        return rows

    def _ready_from(self, tx: Transaction, queue: str, types: Sequence[str] | None, floor: datetime) -> bool:
        if types is None:
            return bool(tx.scalar(statements.READY, queue=queue, floor=floor))
        return bool(tx.scalar(statements.READY_TYPED, queue=queue, types=list(types), floor=floor))

    # -- leases and settling ----------------------------------------------------------------------------------

    def _extend(self, tx: Transaction, leases: Sequence[Lease], max_age: float) -> set[tuple[LeaseId, Token]]:
        rows = tx.rows(
            statements.EXTEND,
            lease_ids=[lease.lease_id for lease in leases],
            tokens=[lease.token for lease in leases],
            seconds=[float(lease.lease_seconds) for lease in leases],
            max_age=max_age,
        )
        return {(row[0], row[1]) for row in rows}

    def _publish(self, tx: Transaction, lease_id: LeaseId, seqs: list[int]) -> frozenset[int]:
        count, done = tx.row(statements.PUBLISH, lease_id=lease_id, seqs=_array(seqs))
        return frozenset(seqs if count == len(seqs) else done or ())

    def _apply(
        self, tx: Transaction, lease_id: LeaseId, rows: list[OutcomeRow], max_attempts: int, skip: bool
    ) -> list[Any]:
        return tx.rows(
            statements.APPLY,
            lease_id=lease_id,
            seqs=[row.seq for row in rows],
            kinds=[row.kind for row in rows],
            errors=[row.error for row in rows],
            delays=[row.delay for row in rows],
            max_attempts=max_attempts,
            skip=skip,
        )

    def _route(self, tx: Transaction, lease_id: LeaseId, rows: list[RouteRow]) -> frozenset[int]:
        columns = {"queues": [row.queue for row in rows], "copy_ids": [row.copy_id for row in rows]}
        routed = tx.rows(maintenance.ROUTE, lease_id=lease_id, seqs=_array([row.seq for row in rows]), **columns)
        return frozenset(row[0] for row in routed)

    def _hold_keys_of(self, tx: Transaction, lease_id: LeaseId, rows: list[RouteRow]) -> None:
        keys = dict(tx.rows(maintenance.HELD_KEYS_BY_SEQ, lease_id=lease_id))
        for queue, names in by_queue((row.queue, keys[row.seq]) for row in rows if row.seq in keys):
            tx.rows(statements.HOLD_KEYS, queue=queue, names=names)

    def _release(self, tx: Transaction, lease_id: LeaseId) -> int:
        return int(tx.scalar(statements.RELEASE, lease_id=lease_id))

    def _release_behind(self, tx: Transaction, lease_id: LeaseId, seqs: list[int]) -> None:
        tx.run(statements.RELEASE_BEHIND, lease_id=lease_id, seqs=_array(seqs))

    def _free_keys(self, tx: Transaction, lease_ids: Sequence[LeaseId], *, served: bool = True) -> None:
        idle = tx.rows(statements.LOCK_IDLE_KEYS, lease_ids=list(lease_ids))
        if idle:
            tx.run(statements.DROP_DRAINED_KEYS, queues=[row[0] for row in idle], names=[row[1] for row in idle])
        tx.run(statements.FREE_KEYS, lease_ids=list(lease_ids), served=served)

    def _count_lost(self, tx: Transaction, lease_id: LeaseId, limit: int, max_attempts: int) -> None:
        tx.run(statements.COUNT_LOST, lease_id=lease_id, limit=limit, max_attempts=max_attempts)

    # -- beside the flow --------------------------------------------------------------------------------------

    def _reap(self, tx: Transaction, limit: int) -> tuple[list[LeaseId], int]:
        rows = tx.rows(statements.REAP, limit=limit)
        return [row[0] for row in rows], sum(row[1] for row in rows)

    def _replay(self, tx: Transaction, seqs: list[int], by: str) -> int:
        rows = tx.rows(maintenance.REPLAY, seqs=seqs, by=by)
        self._wake_keys(tx, [(queue, key) for queue, key in rows if key is not None])
        return len(rows)

    def _wake_keys(self, tx: Transaction, keys: Sequence[tuple[str, str]]) -> None:
        for queue, names in by_queue(keys):
            tx.rows(statements.HOLD_KEYS, queue=queue, names=names)
            tx.run(maintenance.WAKE_KEYS, queue=queue, names=names)

    def _archive_as_dead(self, tx: Transaction, state: State, seqs: list[int], reason: str, by: str) -> int:
        return int(tx.scalar(maintenance.ARCHIVE_AS_DEAD[state], seqs=_array(seqs), reason=reason, by=by))

    def _heads(self, tx: Transaction, prefix: str, queues: list[str] | None) -> list[Any]:
        return tx.rows(maintenance.HEADS, prefix=prefix, queues=queues)

    def _purge(self, tx: Transaction, seqs: list[int]) -> int:
        return int(tx.scalar(maintenance.PURGE, seqs=seqs))

    def _oldest_snapshot_seconds(self, tx: Transaction) -> float | None:
        age = tx.scalar(maintenance.OLDEST_SNAPSHOT)
        return None if age is None else float(age)


def _array(seqs: Sequence[int]) -> str:
    """Return the numbers as a PostgreSQL array literal: the driver takes ten times as long to convert a list."""
    return "{" + ",".join(map(str, seqs)) + "}"


def _jsonb(event: Event) -> bytes | None:
    """Return the headers in the binary format of jsonb: the format's version, then the text."""
    return b"\x01" + json.dumps(dict(event.headers)).encode() if event.headers else None


def _summary(error: object) -> str:
    return str(error).strip().partition("\n")[0]
