"""Opens RocksDB for the parts of a stream: one process has a database at a time, and others may look at it."""

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
    """A database that this process has open, and a lock that tells others so. RocksDB has its own, but to be refused by
    that takes a millisecond of work, and who waits for a database is refused often."""

    database: "Rdict"
    lock: IO[bytes]

    def close(self) -> None:
        try:
            self.database.close()
        finally:
            self.lock.close()


class Leaving(threading.Thread):
    """Closes a database when its files are merged as far as they are to be.

    It takes longer than to commit, and all that counts is on disk by then: nobody waits for it but who opens it next.
    To close RocksDB while it merges throws that work away, to be begun anew after the next commit, and with many keys
    it would come to no end.
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
        except Exception as error:  # every commit is on disk: it is opened as after a crash
            log.warn("state_partition_not_closed", error=brief(error))

    def _await_merges(self) -> None:
        """Until nothing is merged any more, or a task wants the database. What is due begins soon, or not at all."""
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
        """The database, open as it was, if it is not closed by now."""
        self._wanted.set()
        self.join()
        return self._held if self._kept else None


class Opened:
    """The databases that this process has open. RocksDB opens one only once, so its tasks share what is there."""

    _lock = threading.Lock()
    _users: ClassVar[dict[Path, tuple[HeldDatabase, int]]] = {}
    _leaving: ClassVar[dict[Path, Leaving]] = {}

    @classmethod
    @contextmanager
    def at(cls, path: Path, *, create: bool = False) -> Iterator["Rdict"]:
        """The database. Another process that has it may be a task that ends: it is waited for a little."""
        path = path.resolve()
        if not create and not (path / "CURRENT").exists():
            raise StoreError(f"{path} is missing: what it held is lost, unless you bring it back from a copy")
        deadline = time.monotonic() + OPEN_SECONDS
        while (held := cls._join(path)) is None:
            if time.monotonic() > deadline:
                raise StoreUnavailable(f"another process has {path} open, and doesn't let go of it")
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
        """Wait for those that are being closed."""
        with cls._lock:
            while cls._leaving:
                cls._leaving.popitem()[1].join()


def _open(path: Path) -> HeldDatabase | None:
    """The database, or None while another process has it."""
    from rocksdict import Rdict

    with ExitStack() as stack:
        try:
            lock = stack.enter_context(path.with_suffix(".lock").open("ab"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = HeldDatabase(Rdict(str(path), _options()), lock)
        except BlockingIOError:
            return None
        except Exception as error:
            if "/LOCK:" in str(error):  # who had it is about to be gone
                return None
            raise StoreError(f"can't open {path}: {error}") from error
        stack.pop_all()
        return held


@contextmanager
def follower(path: Path) -> Iterator["Rdict"]:
    """The database as committed, beside the process that has it open."""
    from rocksdict import AccessType, Rdict

    with tempfile.TemporaryDirectory(prefix="penstock-") as own:
        try:
            database = Rdict(str(path), _options(), access_type=AccessType.secondary(own))
        except Exception as error:
            raise StoreError(f"can't read {path}: {error}") from error
        try:
            database.try_catch_up_with_primary()
            yield database
        finally:
            database.close()


def _options() -> "Options":
    from rocksdict import BlockBasedOptions, DBCompactionStyle, DBCompressionType, Options

    blocks = BlockBasedOptions()
    blocks.set_bloom_filter(10, False)  # most arrivals are not there, and are known not to be without a read
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(DBCompressionType.lz4())
    # What was written lately is merged with its like. By levels, every few commits would write all of a part again.
    options.set_compaction_style(DBCompactionStyle.universal())
    options.set_max_open_files(-1)  # followers need it
    options.set_max_file_opening_threads(1)  # a part has few files, and is opened by every task: threads take longer
    options.set_keep_log_file_num(2)
    # Nobody asks for them, and they have a thread that is started and ended with each task.
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    # What is in memory is slower to search than what is on disk behind its filters: little of it, with its own filter.
    options.set_write_buffer_size(8 * 2**20)
    options.set_memtable_whole_key_filtering(True)
    options.set_memtable_prefix_bloom_ratio(0.1)
    return options
