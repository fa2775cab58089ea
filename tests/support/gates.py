"""A TCP proxy between client and server, to show that a client sends a whole batch before it waits for responses.

    with Gate(server.port) as gate:
        gate.hold_answers(until=b"marker", count=100)
        ...                                # a client that waits for each response would wait forever

The proxy can also drop a response, so that a client doesn't know if the server executed the request:

        gate.cut_answers(to=b"PUT ", count=1)

`delay_seconds` delays each response, to simulate a distant server in benchmarks.

`connections` counts the connections of clients. Bytes pass unchanged. No test needs to measure time.
"""

import selectors
import socket
import threading
from contextlib import suppress
from typing import Self

CHUNK = 65_536


class Gate:
    """A TCP proxy on 127.0.0.1 that can withhold the server's responses until the client has sent enough."""

    def __init__(self, target_port: int, port: int = 0, *, delay_seconds: float = 0.0) -> None:
        self._target = ("127.0.0.1", target_port)
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self._delay = delay_seconds
        self.connections = 0
        self._marker = b""
        self._wanted = 0
        self._sent = b""
        self._cut_marker = b""
        self._cuts = 0
        self._open = threading.Event()
        self._open.set()
        self._over = threading.Event()
        self._held: list[socket.socket] = []
        threading.Thread(target=self._accept, name="gate", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._open.set()
        with suppress(OSError):
            # close() alone would leave the thread blocked in accept(), and the port open.
            self._listener.shutdown(socket.SHUT_RDWR)
        for each in (self._listener, *self._held):
            each.close()

    @property
    def holding(self) -> bool:
        return not self._open.is_set()

    def hold_answers(self, *, until: bytes, count: int) -> None:
        """Withhold all responses until the client has sent `until` `count` times."""
        self._marker, self._wanted, self._sent = until, count, b""
        self._open.clear()

    @property
    def cuts_left(self) -> int:
        return self._cuts

    def cut_answers(self, *, to: bytes, count: int) -> None:
        """Forward the next `count` requests that contain `to`, but close both sides when the server responds."""
        self._cut_marker, self._cuts = to, count

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                continue
            self.connections += 1
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            self._held += [client, server]
            threading.Thread(target=self._pass, args=[client, server], name="gate-pass", daemon=True).start()

    def _pass(self, client: socket.socket, server: socket.socket) -> None:
        """Forward bytes in both directions until either side closes the connection."""
        cut = False
        with selectors.DefaultSelector() as ready, client, server:
            ready.register(client, selectors.EVENT_READ)
            ready.register(server, selectors.EVENT_READ)
            while not self._over.is_set():
                for key, _ in ready.select(0.05):
                    if key.fileobj is server and self.holding:
                        continue
                    if key.fileobj is server and cut:
                        return
                    if key.fileobj is server and self._delay:
                        self._over.wait(self._delay)
                    try:
                        moved = self._move(client, server) if key.fileobj is client else _move(server, client)
                    except OSError:
                        return
                    if not moved:
                        return
                    cut = cut or (key.fileobj is client and self._is_cut(moved))

    def _is_cut(self, data: bytes) -> bool:
        """True if the response to this request must be dropped."""
        if not self._cuts or self._cut_marker not in data:
            return False
        self._cuts -= 1
        return True

    def _move(self, client: socket.socket, server: socket.socket) -> bytes:
        data = client.recv(CHUNK)
        server.sendall(data)
        if self.holding:
            self._sent += data
            if self._sent.count(self._marker) >= self._wanted:
                self._open.set()
        return data


def _move(source: socket.socket, target: socket.socket) -> bytes:
    data = source.recv(CHUNK)
    target.sendall(data)
    return data
