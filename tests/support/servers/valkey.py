"""A Valkey server for tests."""

import signal
import socket
from pathlib import Path

from tests.support.installations import find_valkey
from tests.support.servers.base import Server


class ValkeyServer(Server):
    """A Valkey server on 127.0.0.1 with an append-only file: acknowledged writes survive a crash of the server.

    With `fsync=True`, acknowledged writes also survive a crash of the machine.
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
        # While the server loads its file, it answers PING with an error.
        return lines[:1] == [b"+PONG"] and b"process_id:%d" % self.pid in lines
