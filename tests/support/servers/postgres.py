"""A PostgreSQL server for tests and benchmarks."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Literal, LiteralString
from uuid import uuid4

from penstock.config.extras import needs_extra
from tests.support.installations import find_postgres, within_reach
from tests.support.processes import living, unprivileged_account, wait_until
from tests.support.servers.base import STOP_SECONDS, Server

SUPERUSER = "penstock"
# mmap keeps dynamic shared memory in files of the data folder. Elsewhere each killed server would leave a megabyte
# behind, and a container has 64 megabytes.
UNSAFE_SETTINGS = {"fsync": "off", "full_page_writes": "off", "dynamic_shared_memory_type": "mmap"}


class PostgresServer(Server):
    """A PostgreSQL cluster on 127.0.0.1 with the superuser `penstock` and no password.

    With `fsync=False` start and commits are faster, and commits survive a crash of the server but not of the machine.
    """

    name = "PostgreSQL"
    end_signal = signal.SIGQUIT
    _binaries: Path

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/{database}"

    def create_database(self, name: str | None = None) -> str:
        """Create a database with the given or a new name, and return its URL."""
        name = name or f"penstock_{uuid4().hex[:16]}"
        self._execute("CREATE DATABASE {}", name)
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop a database made by `create_database`, even if clients are connected."""
        self._execute("DROP DATABASE {} WITH (FORCE)", url.rpartition("/")[2])

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server: `fast` with a clean shutdown, `immediate` so that the next start recovers."""
        self._end(signal.SIGINT if mode == "fast" else signal.SIGQUIT)

    def kill(self) -> None:
        """Kill the server to simulate a crash, and each of its backends, because a backend could still commit."""
        if not self.running:
            return
        # Each backend has its own session, so no process group contains all. While suspended, the server starts no
        # backend.
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
