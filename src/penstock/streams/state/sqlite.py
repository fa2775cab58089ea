"""State in SQLite, the default. Each state partition has its own file, so that tasks can write at the same time. For a
single machine."""

import json
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import chain
from json.encoder import encode_basestring
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.model.event import Event
from penstock.streams.arrow_json import arrow, values
from penstock.streams.state.api import Arrival, Outgoing, Saved, Started, StateColumns, Timer, new_saved, states_in
from penstock.streams.state.event_codec import pack_event, unpack_event
from penstock.streams.state.local_folder import FENCE_TABLE, RAISE_EPOCH, Fence, FolderState, open_database, writing

if TYPE_CHECKING:
    from pyarrow import StringArray

# Maximum number of bound values per query: well below the limit of any SQLite build, and large enough for few queries.
CHUNK = 900
# States per INSERT: a quarter less time than one INSERT per state; more states per statement do not help.
ROWS = 50
# With this many wanted keys per page of the file, read the whole table: half the time of looking up each key.
DENSE = 40
TABLES = (
    FENCE_TABLE,
    "CREATE TABLE IF NOT EXISTS inbox "
    "(event_id TEXT, replays INTEGER, at REAL NOT NULL, PRIMARY KEY (event_id, replays)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS offsets (line TEXT PRIMARY KEY, reached INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS state (key TEXT PRIMARY KEY, data BLOB NOT NULL, expires_at REAL) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS state_expiry ON state (expires_at) WHERE expires_at IS NOT NULL",
    "CREATE TABLE IF NOT EXISTS timers (key TEXT, name TEXT, at REAL NOT NULL, PRIMARY KEY (key, name)) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS timers_due ON timers (at, key, name)",
    # AUTOINCREMENT: a number is never reused, even after all earlier batches are sent and deleted.
    "CREATE TABLE IF NOT EXISTS batches (batch INTEGER PRIMARY KEY AUTOINCREMENT)",
    "CREATE TABLE IF NOT EXISTS outgoing (batch INTEGER, place INTEGER, event BLOB NOT NULL, "
    "PRIMARY KEY (batch, place)) WITHOUT ROWID",
)
ENTER = "INSERT INTO inbox (event_id, replays, at) VALUES (?, ?, ?)"
TAKE_OUT = "DELETE FROM inbox WHERE event_id = ? AND replays = ?"
ADVANCE = """
    INSERT INTO offsets (line, reached) VALUES (?, ?)
    ON CONFLICT (line) DO UPDATE SET reached = excluded.reached WHERE excluded.reached > reached
"""
STATES = "SELECT key, data, expires_at FROM state"
# Concatenate the states to one text, a line for each state, inside SQLite: one Python object per state takes four times
# as long. SQLite reads the left table of a LEFT JOIN from first to last, so the lines are in the order of the keys.
STATES_AS_TEXT = """
    SELECT CAST(group_concat(ifnull(data, '{}'), char(10)) AS BLOB)
    FROM json_each(?) AS wanted LEFT JOIN state ON state.key = wanted.value AND (expires_at IS NULL OR expires_at > ?)
"""
SAVE = """
    INSERT INTO state (key, data, expires_at) VALUES {rows}
    ON CONFLICT (key) DO UPDATE SET data = excluded.data, expires_at = excluded.expires_at
"""
SAVE_ONE = SAVE.format(rows="(?, ?, ?)")
SAVE_ROWS = SAVE.format(rows=", ".join(["(?, ?, ?)"] * ROWS))
# Pass the states as one JSON object, with the keys as names: fewer bound values, and two thirds of the time.
SAVE_OBJECTS = """
    INSERT INTO state (expires_at, key, data) SELECT ?, key, CAST(value AS BLOB) FROM json_each(?) WHERE true
    ON CONFLICT (key) DO UPDATE SET data = excluded.data, expires_at = excluded.expires_at
"""
SET_TIMER = """
    INSERT INTO timers (key, name, at) VALUES (?, ?, ?) ON CONFLICT (key, name) DO UPDATE SET at = excluded.at
"""
DUE = "SELECT at, key, name FROM timers WHERE at <= ? ORDER BY at, key, name LIMIT ?"


class SqliteTransaction:
    """Transaction on the file of one state partition."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._batch: int | None = None
        self._emitted = 0

    def fresh(self, arrivals: Sequence[Arrival]) -> set[Arrival]:
        wanted = set(arrivals)
        if self._enter(wanted):  # usually all are new, and a query first would double the time
            return wanted
        new = wanted - _held(self._database, wanted)
        self._enter(new)
        return new

    def _enter(self, arrivals: set[Arrival]) -> bool:
        """Insert all of these arrivals, or none if one is already in the inbox."""
        now = time.time()
        # In the order of the primary key, so that the table grows at few places.
        rows = [(event_id, replays, now) for event_id, replays in sorted(arrivals)]
        self._database.execute("SAVEPOINT entering")
        try:
            self._database.executemany(ENTER, rows)
        except sqlite3.IntegrityError:
            self._database.execute("ROLLBACK TO entering")
            return False
        finally:
            self._database.execute("RELEASE entering")
        return True

    def refuse(self, arrivals: Sequence[Arrival]) -> None:
        self._database.executemany(TAKE_OUT, sorted(set(arrivals)))

    def reached(self, partitions: Collection[str]) -> Mapping[str, int]:
        return dict(_select(self._database, "SELECT line, reached FROM offsets WHERE line IN", partitions))

    def advance(self, offsets: Mapping[str, int]) -> None:
        self._database.executemany(ADVANCE, offsets.items())

    def load(self, keys: Collection[str]) -> Mapping[str, Saved]:
        return {row[0]: new_saved(row[1:]) for row in self._rows(keys)}

    def _rows(self, keys: Collection[str]) -> Iterable[Any]:
        if not self._is_dense(keys):
            return _select(self._database, f"{STATES} WHERE key IN", keys)
        wanted = set(keys)
        return (row for row in self._database.execute(STATES) if row[0] in wanted)

    def load_json(self, keys: "StringArray", now: float) -> bytes:
        text: bytes | None = self._database.execute(STATES_AS_TEXT, (json.dumps(values(keys)), now)).fetchone()[0]
        return text or b""

    def _is_dense(self, keys: Collection[str]) -> bool:
        """Return True if reading the whole table is faster than looking up this many keys."""
        (pages,) = self._database.execute("PRAGMA page_count").fetchone()
        return bool(len(keys) >= DENSE * pages)

    def save(self, changed: Mapping[str, Saved | None]) -> None:
        ordered = sorted(changed)
        kept = [(key, *saved) for key in ordered if (saved := changed[key]) is not None]
        gone = [(key,) for key in ordered if changed[key] is None]
        even = len(kept) - len(kept) % ROWS
        many = (tuple(chain.from_iterable(kept[start : start + ROWS])) for start in range(0, even, ROWS))
        self._database.executemany(SAVE_ROWS, many)
        self._database.executemany(SAVE_ONE, kept[even:])
        self._database.executemany("DELETE FROM state WHERE key = ?", gone)

    def save_columns(self, columns: StateColumns, expires_at: float | None) -> None:
        if not self._save_objects(columns, expires_at):
            self.save(states_in(columns, expires_at))

    def _save_objects(self, columns: StateColumns, expires_at: float | None) -> bool:
        """Write the states as one JSON object. Return False if SQLite cannot read the object: it contains unpaired
        surrogates or too deeply nested lists."""
        try:
            self._database.execute(SAVE_OBJECTS, (expires_at, _as_object(columns)))
        except UnicodeDecodeError:
            return False
        except sqlite3.OperationalError as error:
            if "JSON" not in str(error):
                raise  # SQLite may have rolled back the transaction
            return False
        return True

    def set_timers(self, timers: Mapping[tuple[str, str], float | None]) -> None:
        kept = [(key, name, at) for (key, name), at in timers.items() if at is not None]
        self._database.executemany(SET_TIMER, sorted(kept))
        gone = sorted(named for named, at in timers.items() if at is None)
        self._database.executemany("DELETE FROM timers WHERE key = ? AND name = ?", gone)

    def due(self, until: float, limit: int) -> Sequence[Timer]:
        return list(map(Timer._make, self._database.execute(DUE, (until, limit))))

    def emit(self, events: Sequence[Event]) -> None:
        packed = [pack_event(event) for event in events]
        if packed and self._batch is None:
            self._batch = self._database.execute("INSERT INTO batches DEFAULT VALUES").lastrowid
        rows = [(self._batch, place, event) for place, event in enumerate(packed, self._emitted)]
        self._emitted += len(rows)
        self._database.executemany("INSERT INTO outgoing (batch, place, event) VALUES (?, ?, ?)", rows)


class SqlitePart:
    """File of a state partition, opened by one task."""

    def __init__(self, path: Path, started: Started, number: int) -> None:
        self._database = open_database(path)
        self._fence = Fence(self._database, started, number)
        try:
            self._fence.take()
        except BaseException:
            self._database.close()
            raise

    @contextmanager
    def transaction(self) -> Iterator[SqliteTransaction]:
        with self._fence.held():
            yield SqliteTransaction(self._database)

    def trim(self, arrivals: Sequence[Arrival]) -> None:
        with self._fence.epoch_held():
            self._database.executemany(TAKE_OUT, sorted(arrivals))

    def outgoing(self) -> Iterator[Outgoing]:
        batches = self._database.execute("SELECT DISTINCT batch FROM outgoing ORDER BY batch").fetchall()
        for (batch,) in batches:
            rows = self._database.execute("SELECT event FROM outgoing WHERE batch = ? ORDER BY place", (batch,))
            if events := [unpack_event(packed) for (packed,) in rows.fetchall()]:
                yield Outgoing(batch, events)

    def sent(self, batch: int) -> None:
        with writing(self._database):
            self._database.execute("DELETE FROM outgoing WHERE batch <= ?", (batch,))
            self._database.execute("DELETE FROM batches WHERE batch <= ?", (batch,))

    def close(self) -> None:
        self._database.close()


class SqliteState(FolderState):
    """State store in a folder: one folder for each stream, with one file for each state partition."""

    def open_part(self, started: Started, number: int) -> SqlitePart:
        return SqlitePart(self._part(started.stream, number), started, number)

    def _prepare(self, path: Path, epoch: int, *, create: bool) -> None:
        with closing(open_database(path, create=create)) as database, writing(database):
            for table in TABLES:
                database.execute(table)
            database.execute(RAISE_EPOCH, (epoch,))

    @contextmanager
    def _reading(self, path: Path, keys: Collection[str] | None) -> Iterator[Iterator[tuple[str, Saved]]]:
        with closing(open_database(path)) as database:
            yield _state(database, keys)

    def _forget(self, path: Path, older_than_seconds: float) -> int:
        now = time.time()
        with closing(open_database(path)) as database, writing(database):
            dropped = database.execute("DELETE FROM inbox WHERE at <= ?", (now - older_than_seconds,)).rowcount
            return dropped + database.execute("DELETE FROM state WHERE expires_at <= ?", (now,)).rowcount


def _as_object(columns: StateColumns) -> str:
    """Return the states as one JSON object, with the keys as names."""
    pa, pc = arrow()

    keys: Any = columns.keys
    names = values(keys)
    plain = "".join(names)
    if len(encode_basestring(plain)) > len(plain) + 2:  # a key contains characters that JSON escapes
        keys = pa.array([encode_basestring(name)[1:-1] for name in names], pa.string())
    members = pc.binary_join_element_wise(b'"', keys.cast(pa.binary()), b'":', columns.objects, b"", b"")
    return f"{{{b','.join(values(members)).decode()}}}"


def _held(database: sqlite3.Connection, arrivals: set[Arrival]) -> set[Arrival]:
    """Return the arrivals that are in the inbox. The query uses the ids only: a condition on pairs would not use the
    index."""
    ids = {arrival.event_id for arrival in arrivals}
    found = set(_select(database, "SELECT event_id, replays FROM inbox WHERE event_id IN", ids))
    return {arrival for arrival in arrivals if arrival in found}


def _state(database: sqlite3.Connection, keys: Collection[str] | None) -> Iterator[tuple[str, Saved]]:
    rows: Iterable[Any] = (
        database.execute(f"{STATES} ORDER BY key")
        if keys is None
        else sorted(_select(database, f"{STATES} WHERE key IN", keys), key=lambda row: row[0])
    )
    for key, data, expires_at in rows:
        yield key, Saved(data, expires_at)


def _select(database: sqlite3.Connection, statement: str, values: Collection[str]) -> Iterator[Any]:
    """Run a statement that ends in IN for chunks of the values, and yield the rows."""
    ordered = sorted(set(values))
    for start in range(0, len(ordered), CHUNK):
        chunk = ordered[start : start + CHUNK]
        yield from database.execute(f"{statement} ({','.join('?' * len(chunk))})", chunk)
