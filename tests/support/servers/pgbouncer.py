"""PgBouncer for tests: a pooler in front of a PostgreSQL server."""

import signal
from pathlib import Path

from tests.support.installations import find_pgbouncer
from tests.support.processes import unprivileged_account
from tests.support.servers.base import Server
from tests.support.servers.postgres import SUPERUSER, PostgresServer


class PgBouncer(Server):
    """A PgBouncer on 127.0.0.1 with transaction pooling. `settings` are options of its configuration file."""

    name = "PgBouncer"
    end_signal = signal.SIGKILL
    _binary: Path

    def __init__(self, behind: PostgresServer, *, settings: dict[str, object] | None = None) -> None:
        super().__init__(settings=settings)
        self._behind = behind

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/{database}"

    def url_for(self, url: str) -> str:
        """Return the URL of a server's database by way of this pooler."""
        return self.url(url.rpartition("/")[2])

    def _settle_in(self) -> None:
        self._account = unprivileged_account()
        super()._settle_in()

    def _prepare(self) -> None:
        self._binary = find_pgbouncer()

    def _command(self) -> list[str]:
        users, configuration = self.folder / "users.txt", self.folder / "pgbouncer.ini"
        users.write_text(f'"{SUPERUSER}" ""\n')
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": users,
            "pool_mode": "transaction",
            "ignore_startup_parameters": "extra_float_digits",
            **self.settings,
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        databases = f"* = host=127.0.0.1 port={self._behind.port} user={SUPERUSER}"
        configuration.write_text("\n".join(["[databases]", databases, "[pgbouncer]", *lines, ""]))
        return [str(self._binary), str(configuration)]

    def _answers(self) -> bool:
        import psycopg

        try:
            with psycopg.connect(self.url(), connect_timeout=5, prepare_threshold=None) as connection:
                return connection.execute("SHOW port").fetchone() == (str(self._behind.port),)
        except psycopg.OperationalError:
            return False
