"""A minimal NATS server that acknowledges some messages, then closes the connection or stops answering."""

import re
import socket
import threading
from contextlib import suppress
from typing import Any, Self

GREETING = b'INFO {"server_id":"half-deaf","max_payload":1048576,"headers":true}\r\n'


class HalfDeafServer:
    """Acknowledges the first `answers` messages of its first connection, and all messages of later connections."""

    def __init__(self, *, answers: int, hang_up: bool) -> None:
        self.connections = 0
        self.ids: list[bytes] = []
        self.asked = threading.Event()
        self._answers, self._hang_up = answers, hang_up
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with connection, connection.makefile("rwb") as stream, suppress(OSError):
                self._talk(stream, self._answers if self.connections == 1 else -1)
                # Read to the end before closing: with unread data, the system would discard answers in transit.
                connection.shutdown(socket.SHUT_WR)
                stream.read()

    def _talk(self, stream: Any, left: int) -> None:
        stream.write(GREETING)
        stream.flush()
        for line in stream:
            if line.startswith(b"PING"):
                stream.write(b"PONG\r\n")
            elif line.startswith(b"HPUB"):
                self._hear(stream, line)
                if left == 0 and self._hang_up:
                    return
                if left != 0:
                    stream.write(self._acknowledgement(line))
                    left -= 1
            stream.flush()

    def _hear(self, stream: Any, line: bytes) -> None:
        content = stream.read(int(line.split()[-1]) + 2)
        self.ids += re.findall(rb"Nats-Msg-Id: (\S+)", content)
        self.asked.set()

    def _acknowledgement(self, line: bytes) -> bytes:
        body = b'{"stream":"EVENTS","seq":1}'
        return b"MSG %b 1 %d\r\n%b\r\n" % (line.split()[2], len(body), body)
