"""State in RocksDB: one database for each state partition, for states too large for SQLite. For a single machine.

A transaction is one write batch, synced once. Only one process can have a RocksDB database open. The small SQLite file
beside the database fences drivers and tasks: its write lock is held from the check to the write.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import groupby, takewhile
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any

from penstock.config.extras import needs_extra
from penstock.model.event import Event
from penstock.streams.arrow_json import EMPTY, arrow, values
from penstock.streams.state.api import (
    Arrival,
    Outgoing,
    Saved,
    Started,
    StateColumns,
    Timer,
    new_saved,
    states_in,
    text_of,
)
from penstock.streams.state.event_codec import pack_event, unpack_event
from penstock.streams.state.local_folder import FENCE_TABLE, RAISE_EPOCH, Fence, FolderState, open_database, writing
from penstock.streams.state.rocksdb.files import Opened, follower
from penstock.streams.state.rocksdb.timers import RocksTimers

if TYPE_CHECKING:
    from pyarrow import StringArray
    from rocksdict import Rdict, WriteBatch

CHUNK = 256
# The first byte of a key is the kind of the entry; t and k are timers. Numbers are big-endian, so that they sort
# numerically.
INBOX, SOURCE_PARTITION, STATE, EVENT, LAST_BATCH = b"i", b"l", b"s", b"e", b"b"
NUMBER = Struct(">Q")
PLACE = Struct(">QI")
SHORT = Struct(">I")
SECONDS = Struct(">d")
NEVER = SECONDS.pack(float("inf"))
LENGTH = SECONDS.size


class RocksTransaction:
    """Buffered changes of one transaction, over the stored data. Nothing is written before `apply`."""

    def __init__(self, database: "Rdict") -> None:
        self._database = database
        self._entered: dict[Arrival, bytes] = {}
        self._offsets: dict[str, int] = {}
        self._changed: dict[str, Saved | None] = {}
        self._columns: tuple[StateColumns, float | None] | None = None
        """States that were saved as columns. They are written as columns, unless they are read or changed first."""
        self._emitted: list[bytes] = []
        self._timers = RocksTimers(database)

    def fresh(self, arrivals: Sequence[Arrival]) -> set[Arrival]:
        keys = {arrival: _inbox_key(arrival) for arrival in arrivals if arrival not in self._entered}
        known = _get(self._database, list(keys.values()))
        new = {arrival for arrival, value in zip(keys, known, strict=True) if value is None}
        self._entered |= keys if len(new) == len(keys) else {arrival: keys[arrival] for arrival in new}
        return new

    def refuse(self, arrivals: Sequence[Arrival]) -> None:
        for arrival in arrivals:
            self._entered.pop(arrival, None)

    def reached(self, partitions: Collection[str]) -> Mapping[str, int]:
        wanted = list(set(partitions))
        values = _get(self._database, [SOURCE_PARTITION + name.encode() for name in wanted])
        stored = {name: NUMBER.unpack(value)[0] for name, value in zip(wanted, values, strict=True) if value}
        return stored | {name: self._offsets[name] for name in wanted if name in self._offsets}

    def advance(self, offsets: Mapping[str, int]) -> None:
        reached = self.reached(offsets)
        self._offsets |= {name: offset for name, offset in offsets.items() if offset > reached.get(name, -1)}

    def load(self, keys: Collection[str]) -> Mapping[str, Saved]:
        self._take_columns()
        wanted = set(keys)
        stored = _load(self._database, wanted - self._changed.keys())
        return stored | {key: saved for key, saved in self._changed.items() if saved is not None and key in wanted}

    def load_json(self, keys: "StringArray", now: float) -> bytes:
        if self._changed or self._columns:
            return text_of(keys, self.load(values(keys)), now)
        found = _get(self._database, _state_keys(keys))
        return b"\n".join([value[LENGTH:] if value and _lasts(value, now) else EMPTY for value in found])

    def save(self, changed: Mapping[str, Saved | None]) -> None:
        self._take_columns()
        self._changed |= changed

    def save_columns(self, columns: StateColumns, expires_at: float | None) -> None:
        self._take_columns()
        self._columns = columns, expires_at

    def _take_columns(self) -> None:
        if self._columns is not None:
            self._changed |= states_in(*self._columns)
            self._columns = None

    def set_timers(self, timers: Mapping[tuple[str, str], float | None]) -> None:
        self._timers.set(timers)

    def due(self, until: float, limit: int) -> Sequence[Timer]:
        return self._timers.due(until, limit)

    def emit(self, events: Sequence[Event]) -> None:
        self._emitted += [pack_event(event) for event in events]

    def apply(self) -> None:
        """Write all changes in one batch."""
        batch = _batch()
        at = SECONDS.pack(time.time())
        for arrived in self._entered.values():
            batch.put(arrived, at)
        for name, offset in self._offsets.items():
            batch.put(SOURCE_PARTITION + name.encode(), NUMBER.pack(offset))
        for key, saved in self._changed.items():
            if saved is None:
                batch.delete(STATE + key.encode())
            else:
                batch.put(STATE + key.encode(), _pack_until(saved.expires_at) + saved.data)
        if self._columns is not None:
            _put_columns(batch, *self._columns)
        self._timers.put(batch)
        if self._emitted:
            self._put_emitted(batch)
        _write(self._database, batch)

    def _put_emitted(self, batch: "WriteBatch") -> None:
        last = self._database.get(LAST_BATCH)
        number = NUMBER.unpack(last)[0] + 1 if last else 1
        batch.put(LAST_BATCH, NUMBER.pack(number))
        for place, packed in enumerate(self._emitted):
            batch.put(EVENT + PLACE.pack(number, place), packed)


class RocksPart:
    """Database of a state partition, opened by one task."""

    def __init__(self, path: Path, started: Started, number: int) -> None:
        with ExitStack() as stack:
            fence_file = stack.enter_context(closing(open_database(path)))
            self._fence_file = fence_file
            self._fence = Fence(fence_file, started, number)
            with self._fence.epoch_held():  # fail here for a task of an older driver, before the database is opened
                pass
            self._database = stack.enter_context(Opened.at(_database_of(path)))
            self._fence.take()
            self._stack = stack.pop_all()

    @contextmanager
    def transaction(self) -> Iterator[RocksTransaction]:
        with self._fence.held():
            transaction = RocksTransaction(self._database)
            yield transaction
            transaction.apply()

    def trim(self, arrivals: Sequence[Arrival]) -> None:
        with self._fence.epoch_held():
            _delete(self._database, [_inbox_key(arrival) for arrival in arrivals])

    def outgoing(self) -> Iterator[Outgoing]:
        kept = _items(self._database, EVENT)
        for batch, items in groupby(kept, key=lambda item: _batch_of(item[0])):
            yield Outgoing(batch, [unpack_event(packed) for _, packed in items])

    def sent(self, batch: int) -> None:
        keys = (key for key, _ in _items(self._database, EVENT))
        with writing(self._fence_file):
            _delete(self._database, list(takewhile(lambda key: _batch_of(key) <= batch, keys)))

    def close(self) -> None:
        self._stack.close()


class RocksState(FolderState):
    """State store in a folder: one folder for each stream, with one database for each state partition."""

    def __init__(self, url: str) -> None:
        with needs_extra("State in RocksDB", "rocksdb"):
            import rocksdict  # noqa: F401
        super().__init__(url)

    def open_part(self, started: Started, number: int) -> RocksPart:
        return RocksPart(self._part(started.stream, number), started, number)

    def _prepare(self, path: Path, epoch: int, *, create: bool) -> None:
        with closing(open_database(path, create=create)) as fence_file, writing(fence_file):
            fence_file.execute(FENCE_TABLE)
            fence_file.execute(RAISE_EPOCH, (epoch,))
            if create:
                with Opened.at(_database_of(path), create=True):
                    pass

    def close(self) -> None:
        Opened.settle()

    @contextmanager
    def _reading(self, path: Path, keys: Collection[str] | None) -> Iterator[Iterator[tuple[str, Saved]]]:
        with follower(_database_of(path)) as database:
            yield _state(database, keys)

    def _forget(self, path: Path, older_than_seconds: float) -> int:
        with ExitStack() as stack:
            fence_file = stack.enter_context(closing(open_database(path)))
            database = stack.enter_context(Opened.at(_database_of(path)))
            stack.enter_context(writing(fence_file))
            return _forget(database, time.time(), older_than_seconds)


def _batch() -> "WriteBatch":
    from rocksdict import WriteBatch

    return WriteBatch(raw_mode=True)


def _write(database: "Rdict", batch: "WriteBatch") -> None:
    from rocksdict import WriteOptions

    synced = WriteOptions()
    synced.sync = True
    if not batch.is_empty():
        database.write(batch, synced)


def _delete(database: "Rdict", keys: Collection[bytes]) -> int:
    batch = _batch()
    for key in keys:
        batch.delete(key)
    _write(database, batch)
    return len(keys)


def _get(database: "Rdict", keys: list[bytes]) -> list[bytes | None]:
    # In chunks: one call for thousands of keys takes a third longer.
    values: list[bytes | None] = []
    for start in range(0, len(keys), CHUNK):
        chunk: list[Any] = keys[start : start + CHUNK]
        values += database.get(chunk) or []
    return values


def _items(database: "Rdict", prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    for key, value in database.items(from_key=prefix):
        assert isinstance(key, bytes)
        if not key.startswith(prefix):
            return
        yield key, value


def _load(database: "Rdict", keys: Collection[str]) -> dict[str, Saved]:
    ordered = sorted(keys)
    values = _get(database, [STATE + key.encode() for key in ordered])
    return {key: _unpack_saved(value) for key, value in zip(ordered, values, strict=True) if value is not None}


def _state(database: "Rdict", keys: Collection[str] | None) -> Iterator[tuple[str, Saved]]:
    if keys is not None:
        yield from _load(database, set(keys)).items()
        return
    for key, value in _items(database, STATE):
        yield key[1:].decode(), _unpack_saved(value)


def _forget(database: "Rdict", now: float, older_than_seconds: float) -> int:
    old = [key for key, at in _items(database, INBOX) if SECONDS.unpack(at)[0] <= now - older_than_seconds]
    expired = [key for key, value in _items(database, STATE) if SECONDS.unpack_from(value)[0] <= now]
    return _delete(database, old + expired)


def _put_columns(batch: "WriteBatch", columns: StateColumns, expires_at: float | None) -> None:
    _, pc = arrow()

    packed = pc.binary_join_element_wise(_pack_until(expires_at), columns.objects, b"")
    for key, value in zip(_state_keys(columns.keys), values(packed), strict=True):
        batch.put(key, value)


def _state_keys(keys: "StringArray") -> list[bytes]:
    """Return the database keys of states."""
    pa, pc = arrow()

    return values(pc.binary_join_element_wise(STATE, keys.cast(pa.binary()), b""))


def _inbox_key(arrival: Arrival) -> bytes:
    return INBOX + SHORT.pack(arrival.replays) + arrival.event_id.encode()


def _batch_of(key: bytes) -> int:
    return int(PLACE.unpack_from(key, len(EVENT))[0])


def _pack_until(at: float | None) -> bytes:
    return NEVER if at is None else SECONDS.pack(at)


def _unpack_saved(value: bytes) -> Saved:
    until, data = value[:LENGTH], value[LENGTH:]
    return new_saved((data, None if until == NEVER else SECONDS.unpack(until)[0]))


def _lasts(value: bytes, now: float) -> bool:
    return value.startswith(NEVER) or bool(SECONDS.unpack_from(value)[0] > now)


def _database_of(path: Path) -> Path:
    return path.with_suffix(".rocks")
