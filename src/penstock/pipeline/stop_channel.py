"""The stop channel: running tasks learn that they are to stop, by a connection that the driver closes.

The connection also breaks when the driver is killed. Nothing is ever sent.
"""

import select
import socket
import threading

_BACKLOG = 1024


class StopLine:
    """The driver's end: a listening socket, and the connections of the running tasks."""

    def __init__(self, host: str, bind_address: str) -> None:
        self._server = socket.create_server((bind_address, 0), backlog=_BACKLOG)
        self._server.setblocking(False)
        self._held: list[socket.socket] = []
        self._open = True
        self._lock = threading.Lock()
        self.address: tuple[str, int] = (host, self._server.getsockname()[1])

    def __enter__(self) -> "StopLine":
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()

    def answer(self) -> int:
        """Accept new connections, close those of ended workers; return the number of new ones."""
        with self._lock:
            if not self._open:
                return 0
            gone = set(select.select(self._held, [], [], 0)[0])
            for connection in gone:
                connection.close()
            self._held = [connection for connection in self._held if connection not in gone]
            kept = len(self._held)
            while select.select([self._server], [], [], 0)[0]:
                self._held.append(self._server.accept()[0])
            return len(self._held) - kept

    def hang_up(self) -> None:
        with self._lock:
            self._open = False
            for connection in (self._server, *self._held):
                connection.close()


# On the worker

_lines: dict[tuple[str, int], socket.socket] = {}


def line_to(address: tuple[str, int]) -> socket.socket | None:
    """Return this worker's connection to the driver, kept from slice to slice; None if the driver has closed it."""
    if address not in _lines:
        for stale in _lines.values():
            stale.close()
        _lines.clear()
        try:
            _lines[address] = socket.create_connection(address, timeout=10)
        except OSError:
            return None
    return _lines[address]


def hung_up(line: socket.socket | None) -> bool:
    """True if the driver has closed the connection."""
    return line is None or bool(select.select([line], [], [], 0)[0])
