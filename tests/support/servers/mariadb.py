"""A MariaDB server for tests and benchmarks."""

import signal
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from penstock.config.extras import needs_extra
from tests.support.installations import find_mariadb
from tests.support.processes import unprivileged_account
from tests.support.servers.base import Server

USER = "penstock"
# Written to the operating system at every commit, but not flushed to the disk.
UNSAFE_SETTINGS = {"innodb-flush-log-at-trx-commit": 2}
_ACCOUNT = f"'{USER}'@'127.0.0.1'"
# The server runs these statements at every start.
_FIRST_LINES = f"""
CREATE USER IF NOT EXISTS {_ACCOUNT} IDENTIFIED BY '{USER}';
GRANT ALL PRIVILEGES ON *.* TO {_ACCOUNT} WITH GRANT OPTION;
"""


class MariadbServer(Server):
    """A MariaDB server on 127.0.0.1 with the user `penstock`, password `penstock`, who has all privileges.

    With `fsync=False` commits are faster, and survive a crash of the server but not of the machine. `settings` are
    options of `mariadbd`.
    """

    name = "MariaDB"
    end_signal = signal.SIGKILL
    _binary: Path
    _installer: Path

    def url(self, database: str = "mysql", *, user: str = USER, password: str = USER) -> str:
        return f"mysql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def create_database(self, name: str | None = None) -> str:
        """Create a database with the given or a new name, and return its URL."""
        name = name or f"penstock_{uuid4().hex[:16]}"
        self.execute(f"CREATE DATABASE `{name}`")
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop a database made by `create_database`, even if clients are connected."""
        name = url.rpartition("/")[2]
        import pymysql

        for (number,) in self.execute("SELECT id FROM information_schema.processlist WHERE db = %s", name):
            with suppress(pymysql.OperationalError):  # the connection may have ended in the meantime
                self.execute(f"KILL CONNECTION {number}")
        self.execute(f"DROP DATABASE `{name}`")

    def execute(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        """Run one statement as the user with all privileges and return its rows."""
        import pymysql

        options = {"host": "127.0.0.1", "port": self.port, "user": USER, "password": USER, "autocommit": True}
        with pymysql.connect(**options, connect_timeout=5) as connection, connection.cursor() as cursor:
            cursor.execute(statement, values)
            return list(cursor.fetchall())

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _settle_in(self) -> None:
        with needs_extra("A MariaDB server for tests", "mysql"):
            import pymysql  # noqa: F401
        self._account = unprivileged_account()
        super()._settle_in()

    def _prepare(self) -> None:
        self._binary, self._installer = find_mariadb()
        (self.folder / "first.sql").write_text(_FIRST_LINES)
        (self.folder / "first.sql").chmod(0o644)
        options = ["--skip-test-db", "--auth-root-authentication-method=normal", "--skip-name-resolve"]
        self._spawn([str(self._installer), "--no-defaults", f"--datadir={self._data}", *options])
        if status := self._reap():
            raise self._failure(f"mariadb-install-db ended with status {status}")

    def _command(self) -> list[str]:
        settings = {
            "datadir": self._data,
            "bind-address": "127.0.0.1",
            "port": self.port,
            "socket": self.folder / "socket",
            "pid-file": self.folder / "pid",
            "init-file": self.folder / "first.sql",
            "skip-name-resolve": 1,
            **({} if self.fsync else UNSAFE_SETTINGS),
            **self.settings,
        }
        return [str(self._binary), "--no-defaults", *(f"--{name}={value}" for name, value in settings.items())]

    def _answers(self) -> bool:
        import pymysql

        try:
            return self.execute("SELECT @@datadir") == [(f"{self._data}/",)]
        except (pymysql.Error, OSError):
            return False
