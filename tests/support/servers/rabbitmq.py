"""A RabbitMQ server for tests."""

import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from tests.support.installations import find_rabbitmq
from tests.support.processes import ServerFailed, free_port, living, wait_until
from tests.support.servers.base import STOP_SECONDS, Server

USER = "guest"
DEFAULT_VHOST = "/"

# Erlang nodes find each other through a daemon, epmd, that normally never ends. This epmd ends with the server, which
# alone holds the other end of the pipe.
_SCRIPT = """
    (epmd -address 127.0.0.1 & cat < alive; kill $!) &
    exec 3> alive
    until epmd -names; do sleep 0.05; done > names.log 2>&1
    exec "$@"
"""


class RabbitServer(Server):
    """A RabbitMQ node on 127.0.0.1, without plugins, with the user `guest` and the virtual host `/`.

    The node confirms a persistent message once it is on disk, regardless of `fsync`. `settings` are lines of
    rabbitmq.conf.
    """

    name = "RabbitMQ"
    end_signal = signal.SIGKILL
    _binaries: Path
    _distribution_port: int
    _mapper_port: int

    def url(self, vhost: str = DEFAULT_VHOST, user: str = USER, password: str = USER) -> str:
        return f"amqp://{user}:{password}@127.0.0.1:{self.port}/{quote(vhost, safe='')}"

    def control(self, *arguments: str) -> str:
        """Run `rabbitmqctl` with these arguments and return its output."""
        command = ["env", *self._environment(), str(self._binaries / "rabbitmqctl"), "--quiet", *arguments]
        done = subprocess.run(command, cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise ServerFailed(f"rabbitmqctl {' '.join(arguments)} failed: {done.stdout}{done.stderr}")
        return done.stdout

    def family(self) -> set[int]:
        """Return the server's process and all its descendants."""
        if not self.running:
            return set()
        family, parents = {self.pid}, living()
        while more := {pid for pid, parent in parents.items() if parent in family} - family:
            family |= more
        return family

    def stop(self) -> None:
        """Shut the server down cleanly. Its data is kept."""
        family = self.family()
        super().stop()
        _end_all(family)

    def kill(self) -> None:
        """Kill the server and its descendants to simulate a crash."""
        family = self.family()
        super().kill()
        _end_all(family)

    def _prepare(self) -> None:
        self._binaries = find_rabbitmq()
        self._distribution_port = free_port()
        os.mkfifo(self.folder / "alive")
        (self.folder / "enabled_plugins").write_text("[].\n")

    def _command(self) -> list[str]:
        # Use a new port each time: the previous epmd may have been killed just before, and its port still be in use.
        self._mapper_port = free_port()
        settings = {
            "listeners.tcp.1": f"127.0.0.1:{self.port}",
            "log.file": "false",
            "log.console": "true",
            "log.console.formatter": "plaintext",
            "log.console.level": "warning",
            **self.settings,
        }
        lines = [f"{name} = {value}\n" for name, value in settings.items()]
        (self.folder / "rabbitmq.conf").write_text("".join(lines))
        program = [str(self._binaries / "rabbitmq-server"), "-noinput"]
        return ["env", *self._environment(), "sh", "-c", _SCRIPT, "rabbitmq", *program]

    def _environment(self) -> list[str]:
        return [
            f"HOME={self.folder}",
            f"ERL_EPMD_PORT={self._mapper_port}",
            "ERL_AFLAGS=-start_epmd false",
            f"RABBITMQ_NODENAME={self._node}@localhost",
            f"RABBITMQ_NODE_PORT={self.port}",
            f"RABBITMQ_DIST_PORT={self._distribution_port}",
            f"RABBITMQ_MNESIA_BASE={self.folder / 'data'}",
            f"RABBITMQ_LOG_BASE={self.folder / 'log'}",
            f"RABBITMQ_CONFIG_FILE={self.folder / 'rabbitmq.conf'}",
            f"RABBITMQ_CONF_ENV_FILE={self.folder / 'no-rabbitmq-env.conf'}",
            f"RABBITMQ_ENABLED_PLUGINS_FILE={self.folder / 'enabled_plugins'}",
            # With this variable, the script is replaced by the server instead of being its parent: signals reach the
            # server.
            "RABBITMQ_ALLOW_INPUT=1",
        ]

    def _answers(self) -> bool:
        """Return True if the port's greeting names this server's node. The server opens the port last: it is ready."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(b"AMQP\x00\x00\x09\x01")
                greeting = connection.recv(4_096)
        except OSError:
            return False
        return f"{self._node}@".encode() in greeting

    @property
    def _node(self) -> str:
        return f"penstock-{self.port}"


def _end_all(pids: set[int]) -> None:
    """Wait for processes that end with their server; kill those that are too slow."""
    if not wait_until(lambda: living().keys().isdisjoint(pids), 5):
        for pid in pids & living().keys():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: living().keys().isdisjoint(pids), STOP_SECONDS)
