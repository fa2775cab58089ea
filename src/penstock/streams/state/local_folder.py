"""Common code of the state stores on local disk: the stream's folder, its epoch and state partitions, and fencing.

<folder>/<stream>/stream.db       the epoch and the number of state partitions
<folder>/<stream>/part-00003.db   the epoch and the token of one state partition, and with SQLite all its data
With RocksDB the data is in part-00003.rocks; the process that has it open locks part-00003.lock.
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
# The WAL may grow to 64 MB before a checkpoint: keys are spread over the file, so a page changed by several commits is
# written to the file once. The statement journal stays in memory: in a file, a write of many states would write every
# page once more.
SETTINGS = (
    "journal_mode = WAL",
    "synchronous = FULL",
    "wal_autocheckpoint = 16000",
    "cache_size = -32000",
    "temp_store = MEMORY",
)

# Maximum number of state partitions held open: the number of open files of a process is limited.
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
# If two drivers start at once, the slower one must not restore its lower epoch.
RAISE_EPOCH = """
    INSERT INTO fence (one, epoch, token) VALUES (1, ?, '')
    ON CONFLICT (one) DO UPDATE SET epoch = excluded.epoch WHERE excluded.epoch > epoch
"""


class FolderState(ABC):
    """A state store in a folder: the code that does not depend on the format of the state partitions.

    The URL names the folder. `sqlite:///state` is relative to the current folder; `sqlite:////state` is absolute.
    """

    shared = False

    def __init__(self, url: str) -> None:
        _, _, path = url.partition("://")
        if not path.startswith("/") or not path.strip("/"):
            raise UsageError(f"invalid state URL {mask_url(url)}; expected a folder such as sqlite:///state")
        self.url = url
        self._path = Path(path[1:])

    def start(self, stream: str, parts: int) -> Started:
        started, complete = self._take_epoch(stream, parts)
        for number in range(started.parts):
            self._prepare(self._part(stream, number), started.epoch, create=not complete)
        if not complete:  # from now on, a missing file means lost data
            with closing(open_database(self._of(stream) / "stream.db")) as database, writing(database):
                database.execute("UPDATE stream SET complete = 1 WHERE name = ?", (stream,))
        return started

    @contextmanager
    def held(self, stream: str) -> Iterator[None]:
        """Keep the stream's files open between tasks. When the last connection to a file is closed, SQLite writes the
        whole WAL back, page by page and with two fsyncs. Otherwise each task would close the last connection."""
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
        """Do nothing: no connection stays open between calls."""
        return

    def _take_epoch(self, stream: str, parts: int) -> tuple[Started, bool]:
        """Take the stream's next epoch. Also return True if all its state partitions were created before."""
        if parts < 1:
            raise UsageError(f"parts must be at least 1, got {parts}")
        folder = self._of(stream)
        try:
            make_folder(folder)
        except OSError as error:
            raise StoreUnavailable(f"cannot create {folder}: {error}") from error
        with closing(open_database(folder / "stream.db", create=True)) as database, writing(database):
            database.execute(STREAM_TABLE)
            if other := database.execute("SELECT name FROM stream WHERE name <> ?", (stream,)).fetchone():
                raise UsageError(
                    f"{self._path} ignores case, so stream {stream!r} would share the folder of stream {other[0]!r}; "
                    "choose another name"
                )
            *found, complete = database.execute(TAKE_EPOCH, (stream, parts, uuid4().hex)).fetchone()
        return Started(stream, *found), bool(complete)

    def _paths(self, stream: str) -> list[Path]:
        found = _look(self._of(stream))
        if found is None or found.stream != stream:
            raise UsageError(f"stream {stream!r} does not exist in {self._path}")
        return [self._part(stream, number) for number in range(found.parts)]

    def _part(self, stream: str, number: int) -> Path:
        return self._of(stream) / f"part-{number:05}.db"

    def _of(self, stream: str) -> Path:
        name = quote(stream, safe=" ").replace(".", "%2E")  # the name ".." would be the parent folder
        if not 0 < len(name) <= LONGEST_FOLDER_NAME or "\x00" in stream:
            raise UsageError(
                f"invalid stream name {stream!r}; expected 1 to {LONGEST_FOLDER_NAME} characters without NUL, "
                "after percent-encoding"
            )
        return self._path / name

    @abstractmethod
    def _prepare(self, path: Path, epoch: int, *, create: bool) -> None:
        """Raise the epoch of a state partition; create the files first if the state partition is new."""

    @abstractmethod
    def _reading(self, path: Path, keys: Collection[str] | None) -> AbstractContextManager[Iterator[tuple[str, Saved]]]:
        """Open a state partition and return its states by key."""

    @abstractmethod
    def _forget(self, path: Path, older_than_seconds: float) -> int: ...


def _look(folder: Path) -> Started | None:
    """Return the stream in a folder, as it was last started; None if the folder has no completely created stream."""
    if not (folder / "stream.db").exists():
        return None
    with closing(open_database(folder / "stream.db")) as database:
        try:
            row = database.execute("SELECT name, epoch, parts, identity FROM stream WHERE complete").fetchone()
        except sqlite3.DatabaseError as error:
            if "no such table" in str(error):
                return None  # another process is about to create the table
            raise StoreError(f"cannot read {folder / 'stream.db'}: {error}") from error
    return row and Started(*row)


class Fence:
    """Fence of a state partition, which admits one task. Its lock is the write lock of the state partition's SQLite
    file, held from the check to the commit, so that no other driver or task can intervene."""

    def __init__(self, database: sqlite3.Connection, started: Started, number: int) -> None:
        self._database = database
        self._started = started
        self._part = f"state partition {number} of stream {started.stream!r}"
        self._token = started.token().hex

    def take(self) -> None:
        """Set this task's token. Raise `Superseded` if another driver has taken a newer epoch, and `Fenced` if a task
        of a later Spark job has set its token."""
        with writing(self._database):
            if self._check_epoch() >= self._started.first_later_token().hex:
                raise Fenced(f"a task of a later job has taken {self._part}; this task makes no changes")
            self._database.execute("UPDATE fence SET token = ?", (self._token,))

    @contextmanager
    def epoch_held(self) -> Iterator[None]:
        """Open a transaction; raise `Superseded` if another driver has taken a newer epoch."""
        with writing(self._database):
            self._check_epoch()
            yield

    @contextmanager
    def held(self) -> Iterator[None]:
        """Open a transaction; raise `Superseded` if another driver has taken a newer epoch, and `Fenced` if another
        task has set its token."""
        with writing(self._database):
            if self._check_epoch() != self._token:
                raise Fenced(f"another task has taken {self._part}; changes of this task are discarded")
            yield

    def _check_epoch(self) -> str:
        epoch, token = self._database.execute("SELECT epoch, token FROM fence").fetchone() or (0, "")
        if epoch != self._started.epoch:
            raise Superseded(
                f"another driver has started stream {self._started.stream!r}: its epoch is {epoch}, "
                f"this driver's is {self._started.epoch}"
            )
        return str(token)


def open_database(path: Path, *, create: bool = False) -> sqlite3.Connection:
    """Open a connection without implicit transactions. A missing file is an error, unless `create` is set."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        if not create and not path.exists():
            raise StoreError(f"{path} does not exist; restore it from a backup")
        try:
            if create:
                with suppress(FileExistsError):
                    os.close(create_file(path))
            return _connect(path)
        except sqlite3.DatabaseError as error:
            # Switching a new file to WAL ignores the busy time-out, so it fails if two processes open the file at once.
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise StoreUnavailable(f"cannot open {path}: {error}") from error
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
    """Open a transaction that holds the write lock from its first statement on."""
    try:
        database.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        raise StoreConflict(f"cannot lock the state for writing: {error}") from error
    try:
        yield
        database.execute("COMMIT")
    except BaseException as error:
        if database.in_transaction:
            database.execute("ROLLBACK")
        if isinstance(error, sqlite3.OperationalError):
            raise StoreError(f"cannot write the state: {error}") from error
        raise
