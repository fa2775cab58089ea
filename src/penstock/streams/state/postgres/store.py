"""State in PostgreSQL, for clusters. All machines see the same state; row locks fence drivers and tasks.

A transaction locks the stream's row for sharing and the state partition's row for update, from the check to the commit.
A starting driver therefore waits for running commits, and no commit of an older epoch follows.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, LiteralString
from uuid import uuid4

from penstock.config.extras import needs_extra
from penstock.config.urls import mask_url
from penstock.model.errors import StoreConflict, StoreError, StoreUnavailable, UsageError
from penstock.model.event import NAME_LIMIT, Event
from penstock.streams.arrow_json import values
from penstock.streams.state.api import (
    Arrival,
    Fenced,
    Outgoing,
    Saved,
    Started,
    StateColumns,
    Superseded,
    Timer,
    checked_part,
    states_in,
    text_of,
)
from penstock.streams.state.event_codec import pack_event, unpack_event
from penstock.streams.state.postgres import statements

if TYPE_CHECKING:
    from psycopg import Connection
    from pyarrow import StringArray

READ_PAGE = 5_000

Rows = Sequence[tuple[Any, ...]]


class PostgresTransaction:
    """Transaction on one state partition."""

    def __init__(self, connection: "Connection", part: tuple[str, int]) -> None:
        self._connection = connection
        self._part = part
        self._batch: int | None = None
        self._emitted = 0

    def fresh(self, arrivals: Sequence[Arrival]) -> set[Arrival]:
        columns = [arrival.event_id for arrival in arrivals], [arrival.replays for arrival in arrivals]
        return set(map(Arrival._make, self._run(statements.ENTER, *columns)))

    def refuse(self, arrivals: Sequence[Arrival]) -> None:
        ids: dict[int, list[str]] = {}  # usually one list: few events were replayed
        for event_id, replays in sorted(arrivals):
            ids.setdefault(replays, []).append(event_id)
        for replays, known in ids.items():
            self._run(statements.TRIM, replays, known)

    def reached(self, partitions: Collection[str]) -> Mapping[str, int]:
        return dict(self._run(statements.REACHED, list(partitions)))

    def advance(self, offsets: Mapping[str, int]) -> None:
        self._run(statements.ADVANCE, list(offsets), list(offsets.values()))

    def load(self, keys: Collection[str]) -> Mapping[str, Saved]:
        return {key: Saved(data, expires_at) for key, data, expires_at in self._run(statements.LOAD, list(keys))}

    def load_json(self, keys: "StringArray", now: float) -> bytes:
        return text_of(keys, self.load(values(keys)), now)

    def save(self, changed: Mapping[str, Saved | None]) -> None:
        kept = [(key, saved.data, saved.expires_at) for key, saved in changed.items() if saved is not None]
        if kept:
            self._run(statements.SAVE, *map(list, zip(*kept, strict=True)))
        if gone := [key for key, saved in changed.items() if saved is None]:
            self._run(statements.DROP, gone)

    def save_columns(self, columns: StateColumns, expires_at: float | None) -> None:
        self.save(states_in(columns, expires_at))

    def set_timers(self, timers: Mapping[tuple[str, str], float | None]) -> None:
        kept = [(key, name, at) for (key, name), at in timers.items() if at is not None]
        if kept:
            self._run(statements.SET_TIMERS, *map(list, zip(*kept, strict=True)))
        if gone := [named for named, at in timers.items() if at is None]:
            keys, names = map(list, zip(*gone, strict=True))
            self._run(statements.CANCEL_TIMERS, list(set(keys)), keys, names)

    def due(self, until: float, limit: int) -> Sequence[Timer]:
        return list(map(Timer._make, self._run(statements.DUE, until, limit)))

    def emit(self, events: Sequence[Event]) -> None:
        packed = [pack_event(event) for event in events]
        if not packed:
            return
        if self._batch is None:
            ((self._batch,),) = self._run(statements.NEXT_BATCH)
        places = list(range(self._emitted, self._emitted + len(packed)))
        self._emitted += len(packed)
        self._run(statements.EMIT, self._batch, places, packed)

    def _run(self, statement: LiteralString, *values: Any) -> Rows:
        return _run(self._connection, statement, *self._part, *values)


class PostgresPart:
    """A state partition, opened by one task with its own connection."""

    def __init__(self, connection: "Connection", started: Started, number: int) -> None:
        self._connection = connection
        self._started = started
        self._part = (started.stream, number)
        self._token = started.token()
        with self._epoch_held():
            if not self._run(statements.LOCK_PART):
                raise UsageError(f"state partition {number} of stream {started.stream!r} does not exist")
            if not self._run(statements.TAKE, self._token, started.first_later_token()):
                raise Fenced(
                    f"a task of a later job has taken state partition {number} of stream {started.stream!r}; "
                    "this task makes no changes"
                )

    @contextmanager
    def transaction(self) -> Iterator[PostgresTransaction]:
        with self._epoch_held():
            if not self._run(statements.HOLD_PART, self._token):
                stream, number = self._part
                raise Fenced(
                    f"another task has taken state partition {number} of stream {stream!r}; "
                    "changes of this task are discarded"
                )
            yield PostgresTransaction(self._connection, self._part)

    def trim(self, arrivals: Sequence[Arrival]) -> None:
        with self._epoch_held():
            PostgresTransaction(self._connection, self._part).refuse(arrivals)

    def outgoing(self) -> Iterator[Outgoing]:
        with _transaction(self._connection):
            batches = self._run(statements.BATCHES)
        for (batch,) in batches:
            with _transaction(self._connection):
                events = [unpack_event(packed) for (packed,) in self._run(statements.OUTGOING, batch)]
            if events:
                yield Outgoing(batch, events)

    def sent(self, batch: int) -> None:
        with _transaction(self._connection):
            self._run(statements.SENT, batch)

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _epoch_held(self) -> Iterator[None]:
        stream, epoch = self._started.stream, self._started.epoch
        with _transaction(self._connection):
            if not _run(self._connection, statements.HOLD_EPOCH, stream, epoch):
                raise Superseded(
                    f"another driver has started stream {stream!r}: its epoch is later than this driver's, {epoch}"
                )
            yield

    def _run(self, statement: LiteralString, *values: Any) -> Rows:
        return _run(self._connection, statement, *self._part, *values)


class PostgresState:
    """State store in PostgreSQL. `start` creates its tables, which can share a database with the event store."""

    shared = True

    def __init__(self, url: str) -> None:
        with needs_extra("State in PostgreSQL", "postgres"):
            import psycopg  # noqa: F401
        self.url = url
        scheme, _, place = url.partition("://")
        self._target = f"{scheme.partition('+')[0]}://{place}"

    def start(self, stream: str, parts: int) -> Started:
        if parts < 1:
            raise UsageError(f"parts must be at least 1, got {parts}")
        if not 0 < len(stream) <= NAME_LIMIT or "\x00" in stream:
            raise UsageError(f"invalid stream name {stream!r}; expected 1 to {NAME_LIMIT} characters without NUL")
        with closing(self._connect()) as connection:
            self._create_tables(connection)
            with _transaction(connection):
                ((epoch, kept, identity),) = _run(connection, statements.TAKE_EPOCH, stream, parts, uuid4().hex)
                _run(connection, statements.MAKE_PARTS, stream, kept)
        return Started(stream, epoch, kept, identity)

    def held(self, stream: str) -> AbstractContextManager[None]:  # noqa: ARG002
        """Do nothing: the server runs between tasks anyway."""
        return nullcontext()

    def open_part(self, started: Started, number: int) -> PostgresPart:
        connection = self._connect()
        try:
            return PostgresPart(connection, started, number)
        except BaseException:
            connection.close()
            raise

    def streams(self) -> Sequence[Started]:
        with closing(self._connect()) as connection, _transaction(connection):
            if not self._has_tables(connection):
                return []
            return [Started(*row) for row in _run(connection, statements.STREAMS)]

    def read(
        self, stream: str, keys: Collection[str] | None = None, *, part: int | None = None
    ) -> Iterator[tuple[str, Saved]]:
        with closing(self._connect()) as connection, _transaction(connection):
            parts = self._require(connection, stream)
            if part is not None:
                checked_part(stream, part, parts)
            with connection.cursor(name="penstock_read") as cursor:  # the states may not fit in memory
                cursor.itersize = READ_PAGE
                for key, data, expires_at in cursor.execute(*_read(stream, parts, part, keys)):
                    yield key, Saved(data, expires_at)

    def forget(self, stream: str, *, older_than_seconds: float) -> int:
        dropped = 0
        with closing(self._connect()) as connection:
            with _transaction(connection):
                parts = self._require(connection, stream)
            for number in range(parts):
                with _transaction(connection):
                    # Lock the state partition, which waits for its running transaction: the transaction may have
                    # loaded rows that are deleted here.
                    _run(connection, statements.LOCK_PART, stream, number)
                    ((inbox,),) = _run(connection, statements.FORGET_INBOX, stream, number, older_than_seconds)
                    ((state,),) = _run(connection, statements.FORGET_STATE, stream, number)
                dropped += inbox + state
        return dropped

    def close(self) -> None:
        """Do nothing: no connection stays open between calls."""

    def _connect(self) -> "Connection":
        import psycopg

        try:
            # Disable prepared statements: a pooler may run the next transaction on another server connection.
            return psycopg.connect(self._target, prepare_threshold=None, application_name="penstock-stream")
        except psycopg.Error as error:
            raise StoreUnavailable(f"cannot reach {mask_url(self.url)}: {error}") from error

    def _create_tables(self, connection: "Connection") -> None:
        with _transaction(connection):
            if self._has_tables(connection):
                return
            _run(connection, statements.LOCK_TABLES)  # two processes that create a table at once would collide
            for statement in statements.TABLES:
                _run(connection, statement)

    def _has_tables(self, connection: "Connection") -> bool:
        ((found,),) = _run(connection, statements.HAS_TABLES)
        return bool(found)

    def _require(self, connection: "Connection", stream: str) -> int:
        rows = _run(connection, statements.PARTS_OF, stream) if self._has_tables(connection) else []
        if not rows:
            raise UsageError(f"stream {stream!r} does not exist in {mask_url(self.url)}")
        return int(rows[0][0])


def _read(
    stream: str, parts: int, part: int | None, keys: Collection[str] | None
) -> tuple[LiteralString, tuple[Any, ...]]:
    """Return the statement and the parameters for these keys or all, in one state partition or in all."""
    if keys is not None:
        return statements.READ_KEYS, (stream, list(range(parts)) if part is None else [part], list(keys))
    return (statements.READ, (stream,)) if part is None else (statements.READ_PART, (stream, part))


@contextmanager
def _transaction(connection: "Connection") -> Iterator[None]:
    """Open a transaction with a lock time-out. Raise errors of the database as errors of Penstock."""
    import psycopg

    try:
        with connection.transaction():
            _run(connection, statements.PATIENCE)
            yield
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
        raise StoreConflict(f"deadlock or lock time-out in the state store: {error}") from error
    except psycopg.OperationalError as error:
        raise StoreUnavailable(f"cannot reach the state store: {error}") from error
    except psycopg.Error as error:
        raise StoreError(f"the state store rejected the statement: {error}") from error


def _run(connection: "Connection", statement: LiteralString, *values: Any) -> Rows:
    cursor = connection.execute(statement, values or None, binary=True)
    return cursor.fetchall() if cursor.description else []
