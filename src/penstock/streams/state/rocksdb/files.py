"""Open the RocksDB databases of state partitions. One process at a time has a database open; other processes can read
it."""

import fcntl
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, ClassVar, NamedTuple

from penstock.model.errors import StoreError, StoreUnavailable
from penstock.model.text import brief
from penstock.telemetry import log

if TYPE_CHECKING:
    from rocksdict import Options, Rdict

OPEN_SECONDS = 20.0
POLL_SECONDS = 0.002
POLLS_FOR_DUE = 10
MERGES_RUNNING = "rocksdb.num-running-compactions"
MERGES_DUE = "rocksdb.compaction-pending"


class HeldDatabase(NamedTuple):
    """A database that this process has open, with a file lock that excludes other processes. RocksDB has its own lock,
    but a refused open takes a millisecond of work, and a process that waits for a database is refused often."""

    database: "Rdict"
    lock: IO[bytes]

    def close(self) -> None:
        try:
            self.database.close()
        finally:
            self.lock.close()


class Leaving(threading.Thread):
    """Thread that closes a database once its due compactions have finished.

    Closing takes longer than committing, but all committed data is on disk, so only the next task that opens the
    database waits. RocksDB discards a running compaction when it is closed. The compaction would start again after the
    next commit, and with many keys it would never finish.
    """

    def __init__(self, held: HeldDatabase) -> None:
        super().__init__(name="penstock-closing")
        self._held = held
        self._wanted = threading.Event()
        self._kept = False

    def run(self) -> None:
        try:
            with ExitStack() as stack:
                stack.callback(self._held.close)
                self._held.database.flush()
                self._await_merges()
                if self._wanted.is_set():
                    stack.pop_all()
                    self._kept = True
        except Exception as error:  # all commits are on disk, so the next open recovers as after a crash
            log.warn("state_partition_not_closed", error=brief(error))

    def _await_merges(self) -> None:
        """Wait until no compaction is running, or a task requests the database. Wait only `POLLS_FOR_DUE` polls for a
        due compaction: it starts soon, or not at all."""
        polls, number_of = 0, self._held.database.property_int_value
        while polls < POLLS_FOR_DUE and not self._wanted.is_set():
            if number_of(MERGES_RUNNING):
                polls = 0
            elif number_of(MERGES_DUE):
                polls += 1
            else:
                return
            self._wanted.wait(POLL_SECONDS)

    def back(self) -> HeldDatabase | None:
        """Stop waiting. Return the database if it is still open, else None."""
        self._wanted.set()
        self.join()
        return self._held if self._kept else None


class Opened:
    """Databases that this process has open. A process can open a RocksDB database only once, so its tasks share it."""

    _lock = threading.Lock()
    _users: ClassVar[dict[Path, tuple[HeldDatabase, int]]] = {}
    _leaving: ClassVar[dict[Path, Leaving]] = {}

    @classmethod
    @contextmanager
    def at(cls, path: Path, *, create: bool = False) -> Iterator["Rdict"]:
        """Open the database, or share the open one. If it is open in another process, wait up to `OPEN_SECONDS`: the
        process may be a task that is about to end."""
        path = path.resolve()
        if not create and not (path / "CURRENT").exists():
            raise StoreError(f"{path} does not exist; restore it from a backup")
        deadline = time.monotonic() + OPEN_SECONDS
        while (held := cls._join(path)) is None:
            if time.monotonic() > deadline:
                raise StoreUnavailable(f"cannot open {path}: another process has it open")
            time.sleep(POLL_SECONDS)
        try:
            yield held.database
        finally:
            cls._leave(path)

    @classmethod
    def _join(cls, path: Path) -> HeldDatabase | None:
        with cls._lock:
            leaving = cls._leaving.pop(path, None)
            opened, users = cls._users.get(path) or (leaving and leaving.back(), 0)
            opened = opened or _open(path)
            if opened is not None:
                cls._users[path] = opened, users + 1
            return opened

    @classmethod
    def _leave(cls, path: Path) -> None:
        with cls._lock:
            held, users = cls._users.pop(path)
            if users > 1:
                cls._users[path] = held, users - 1
            else:
                leaving = cls._leaving[path] = Leaving(held)
                leaving.start()

    @classmethod
    def settle(cls) -> None:
        """Wait until all databases that are being closed are closed."""
        with cls._lock:
            while cls._leaving:
                cls._leaving.popitem()[1].join()


def _open(path: Path) -> HeldDatabase | None:
    """Open the database. Return None while another process has it."""
    from rocksdict import Rdict

    with ExitStack() as stack:
        try:
            lock = stack.enter_context(path.with_suffix(".lock").open("ab"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = HeldDatabase(Rdict(str(path), _options()), lock)
        except BlockingIOError:
            return None
        except Exception as error:
            if "/LOCK:" in str(error):  # the process that had it is about to exit
                return None
            raise StoreError(f"cannot open {path}: {error}") from error
        stack.pop_all()
        return held


@contextmanager
def follower(path: Path) -> Iterator["Rdict"]:
    """Open the committed data for reading, while another process may have the database open."""
    from rocksdict import AccessType, Rdict

    with tempfile.TemporaryDirectory(prefix="penstock-") as own:
        try:
            database = Rdict(str(path), _options(), access_type=AccessType.secondary(own))
        except Exception as error:
            raise StoreError(f"cannot read {path}: {error}") from error
        try:
            database.try_catch_up_with_primary()
            yield database
        finally:
            database.close()


def _options() -> "Options":
    from rocksdict import BlockBasedOptions, DBCompactionStyle, DBCompressionType, Options

    blocks = BlockBasedOptions()
    blocks.set_bloom_filter(10, False)  # most inbox keys are new, and the filter answers without a read
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(DBCompressionType.lz4())
    # Universal compaction merges recently written files of similar size. Leveled compaction would rewrite a whole state
    # partition every few commits.
    options.set_compaction_style(DBCompactionStyle.universal())
    options.set_max_open_files(-1)  # required by `follower`
    # A state partition has few files, and each task opens them: threads take longer.
    options.set_max_file_opening_threads(1)
    options.set_keep_log_file_num(2)
    # Disable unused statistics: their thread would start and end with each task.
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    # Searching the memtable is slower than searching filtered files: keep the memtable small, with its own filter.
    options.set_write_buffer_size(8 * 2**20)
    options.set_memtable_whole_key_filtering(True)
    options.set_memtable_prefix_bloom_ratio(0.1)
    return options
