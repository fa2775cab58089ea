"""What state stores on local disk share: a folder for each stream, its epoch and parts, and the fence of a part.

<folder>/<stream>/stream.db       the epoch and the number of parts
<folder>/<stream>/part-00003.db   the epoch and the token of one part, and with SQLite all else that it holds
With RocksDB that is in part-00003.rocks, and part-00003.lock is held by the process that has it open.
"""

import os
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from heapq import merge
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

from penstock.config.permissions import create_file, make_folder
from penstock.config.urls import mask_url
from penstock.model.errors import StoreConflict, StoreError, StoreUnavailable, UsageError
from penstock.streams.state.api import Fenced, Saved, Started, Superseded, checked_part

BUSY_SECONDS = 30.0
POLL_SECONDS = 0.02
LONGEST_FOLDER_NAME = 200
# A log of up to 64 MB before it goes into the file: keys are all over it, and a page goes there once instead of often.
# What it takes to undo a single statement stays in memory: as a file, every page of many states is written once more.
SETTINGS = (
    "journal_mode = WAL",
    "synchronous = FULL",
    "wal_autocheckpoint = 16000",
    "cache_size = -32000",
    "temp_store = MEMORY",
)

# Of a stream with more parts than these the others aren't held: a process may have but so many files open.
MOST_HELD = 32

STREAM_TABLE = """
    CREATE TABLE IF NOT EXISTS stream (
        name TEXT PRIMARY KEY, epoch INTEGER NOT NULL, parts INTEGER NOT NULL, identity TEXT NOT NULL,
        complete INTEGER NOT NULL
    )
"""
FENCE_TABLE = """
    CREATE TABLE IF NOT EXISTS fence (
        one INTEGER PRIMARY KEY CHECK (one = 1), epoch INTEGER NOT NULL, token TEXT NOT NULL
    )
"""
TAKE_EPOCH = """
    INSERT INTO stream (name, epoch, parts, identity, complete) VALUES (?, 1, ?, ?, 0)
    ON CONFLICT (name) DO UPDATE SET epoch = epoch + 1
    RETURNING epoch, parts, identity, complete
"""
# Of two drivers that start at once, the slower one must not put its lower epoch back.
RAISE_EPOCH = """
    INSERT INTO fence (one, epoch, token) VALUES (1, ?, '')
    ON CONFLICT (one) DO UPDATE SET epoch = excluded.epoch WHERE excluded.epoch > epoch
"""


class FolderState(ABC):
    """A state store in a folder: what it does the same however a part keeps its data.

    The URL names the folder, relative to the current one, as in `sqlite:///state`; `sqlite:////state` is not.
    """

    shared = False

    def __init__(self, url: str) -> None:
        _, _, path = url.partition("://")
        if not path.startswith("/") or not path.strip("/"):
            raise UsageError(f"{mask_url(url)!r} names no folder; a folder looks like sqlite:///state")
        self.url = url
        self._path = Path(path[1:])

    def start(self, stream: str, parts: int) -> Started:
        started, complete = self._take_epoch(stream, parts)
        for number in range(started.parts):
            self._prepare(self._part(stream, number), started.epoch, create=not complete)
        if not complete:  # from now on a part that is missing is a part that was lost
            with closing(open_database(self._of(stream) / "stream.db")) as database, writing(database):
                database.execute("UPDATE stream SET complete = 1 WHERE name = ?", (stream,))
        return started

    @contextmanager
    def held(self, stream: str) -> Iterator[None]:
        """The files are open here, too. Whoever is the last to close one writes all of its log back to it, page by page
        and with two flushes: each task would be."""
        with ExitStack() as stack:
            for path in self._paths(stream)[:MOST_HELD]:
                stack.enter_context(closing(open_database(path)))
            yield

    def streams(self) -> Sequence[Started]:
        folders = self._path.iterdir() if self._path.is_dir() else iter(())
        return sorted(filter(None, map(_look, folders)), key=lambda found: found.stream)

    def read(
        self, stream: str, keys: Collection[str] | None = None, *, part: int | None = None
    ) -> Iterator[tuple[str, Saved]]:
        paths = self._paths(stream)
        with ExitStack() as stack:
            wanted = paths if part is None else [paths[checked_part(stream, part, len(paths))]]
            parts = [stack.enter_context(self._reading(path, keys)) for path in wanted]
            yield from merge(*parts, key=lambda pair: pair[0])

    def forget(self, stream: str, *, older_than_seconds: float) -> int:
        return sum(self._forget(path, older_than_seconds) for path in self._paths(stream))

    def close(self) -> None:
        """Nothing stays open between calls."""
        return

    def _take_epoch(self, stream: str, parts: int) -> tuple[Started, bool]:
        """The stream with its next epoch, and whether all of its parts were made before."""
        if parts < 1:
            raise UsageError(f"a stream has one part or more, not {parts}")
        folder = self._of(stream)
        try:
            make_folder(folder)
        except OSError as error:
            raise StoreUnavailable(f"can't make the folder {folder}: {error}") from error
        with closing(open_database(folder / "stream.db", create=True)) as database, writing(database):
            database.execute(STREAM_TABLE)
            if other := database.execute("SELECT name FROM stream WHERE name <> ?", (stream,)).fetchone():
                raise UsageError(f"the folder of {stream!r} is that of {other[0]!r}: this disk knows no upper case")
            *found, complete = database.execute(TAKE_EPOCH, (stream, parts, uuid4().hex)).fetchone()
        return Started(stream, *found), bool(complete)

    def _paths(self, stream: str) -> list[Path]:
        found = _look(self._of(stream))
        if found is None or found.stream != stream:
            raise UsageError(f"there is no stream {stream!r} in {self._path}")
        return [self._part(stream, number) for number in range(found.parts)]

    def _part(self, stream: str, number: int) -> Path:
        return self._of(stream) / f"part-{number:05}.db"

    def _of(self, stream: str) -> Path:
        name = quote(stream, safe=" ").replace(".", "%2E")  # a dot could make it the folder above
        if not 0 < len(name) <= LONGEST_FOLDER_NAME or "\x00" in stream:
            raise UsageError(f"{stream!r} can't name a stream: too short or too long for the name of a folder")
        return self._path / name

    @abstractmethod
    def _prepare(self, path: Path, epoch: int, *, create: bool) -> None:
        """Raise a part to an epoch, and make it first if it is new."""

    @abstractmethod
    def _reading(self, path: Path, keys: Collection[str] | None) -> AbstractContextManager[Iterator[tuple[str, Saved]]]:
        """Open a part and return its state by key."""

    @abstractmethod
    def _forget(self, path: Path, older_than_seconds: float) -> int: ...


def _look(folder: Path) -> Started | None:
    """The stream of a folder as it was last started."""
    if not (folder / "stream.db").exists():
        return None
    with closing(open_database(folder / "stream.db")) as database:
        try:
            row = database.execute("SELECT name, epoch, parts, identity FROM stream WHERE complete").fetchone()
        except sqlite3.DatabaseError as error:
            if "no such table" in str(error):
                return None  # another process is about to make it
            raise StoreError(f"can't read {folder / 'stream.db'}: {error}") from error
    return row and Started(*row)


class Fence:
    """What keeps a part to one task. Its lock is the write lock of the part's file, held from the check to the commit:
    no driver or task can come between the two."""

    def __init__(self, database: sqlite3.Connection, started: Started, number: int) -> None:
        self._database = database
        self._started = started
        self._part = f"part {number} of {started.stream!r}"
        self._token = started.token().hex

    def take(self) -> None:
        """Set this task's token, where the epoch is still its driver's."""
        with writing(self._database):
            if self._check_epoch() >= self._started.first_later_token().hex:
                raise Fenced(f"a task of a later job has {self._part}; this one comes too late, and does nothing")
            self._database.execute("UPDATE fence SET token = ?", (self._token,))

    @contextmanager
    def epoch_held(self) -> Iterator[None]:
        """A transaction, while the epoch is this driver's."""
        with writing(self._database):
            self._check_epoch()
            yield

    @contextmanager
    def held(self) -> Iterator[None]:
        """A transaction, while the epoch is this driver's and the token this task's."""
        with writing(self._database):
            if self._check_epoch() != self._token:
                raise Fenced(f"another task has taken {self._part}; this one stops, and nothing of it counts")
            yield

    def _check_epoch(self) -> str:
        epoch, token = self._database.execute("SELECT epoch, token FROM fence").fetchone() or (0, "")
        if epoch != self._started.epoch:
            raise Superseded(
                f"another driver has started this stream: {self._part} is at epoch {epoch}, "
                f"and this driver's is {self._started.epoch}"
            )
        return str(token)


def open_database(path: Path, *, create: bool = False) -> sqlite3.Connection:
    """A connection that begins its transactions itself. Without `create`, a file that is missing is an error."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        if not create and not path.exists():
            raise StoreError(f"{path} is missing: what it held is lost, unless you bring it back from a copy")
        try:
            if create:
                with suppress(FileExistsError):
                    os.close(create_file(path))
            return _connect(path)
        except sqlite3.DatabaseError as error:
            # Two that open a new file at once both want to switch it to its log, which waits for nobody.
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise StoreUnavailable(f"can't open {path}: {error}") from error
        time.sleep(POLL_SECONDS)


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        for setting in SETTINGS:
            database.execute(f"PRAGMA {setting}")
    except BaseException:
        database.close()
        raise
    return database


@contextmanager
def writing(database: sqlite3.Connection) -> Iterator[None]:
    """A transaction that is the only writer from its first statement on."""
    try:
        database.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        raise StoreConflict(f"another task has a part for too long, or can't be written: {error}") from error
    try:
        yield
        database.execute("COMMIT")
    except BaseException as error:
        if database.in_transaction:
            database.execute("ROLLBACK")
        if isinstance(error, sqlite3.OperationalError):
            raise StoreError(f"the state can't be written: {error}") from error
        raise
