"""HTTP servers that receive webhooks.

`Receiver` runs in a thread, and a test decides each response. `ReceiverProcess` runs in a separate process that can be
stopped, frozen and restarted, and stores the accepted requests in a file.
"""

import base64
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

from penstock.model.event import Delivery
from penstock.model.outcome import Outcome
from penstock.publish.api import Publisher
from penstock.publish.topics import Routing
from tests.support.servers import Server

TOO_LARGE = 200_000
UNKNOWN_TOPIC = "nobody.listens"
GUARDED = "Basic " + base64.b64encode(b"clerk:right-secret").decode()


class Request(NamedTuple):
    """A received request. Header names are in lower case."""

    path: str
    headers: Mapping[str, str]
    body: bytes


class Answer(NamedTuple):
    """The response to send. Without a status, the connection is closed instead."""

    status: int | None = 204
    headers: Mapping[str, str] = {}
    body: bytes = b""
    reason: str | None = None


Decision = Callable[[Request], Answer]
TAKEN = Answer()
HANG_UP = Answer(None)


class Receiver:
    """Serves in threads of this process. `answer` returns the response for each request."""

    def __init__(
        self, answer: Callable[[Request], Answer], *, tls: ssl.SSLContext | None = None, port: int = 0
    ) -> None:
        self.answer = answer
        self.connections = 0
        self.requests: list[Request] = []
        self._server = _Server(("127.0.0.1", port), self, tls)
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.02])

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def serve(self) -> None:
        self._server.serve_forever()


class _Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = False  # closing the server waits for the threads, so that no socket outlives a test

    def __init__(self, address: tuple[str, int], receiver: Receiver, tls: ssl.SSLContext | None) -> None:
        self.receiver, self.tls = receiver, tls
        self._open: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Do the TLS handshake in the connection's thread. A failed handshake closes the connection silently."""
        self.receiver.connections += 1
        try:
            if self.tls is not None:
                request = self.tls.wrap_socket(request, server_side=True)
        except OSError:
            request.close()
            return
        self._open.add(request)
        super().process_request_thread(request, client_address)
        self._open.discard(request)

    def server_close(self) -> None:
        for connection in list(self._open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # the connection has ended meanwhile
        super().server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore connection errors, as when a client closes the connection."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def do_GET(self) -> None:
        self._send(Answer(200, body=str(os.getpid()).encode()))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        request = Request(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
        assert len(request.headers) == len(self.headers), "a header came twice"
        self.server.receiver.requests.append(request)
        self._send(self.server.receiver.answer(request))

    def _send(self, answer: Answer) -> None:
        if answer.status is None:
            self.close_connection = True
            return
        self.send_response(answer.status, answer.reason)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.status != 204 and "content-length" not in answer.headers:
            self.send_header("content-length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, *_: object) -> None:
        """Log nothing: tests inspect the requests instead."""


class ReceiverProcess(Server):
    """Accepts requests to /topics/…, and to /guarded/… only with the credentials GUARDED."""

    name = "Receiver"
    end_signal = signal.SIGKILL

    def taken(self) -> list[Request]:
        """Return all requests that were answered with success, oldest first, across restarts."""
        lines = self._taken.read_text().splitlines() if self._taken.exists() else []
        return [Request(path, headers, base64.b64decode(body)) for path, headers, body in map(json.loads, lines)]

    def forget(self) -> None:
        self._taken.unlink(missing_ok=True)

    @property
    def _taken(self) -> Path:
        return self.folder / "taken.jsonl"

    def _prepare(self) -> None: ...

    def _command(self) -> list[str]:
        return [sys.executable, __file__, str(self.port), str(self._taken)]

    def _answers(self) -> bool:
        try:
            connection = HTTPConnection("127.0.0.1", self.port, timeout=5)
            connection.request("GET", "/")
            return connection.getresponse().read() == str(self.pid).encode()
        except OSError:
            return False
        finally:
            connection.close()


def keep(request: Request, file: Path) -> Answer:
    """Reject unwanted requests; store any other before answering with success."""
    if len(request.body) > TOO_LARGE:
        return Answer(413, body=b"that is too much")
    if request.path.endswith(UNKNOWN_TOPIC):
        return Answer(404, body=b"no such topic here")
    if request.path.startswith("/guarded") and request.headers.get("authorization") != GUARDED:
        return Answer(401, {"www-authenticate": "Basic"}, b"who are you?")
    line = json.dumps([request.path, dict(request.headers), base64.b64encode(request.body).decode()]) + "\n"
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line.encode())  # a single write, so that concurrent writers do not mix
    os.close(descriptor)
    return TAKEN


def only_outcome(publisher: Publisher, event: Delivery) -> Outcome:
    """Publish one event in a single batch and return its outcome."""
    [(seq, outcome)] = publisher.publish(Routing().route([event])).items()
    assert seq == event.seq
    return outcome


class Certificate(NamedTuple):
    """A self-signed certificate for 127.0.0.1."""

    certificate: Path
    key: Path


def make_certificate(folder: Path) -> Certificate:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    made = Certificate(folder / "certificate.pem", folder / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=receiver"]
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-out", made.certificate, "-keyout", made.key]
    subprocess.run([*command, *files], check=True, capture_output=True)
    return made


if __name__ == "__main__":
    Receiver(lambda request: keep(request, Path(sys.argv[2])), port=int(sys.argv[1])).serve()
