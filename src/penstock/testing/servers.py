"""Real servers for tests and benchmarks: on free ports, in temporary folders, and gone afterwards.

    with PostgresServer(fsync=False) as server:
        url = server.create_database()

A server keeps its data and its port over `stop`, `kill` and `start`, until `close` or the end of the `with`.
None outlives the process that started it, not even after a SIGKILL: a `Guard` sees to that.
"""

import atexit
import os
import signal
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Literal, LiteralString, Self
from uuid import uuid4

from penstock.config import needs_extra
from penstock.testing.installations import find_postgres, find_valkey, within_reach
from penstock.testing.processes import (
    Account,
    Guard,
    ServerFailed,
    free_port,
    living,
    spawn,
    temporary_folder,
    unprivileged_account,
    wait_until,
)

START_SECONDS = 60.0
STOP_SECONDS = 60.0
LOG_LINES = 20
SUPERUSER = "penstock"
# Shared memory as files of the data folder: elsewhere a killed server would leave a megabyte behind each time, and
# a container has 64 of them.
UNSAFE_SETTINGS = {"fsync": "off", "full_page_writes": "off", "dynamic_shared_memory_type": "mmap"}


class Server(ABC):
    """One server process with its folder: what PostgreSQL and Valkey have in common."""

    name: ClassVar[str]
    end_signal: ClassVar[signal.Signals]
    """What ends the server and its children at once, for a guard that is left alone with it."""

    def __init__(self, *, fsync: bool = True, settings: Mapping[str, object] | None = None) -> None:
        self.fsync = fsync
        self.settings = dict(settings or {})
        self.port = 0
        self._account: Account | None = None
        self._folder: Path | None = None
        self._guard: Guard | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def folder(self) -> Path:
        assert self._folder is not None, f"{self.name} was not started"
        return self._folder

    def start(self) -> None:
        """Start, and wait until it answers. After a failure nothing is left of it."""
        if self.running:
            return
        try:
            if self._folder is None:
                self._settle_in()
            self._launch()
        except BaseException:
            self.close()
            raise

    def stop(self) -> None:
        """Stop it in good order; the data stay."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Stop and start again, on the same port and data."""
        self.stop()
        self.start()

    def kill(self) -> None:
        """End it as a crash would: at once, and without a last word."""
        if self.running:
            os.killpg(self.pid, signal.SIGKILL)
            self._reap()

    def close(self) -> None:
        """Stop it and remove its folder. A forked child that ends leaves its parent's server alone."""
        if self._owner != os.getpid():
            return
        try:
            self.stop()
        finally:
            if self._guard is not None:
                self._guard.dismiss()
            self._guard = self._folder = None
            atexit.unregister(self.close)

    @abstractmethod
    def _prepare(self) -> None:
        """Find the binaries and lay out the folder, once."""

    @abstractmethod
    def _command(self) -> list[str]:
        """What to execute."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether this very server, and not another on its port, takes requests."""

    def _settle_in(self) -> None:
        self._folder = temporary_folder(f"penstock-{self.name.lower()}-", self._account)
        self._guard = Guard(self._folder, self.end_signal)
        atexit.register(self.close)
        self._prepare()
        self.port = self.port or free_port()

    def _launch(self) -> None:
        process = self._spawn(self._command())
        if not wait_until(lambda: not self.running or self._answers(), START_SECONDS):
            raise self._failure(f"{self.name} didn't answer within {START_SECONDS:.0f} s")
        if not self.running:
            raise self._failure(f"{self.name} ended with status {process.returncode} as it started")

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        assert self._guard is not None
        self._process = spawn(command, log=self._log, folder=self.folder, account=self._account)
        self._guard.watch(self.pid)
        return self._process

    def _end(self, how: signal.Signals) -> None:
        if not self.running:
            return
        os.kill(self.pid, how)
        try:
            self._reap()
        except subprocess.TimeoutExpired:
            self.kill()
            raise self._failure(f"{self.name} didn't stop within {STOP_SECONDS:.0f} s and was killed") from None

    def _reap(self) -> int:
        assert self._process is not None
        assert self._guard is not None
        status = self._process.wait(STOP_SECONDS)
        self._guard.watch(None)
        return status

    @property
    def _log(self) -> Path:
        return self.folder / "server.log"

    def _failure(self, what: str) -> ServerFailed:
        tail = self._log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return ServerFailed("\n".join([f"{what}; its log ends:", *tail]))


class PostgresServer(Server):
    """A PostgreSQL cluster with a superuser `penstock`, whom it trusts, on 127.0.0.1 only.

    With `fsync=False` it starts and commits faster, and still survives its own crash, though not the machine's.
    """

    name = "PostgreSQL"
    end_signal = signal.SIGQUIT
    _binaries: Path

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/{database}"

    def create_database(self, name: str | None = None) -> str:
        """Create a database, under a fresh name unless one is given, and return its URL."""
        name = name or f"penstock_{uuid4().hex[:16]}"
        self._execute("CREATE DATABASE {}", name)
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop a database that `create_database` made, whoever is still connected to it."""
        self._execute("DROP DATABASE {} WITH (FORCE)", url.rpartition("/")[2])

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop it: `fast` in good order, `immediate` so that the next start has to recover."""
        self._end(signal.SIGINT if mode == "fast" else signal.SIGQUIT)

    def kill(self) -> None:
        """End it as a crash would: the server and, because they could still commit, each of its backends."""
        if not self.running:
            return
        # Each backend has a session of its own, so no group holds them; while frozen, the server starts no more.
        os.kill(self.pid, signal.SIGSTOP)
        backends = [pid for pid, parent in living().items() if parent == self.pid]
        super().kill()
        for pid in backends:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: living().keys().isdisjoint(backends), STOP_SECONDS)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _settle_in(self) -> None:
        with needs_extra("A PostgreSQL server for tests", "testing,postgres"):
            import psycopg  # noqa: F401
        self._account = unprivileged_account()
        super()._settle_in()

    def _prepare(self) -> None:
        self._binaries = within_reach(find_postgres(), self._account, self.folder)
        options = ["--auth=trust", "--no-locale", "--encoding=UTF8", "--no-sync", "--no-instructions"]
        self._spawn([str(self._binaries / "initdb"), f"--pgdata={self._data}", f"--username={SUPERUSER}", *options])
        if status := self._reap():
            raise self._failure(f"initdb ended with status {status}")

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            **({} if self.fsync else UNSAFE_SETTINGS),
            **self.settings,
        }
        options = [option for name, value in settings.items() for option in ("-c", f"{name}={value}")]
        return [str(self._binaries / "postgres"), "-D", str(self._data), *options]

    def _answers(self) -> bool:
        import psycopg

        try:
            with psycopg.connect(self.url(), connect_timeout=5) as connection:
                return connection.execute("SHOW data_directory").fetchone() == (str(self._data),)
        except psycopg.OperationalError:
            return False

    def _execute(self, statement: LiteralString, database: str) -> None:
        import psycopg
        from psycopg import sql

        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(sql.Identifier(database)))


class ValkeyServer(Server):
    """A Valkey server on 127.0.0.1 whose append-only file keeps what it acknowledged over its own crash.

    With `fsync=True` over the machine's crash too.
    """

    name = "Valkey"
    end_signal = signal.SIGKILL
    _binary: Path

    def url(self, database: int = 0) -> str:
        return f"valkey://127.0.0.1:{self.port}/{database}"

    def _prepare(self) -> None:
        self._binary = find_valkey()

    def _command(self) -> list[str]:
        settings = {
            "bind": "127.0.0.1",
            "port": self.port,
            "dir": self.folder,
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always" if self.fsync else "no",
            **self.settings,
        }
        options = [option for name, value in settings.items() for option in (f"--{name}", str(value))]
        return [str(self._binary), *options]

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(b"PING\r\nINFO server\r\nQUIT\r\n")
                lines = connection.makefile("rb").read().splitlines()
        except OSError:
            return False
        # While it loads its file, it answers the PING with an error.
        return lines[:1] == [b"+PONG"] and b"process_id:%d" % self.pid in lines
