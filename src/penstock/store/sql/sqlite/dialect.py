"""Store on SQLite, the embedded default. There is one writer at a time, so a claim chooses, moves and reads events in
separate statements; `penstock.model.lifecycle.fitting` decides how many suspects fit."""

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy import event as hooks

from penstock.config.permissions import create_file
from penstock.model.errors import (
    InvalidEvent,
    NotInitialised,
    PenstockError,
    StoreConflict,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from penstock.model.event import Delivery, Event, EventId
from penstock.model.lease import Lease, LeaseId, Token
from penstock.model.lifecycle import State
from penstock.model.times import from_micros, to_micros
from penstock.store.api import Capabilities, Committed, StagedPart, Upgrade
from penstock.store.event_ids import ids_for
from penstock.store.sql.claim_hints import ALWAYS
from penstock.store.sql.dedupe import Named, Window, first_of_windows, window, without_duplicates
from penstock.store.sql.dialect import ClaimTerms
from penstock.store.sql.event_rows import event_row, headers_text, microseconds, pending_row, staged_row
from penstock.store.sql.multi_statement import StepwiseStore
from penstock.store.sql.outcome_rows import RouteRow
from penstock.store.sql.sqlite import maintenance, staging, statements
from penstock.store.sql.transaction import Transaction

BUSY_SECONDS = 30.0
MICROS = 1_000_000


class SqliteStore(StepwiseStore):
    capabilities = Capabilities(transactional_emit=True, ordering=True, concurrent_writers=False)
    statements = statements
    maintenance = maintenance
    staging = staging

    # -- connections ------------------------------------------------------------------------------------------

    def _create_engine(self, url: str) -> Engine:
        target = make_url(url)
        self._conflict_seconds = BUSY_SECONDS
        if not target.database or target.database == ":memory:":
            raise UsageError("an SQLite store must be a file; use a URL such as sqlite:///penstock.db")
        self._path = Path(target.database)
        self._may_create = target.database.startswith("file:")  # a URI is not a path that could be checked here
        engine = create_engine(target, connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False})
        hooks.listen(engine, "connect", _set_up)
        # sqlite3 begins transactions late and deferred: two writers would fail with SQLITE_BUSY instead of waiting.
        hooks.listen(engine, "begin", _begin)
        return engine

    @contextmanager
    def _begin(self, *, write: bool = True) -> Iterator[Transaction]:
        if not self._path.parent.is_dir():
            raise StoreUnavailable(f"cannot open {self.url}: folder {self._path.parent} does not exist")
        if not self._may_create and not self._path.exists():  # opening it would create an empty file
            raise NotInitialised(f"{self.url} does not exist; run: penstock init --store {self.url}")
        options = {"reads_only": not write}
        with self.engine.connect().execution_options(**options) as connection, connection.begin():
            raw: Any = connection.connection.dbapi_connection
            yield self._transaction(connection, raw.cursor())

    def initialise(self) -> Upgrade:
        if not self._may_create:
            with suppress(OSError):  # the file exists, or opening it raises the reason
                os.close(create_file(self._path))
        self._may_create = True
        return super().initialise()

    def _transaction(self, connection: Any, cursor: Any) -> Transaction:
        return Transaction(connection, cursor, _prepare, {"now": self._micros()}, adapt=_adapt, delivery=_delivery)

    def _micros(self) -> int:
        return to_micros(datetime.now(UTC) if self.clock is None else self.clock())

    def _driver_errors(self) -> tuple[type[BaseException], ...]:
        return (sqlite3.Error,)

    def _translate(self, error: BaseException) -> PenstockError | None:
        cause = self._cause(error)
        message = str(cause)
        match cause:
            case sqlite3.OperationalError() if "no such table" in message or "no such column" in message:
                return self._not_initialised()
            case sqlite3.OperationalError() if "locked" in message or "busy" in message:
                return StoreConflict(
                    f"{self.url} is locked by another writer; try again, or emit in the open transaction with "
                    "emit(..., connection=...)"
                )
            case sqlite3.IntegrityError() if "penstock_events.event_id" in message:
                return InvalidEvent("an event with this event_id already exists; use another event_id")
            case sqlite3.IntegrityError() if message.startswith("penstock_outbox: "):
                return InvalidEvent(message)
            case sqlite3.OperationalError():
                return StoreUnavailable(f"cannot access {self.url}: {message}")
            case sqlite3.DatabaseError():
                return StoreError(f"{self.url} rejected the statement: {message}")
            case _:
                return None

    def _time(self, raw: Any) -> datetime:
        return from_micros(raw)

    # -- emitting ---------------------------------------------------------------------------------------------

    def _append(self, cursor: Any, events: Sequence[Event]) -> list[EventId]:
        """Write all events or none, without the view and its trigger, which would take twice as long."""
        now = self._micros()
        cursor.execute("SAVEPOINT penstock_emit")
        try:
            ids = self._write(cursor, list(zip(ids_for(events), events, strict=True)), now)
        except BaseException:
            if cursor.connection.in_transaction:  # some errors roll back the whole transaction
                cursor.execute("ROLLBACK TO penstock_emit")
                cursor.execute("RELEASE penstock_emit")
            raise
        cursor.execute("RELEASE penstock_emit")
        return ids

    def _write(self, cursor: Any, given: list[Named], now: int) -> list[EventId]:
        holders: dict[Window | None, EventId] = {}
        written = given
        first = first_of_windows(given)
        if first:
            rows = [
                [*of_event, event_id.hex, now + round(event.dedupe_seconds * MICROS)]
                for of_event, (event_id, event) in first.items()
            ]
            cursor.execute(maintenance.OPEN_WINDOWS, {"rows": json.dumps(rows), "now": now})
            written = without_duplicates(given, {opened: first[opened] for opened in cursor.fetchall()})
            cursor.execute(maintenance.WINDOWS, {"rows": json.dumps(rows)})
            holders = {(queue, key): EventId(UUID(hexed)) for queue, key, hexed in cursor.fetchall()}
        cursor.executemany(maintenance.EMIT_EVENT, [event_row(event_id.hex, event, now) for event_id, event in written])
        # With one writer at a time the seqs of these events are consecutive.
        (last,) = cursor.execute(maintenance.LAST_NUMBER).fetchone()
        numbered = enumerate((event for _, event in written), last - len(written) + 1)
        pending = [pending_row(seq, event, now, to_micros, microseconds) for seq, event in numbered]
        cursor.executemany(maintenance.EMIT_PENDING, pending)
        keys = {(event.queue, event.ordering_key, now) for _, event in written if event.ordering_key is not None}
        cursor.executemany(maintenance.ADD_KEY, sorted(keys))
        return [holders.get(window(event), event_id) for event_id, event in given]

    def _stage(self, tx: Transaction, part: StagedPart, events: Sequence[Event], start: int) -> None:
        now = self._micros()
        rows = zip(ids_for(events), events, strict=True)
        row = partial(staged_row, attrgetter("hex"), to_micros, part)
        staged = [
            row(number, event_id, event, headers_text(event), now)
            for number, (event_id, event) in enumerate(rows, start)
        ]
        tx.connection.connection.cursor().executemany(staging.INSERT, staged)

    def _move_staged(self, tx: Transaction, write_id: UUID, batch_id: int, parts: list[UUID]) -> Committed:
        given = {"write_id": write_id, "batch_id": batch_id, "parts": parts}
        duplicates = tx.run(staging.DROP_DUPLICATES, **given)
        tx.run(staging.OPEN_WINDOWS, **given)
        tx.run(staging.HOLD_KEYS, **given)
        tx.run(staging.WRITE, **given)
        return Committed(tx.run(staging.WAIT, **given), duplicates)

    # -- claiming ---------------------------------------------------------------------------------------------

    def _take_ready(self, tx: Transaction, terms: ClaimTerms, room: int) -> list[Delivery]:
        """Scan the whole queue: SQLite leaves no dead rows that would slow the scan."""
        return self._take_from(tx, terms, room, ALWAYS)

    def _take_keyed(self, tx: Transaction, terms: ClaimTerms, room: int) -> list[Delivery]:
        given = terms.parameters(room)
        if not tx.run(statements.TAKE_KEYS, **given):
            return []
        rows = self._move(tx, terms, tx.rows(self._of_types(statements.CHOOSE_KEYED, terms.types), **given), room)
        # Free the keys of which no event was claimed. After a claim by type (`served`), move them behind the keys that
        # wait: their first event may have another type, and the next claim by type would take the same keys again.
        self._free_keys(tx, [terms.lease.lease_id], served=terms.types is not None)
        return rows

    def _ready(self, tx: Transaction, queue: str, types: Sequence[str] | None) -> bool:
        return self._ready_from(tx, queue, types, ALWAYS)

    # -- leases and settling ----------------------------------------------------------------------------------

    def _extend(self, tx: Transaction, leases: Sequence[Lease], max_age: float) -> set[tuple[LeaseId, Token]]:
        rows = [[lease.lease_id.hex, lease.token.hex, int(lease.lease_seconds * MICROS)] for lease in leases]
        held = tx.rows(statements.EXTEND, rows=rows, max_age=int(max_age * MICROS))
        return {(LeaseId(UUID(lease_id)), Token(UUID(token))) for lease_id, token in held}

    def _route(self, tx: Transaction, lease_id: LeaseId, rows: list[RouteRow]) -> frozenset[int]:
        number = tx.scalar(maintenance.LAST_NUMBER)
        numbered: list[list[Any]] = []
        for row in rows:
            number += row.copy_id is not None
            numbered.append([row.seq, row.queue, *((number, row.copy_id.hex) if row.copy_id else (None, None))])
        routed = [seq for (seq,) in tx.rows(maintenance.ROUTED, lease_id=lease_id, rows=numbered)]
        tx.run_all(maintenance.ROUTE, lease_id=lease_id, rows=numbered, seqs=routed)
        return frozenset(routed)

    def _hold_keys_of(self, tx: Transaction, lease_id: LeaseId, rows: list[RouteRow]) -> None:
        tx.run(maintenance.HOLD_KEYS_OF, lease_id=lease_id, rows=[[row.seq, row.queue] for row in rows])

    def _release_behind(self, tx: Transaction, lease_id: LeaseId, seqs: list[int]) -> None:
        rows = [[seq, "RELEASED", None, 0] for (seq,) in tx.rows(statements.BEHIND, lease_id=lease_id, seqs=seqs)]
        if rows:
            tx.run_all(statements.APPLY, lease_id=lease_id, rows=rows, skip=False)

    def _free_keys(self, tx: Transaction, lease_ids: Sequence[LeaseId], *, served: bool = True) -> None:
        tx.run_all(statements.FREE_KEYS, lease_ids=list(lease_ids), served=served)

    # -- beside the flow --------------------------------------------------------------------------------------

    def _replay(self, tx: Transaction, seqs: list[int], by: str) -> int:
        return tx.run_all(maintenance.REPLAY, seqs=seqs, by=by)

    def _archive_as_dead(self, tx: Transaction, state: State, seqs: list[int], reason: str, by: str) -> int:
        return tx.run_all(maintenance.ARCHIVE_AS_DEAD[state], seqs=seqs, reason=reason, by=by)

    def _wake_keys(self, tx: Transaction, keys: Sequence[tuple[str, str]]) -> None:
        if keys:
            tx.run(maintenance.WAKE_KEYS, rows=list(map(list, keys)))


def _set_up(connection: Any, _record: Any) -> None:
    connection.isolation_level = None
    # WAL: readers do not wait for the writer. FULL: a commit is on disk before it returns.
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Any) -> None:
    reads_only = connection.get_execution_options().get("reads_only", False)
    connection.exec_driver_sql("BEGIN" if reads_only else "BEGIN IMMEDIATE")


@cache
def _prepare(statement: str) -> str:
    return statement.replace("{now}", ":now")


def _adapt(value: Any) -> Any:
    match value:
        case UUID():
            return value.hex
        case list():
            return json.dumps([item.hex if isinstance(item, UUID) else item for item in value])
        case _:
            return value


def _delivery(row: Any) -> Delivery:
    headers = json.loads(row[5]) if row[5] else None
    times = (from_micros(row[9]), from_micros(row[10]))
    return Delivery._make((row[0], UUID(row[1]), *row[2:5], headers, *row[6:9], *times, *row[11:]))
