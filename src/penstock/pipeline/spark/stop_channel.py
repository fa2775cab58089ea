"""The stop channel: a connection from each running task to the driver, closed by the driver to request a stop.

The connection also breaks when the driver is killed. A task first sends the token of the channel, since other users of
the driver's machine can connect as well. Nothing is sent after the token.
"""

import hmac
import secrets
import select
import selectors
import socket
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_UNKNOWN = 128
"""Maximum number of connections without a complete token. Beyond it, the driver closes the oldest one."""
_BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class StopAddress:
    """Address that tasks connect to, and the token that they send."""

    host: str
    port: int
    token: str = field(repr=False)


class StopChannel:
    """The driver's end: a listening socket, and the connections of the running tasks.

    A thread accepts connections at once, so that those of other programs cannot fill the listening socket's queue.
    """

    def __init__(self, host: str, bind_address: str) -> None:
        self._server = socket.create_server((bind_address, 0), backlog=_BACKLOG)
        self._server.setblocking(False)
        self.address = StopAddress(host, self._server.getsockname()[1], secrets.token_hex(32))
        self._token = self.address.token.encode()
        # This selector uses epoll or kqueue: select() fails from the 1,024th descriptor of a process on.
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        for one in (self._server, self._woken):
            self._selector.register(one, selectors.EVENT_READ)
        self._unknown: dict[socket.socket, bytes] = {}
        """Bytes received from each connection without a complete token, the oldest connection first."""
        self._new = 0
        self._open = True
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="penstock-stop-channel", daemon=True)

    def __enter__(self) -> "StopChannel":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()

    def answer(self) -> int:
        """Return the number of tasks that have connected since the last call."""
        with self._lock:
            for _ in range(_BACKLOG):
                if not self._open or not self._handle():
                    break
            new, self._new = self._new, 0
            return new

    def hang_up(self) -> None:
        with self._lock:
            if not self._open:
                return
            self._open = False
            self._wake.close()
            for key in list(self._selector.get_map().values()):
                if key.fileobj is not self._woken:
                    self._close(cast(socket.socket, key.fileobj))
        self._thread.join()
        self._woken.close()
        self._selector.close()

    def _serve(self) -> None:
        while True:
            self._selector.select()
            with self._lock:
                if not self._open:
                    return
                self._handle()

    def _handle(self) -> bool:
        """Read the received data and accept at most one connection; return whether any socket was ready."""
        ready = [cast(socket.socket, key.fileobj) for key, _ in self._selector.select(0)]
        for connection in ready:
            if connection is not self._server:
                self._read(connection)
        if self._server in ready:
            self._accept()
        return bool(ready)

    def _accept(self) -> None:
        try:
            connection = self._server.accept()[0]
        except OSError:  # the client has disconnected
            return
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ)
        self._unknown[connection] = b""
        self._read(connection)
        if len(self._unknown) > MOST_UNKNOWN:
            self._close(next(iter(self._unknown)))

    def _read(self, connection: socket.socket) -> None:
        """Read the token of a new connection, or close the connection of a task.

        A task sends nothing after its token, so its connection is readable only after the task's process has closed it.
        """
        sent = self._unknown.get(connection)
        try:
            data = connection.recv(1 if sent is None else len(self._token) - len(sent))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if sent is None or not data:
            self._close(connection)
        elif len(sent := sent + data) < len(self._token):
            self._unknown[connection] = sent
        elif hmac.compare_digest(sent, self._token):
            del self._unknown[connection]
            self._new += 1
        else:
            self._close(connection)

    def _close(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        self._unknown.pop(connection, None)
        connection.close()


def open_channel(spark: "SparkSession") -> StopChannel:
    """Create a channel at the address where executors reach the driver."""
    configuration = spark.sparkContext.getConf()
    host = configuration.get("spark.driver.host") or "127.0.0.1"
    return StopChannel(host, configuration.get("spark.driver.bindAddress") or host)


# In the Python worker process

_connections: dict[StopAddress, socket.socket] = {}


def connection_to(address: StopAddress) -> socket.socket | None:
    """Return this process's connection to the driver, reused in later slices; None if connecting fails."""
    if address not in _connections or hung_up(_connections[address]):
        for stale in _connections.values():
            stale.close()
        _connections.clear()
        try:
            connection = socket.create_connection((address.host, address.port), timeout=10)
            connection.sendall(address.token.encode())
        except OSError:
            return None
        _connections[address] = connection
    return _connections[address]


def hung_up(connection: socket.socket | None) -> bool:
    """True if the driver has closed the connection, or none could be opened."""
    return connection is None or bool(select.select([connection], [], [], 0)[0])
