"""A NATS server with JetStream for tests."""

import json
import signal
import socket
from pathlib import Path

from tests.support.installations import find_nats
from tests.support.servers.base import Server


class NatsServer(Server):
    """A NATS server on 127.0.0.1 with streams in files, which survive a crash of the server.

    With `fsync=True`, acknowledged messages also survive a crash of the machine. `settings` are options of the
    configuration file, such as `max_payload`, `authorization` or `tls`.
    """

    name = "NATS"
    end_signal = signal.SIGKILL
    _binary: Path

    def url(self, credentials: str = "") -> str:
        """Return the server's URL; `credentials` are `user:password` or a token."""
        return f"nats://{credentials and credentials + '@'}127.0.0.1:{self.port}"

    def _prepare(self) -> None:
        self._binary = find_nats()

    def _command(self) -> list[str]:
        configuration = self.folder / "nats.conf"
        settings = {
            "server_name": self._known_as,
            "host": "127.0.0.1",
            "port": self.port,
            "jetstream": {
                "store_dir": str(self.folder / "jetstream"),
                **({"sync_interval": "always"} if self.fsync else {}),
            },
            **self.settings,
        }
        configuration.write_text(json.dumps(settings, indent=2))
        return [str(self._binary), "--config", str(configuration)]

    @property
    def _known_as(self) -> str:
        return self.folder.name

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                greeting = connection.makefile("rb").readline()
        except OSError:
            return False
        # The server listens only after the recovery of its streams.
        return greeting.startswith(b"INFO ") and json.loads(greeting[5:])["server_name"] == self._known_as
