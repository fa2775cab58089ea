"""Store on MySQL and MariaDB: READ COMMITTED, `SKIP LOCKED` so that claims never wait for each other, and several
statements per move, because neither server has data-modifying CTEs. A deadlock is retried."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine, make_url

from penstock.config.extras import needs_extra
from penstock.model.errors import (
    InvalidEvent,
    PenstockError,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from penstock.model.event import Delivery, Event, EventId
from penstock.model.lease import Lease, LeaseId, Token
from penstock.model.lifecycle import State
from penstock.store.api import Capabilities
from penstock.store.sql.claim_hints import KeyQueueLength
from penstock.store.sql.dialect import CLOCK, ClaimTerms
from penstock.store.sql.multi_statement import StepwiseStore
from penstock.store.sql.mysql import emit as mysql_emit
from penstock.store.sql.mysql import maintenance, ordering_keys, statements, upserts
from penstock.store.sql.mysql.transaction import MysqlTransaction, adapt, delivery, utc
from penstock.store.sql.outcome_rows import RouteRow
from penstock.store.sql.server_dialect import ServerDialect
from penstock.store.sql.transaction import Transaction

# Servers close idle connections, some after minutes.
RECYCLE_SECONDS = 240
SQL_MODE = "STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO"

DEADLOCK, LOCK_WAIT, CHANGED_SINCE_READ = 1213, 1205, 1020
NO_TABLE, NO_COLUMN, BROKEN_VIEW = 1146, 1054, 1356
DUPLICATE, NOT_ALLOWED = 1062, 1227


class MysqlStore(ServerDialect, StepwiseStore):
    capabilities = Capabilities(
        transactional_emit=True, ordering=True, concurrent_writers=True, insert_into_view=False, staging=False
    )
    statements = statements
    maintenance = maintenance
    upserts = upserts

    _clock_now = "UTC_TIMESTAMP(6)"
    _given_now = "CAST(:now AS DATETIME(6))"

    # -- connections ------------------------------------------------------------------------------------------

    def _create_engine(self, url: str) -> Engine:
        with needs_extra("a MySQL or MariaDB store", "mysql"):
            import pymysql  # noqa: F401
        target = make_url(url).set(drivername="mysql+pymysql")
        # Strict mode, whatever the server's default is: a value that does not fit is refused instead of truncated.
        always = {"sql_mode": SQL_MODE, "program_name": "penstock"}
        return self._create_pool(target, always, pool_recycle=RECYCLE_SECONDS)

    @contextmanager
    def _begin(self, *, write: bool = True) -> Iterator[Transaction]:  # noqa: ARG002
        try:
            connected = self.engine.connect()
        except (TypeError, ValueError) as error:
            # Do not show the driver's message: it may contain the password.
            raise UsageError(f"invalid driver options in {self.url}; check their names and values") from error
        with connected as connection, connection.begin():
            raw: Any = connection.connection.dbapi_connection
            with raw.cursor() as cursor:
                yield self._transaction(connection, cursor)

    def _transaction(self, connection: Any, cursor: Any) -> Transaction:
        return MysqlTransaction(connection, cursor, self._prepare, self._time_given(), adapt=adapt, delivery=delivery)

    def _driver_errors(self) -> tuple[type[BaseException], ...]:
        import pymysql

        return (pymysql.Error,)

    def _translate(self, error: BaseException) -> PenstockError | None:
        from pymysql import Error, InterfaceError, OperationalError

        cause = self._cause(error)
        code = cause.args[0] if isinstance(cause, Error) and cause.args else None
        reason = str(cause.args[-1] if cause is not None and cause.args else "").strip().partition("\n")[0]
        if code in (DEADLOCK, LOCK_WAIT, CHANGED_SINCE_READ):
            return self._conflict()
        if code in (NO_TABLE, NO_COLUMN, BROKEN_VIEW):
            return self._not_initialised()
        if code == DUPLICATE and "event_id" in reason:
            return InvalidEvent("an event with this event_id already exists; use another event_id")
        if isinstance(cause, OperationalError | InterfaceError):
            return StoreUnavailable(f"cannot reach {self.url}: {reason or 'the connection was lost'}")
        return StoreError(f"{self.url} rejected the statement: {reason}") if isinstance(cause, Error) else None

    def _time(self, raw: Any) -> datetime:
        time: datetime = raw
        return time.replace(tzinfo=UTC)

    def _clock(self, tx: Transaction) -> datetime:
        """Return the current time as DATETIME stores it: in UTC, without a time zone."""
        return utc(self.clock()) if self.clock is not None else tx.scalar(CLOCK)

    # -- emitting ---------------------------------------------------------------------------------------------

    def _append(self, cursor: Any, events: Sequence[Event]) -> list[EventId]:
        tx = self._transaction(None, cursor)
        return mysql_emit.append(tx, cursor, events, self._clock(tx))

    # -- claiming ---------------------------------------------------------------------------------------------

    def _take_keyed(self, tx: Transaction, terms: ClaimTerms, room: int) -> list[Delivery]:
        lease = terms.lease
        lengths = self._key_queues.setdefault(lease.queue, KeyQueueLength())
        if not ordering_keys.take(tx, lease.queue, lease.lease_id, lengths.key_limit(room)):
            return []
        # Separate statements, which read everything that was committed before the keys were locked.
        of_types = "" if terms.types is None else statements.OF_TYPES
        chosen = ordering_keys.front(tx, terms, room, of_types)
        kept = {row[0] for row in tx.rows(statements.LOCK_WAITING, seqs=sorted(seq for seq, _ in chosen))}
        rows = self._move(tx, terms, [row for row in chosen if row[0] in kept], room)
        lengths.learn(rows)
        # Free the keys of which no event was claimed. After a claim by type (`served`), move them behind the keys that
        # wait: their first event may have another type, and the next claim by type would take the same keys again.
        self._free_keys(tx, [lease.lease_id], served=terms.types is not None)
        return rows

    def _left(self, tx: Transaction, queue: str) -> tuple[int | None, datetime | None]:
        levels = list(self._levels(tx, queue))
        times = [tx.scalar(statements.OLDEST, queue=queue, priority=priority) for priority in levels]
        oldest = [self._time(one) for one in times if one is not None]
        return min(levels, default=None), min(oldest, default=None)

    # -- leases and settling ----------------------------------------------------------------------------------

    def _extend(self, tx: Transaction, leases: Sequence[Lease], max_age: float) -> set[tuple[LeaseId, Token]]:
        given = {(lease.lease_id.bytes, lease.token.bytes): lease for lease in leases}
        living = tx.rows(statements.LOCK_LIVING, lease_ids=[lease.lease_id for lease in leases], max_age=max_age)
        held = [given[row] for row in map(tuple, living) if row in given]
        for lease in held:
            tx.run(statements.EXTEND, lease_id=lease.lease_id, seconds=lease.lease_seconds, max_age=max_age)
        return {(lease.lease_id, lease.token) for lease in held}

    def _route(self, tx: Transaction, lease_id: LeaseId, rows: list[RouteRow]) -> frozenset[int]:
        given = [[row.seq, row.queue, row.copy_id.hex if row.copy_id else None] for row in rows]
        routed = [seq for (seq,) in tx.rows(maintenance.ROUTED, lease_id=lease_id, rows=given)]
        if routed:
            tx.run_all(maintenance.ROUTE, lease_id=lease_id, rows=given)
        return frozenset(routed)

    def _hold(self, tx: Transaction, keys: Sequence[Any]) -> None:
        ordering_keys.hold(tx, tx.connection.connection.cursor(), map(tuple, keys), self._clock(tx))

    def _hold_keys_of(self, tx: Transaction, lease_id: LeaseId, rows: list[RouteRow]) -> None:
        keys = dict(tx.rows(statements.HELD_KEYS_BY_SEQ, lease_id=lease_id))
        self._hold(tx, [(row.queue, keys[row.seq]) for row in rows if row.seq in keys])

    def _release_behind(self, tx: Transaction, lease_id: LeaseId, seqs: list[int]) -> None:
        back: dict[str, int] = {}
        for key, seq in tx.rows(statements.WENT_BACK, seqs=seqs):
            back[key] = min(seq, back.get(key, seq))
        held = tx.rows(statements.HELD_KEYS_BY_SEQ, lease_id=lease_id) if back else ()
        behind = [[seq, "RELEASED", None, 0] for seq, key in held if key in back and seq > back[key]]
        if behind:
            tx.run_all(statements.APPLY, lease_id=lease_id, rows=behind, skip=False)

    def _free_keys(self, tx: Transaction, lease_ids: Sequence[LeaseId], *, served: bool = True) -> None:
        ordering_keys.free(tx, lease_ids, served=served)

    # -- beside the flow --------------------------------------------------------------------------------------

    def _replay(self, tx: Transaction, seqs: list[int], by: str) -> int:
        keys = tx.rows(maintenance.OWN_KEYS, seqs=seqs)
        self._wake_keys(tx, list(map(tuple, keys)))
        return tx.run_all(maintenance.REPLAY, seqs=seqs, by=by)

    def _wake_keys(self, tx: Transaction, keys: Sequence[tuple[str, str]]) -> None:
        self._hold(tx, keys)
        ordering_keys.wake(tx, maintenance.WAKE_KEYS, keys)

    def _archive_as_dead(self, tx: Transaction, state: State, seqs: list[int], reason: str, by: str) -> int:
        lock, *moves = maintenance.ARCHIVE_AS_DEAD[state]
        found = [seq for (seq,) in tx.rows(lock, seqs=seqs)]
        if found:
            tx.run_all(moves, seqs=found, reason=reason, by=by)
        return len(found)

    def _oldest_snapshot_seconds(self, tx: Transaction) -> float | None:
        from pymysql import OperationalError

        try:
            age = tx.scalar(maintenance.OLDEST_SNAPSHOT)
        except OperationalError as error:
            if error.args[0] != NOT_ALLOWED:
                raise
            return None  # the PROCESS privilege is needed to see the transactions of others
        return None if age is None else float(age)
