"""The broker's side of HTTP. It listens only while its process may be the broker, and only to who knows the secret,
which stands in the document: whoever may read the queue may also ask its broker."""

import hmac
import json
import logging
import os
import socket
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from weakref import WeakSet

from penstock.errors import PenstockError, UsageError
from penstock.store.objects.address import Address
from penstock.store.objects.client import ANSWERED, ELSEWHERE, FORBIDDEN, PATH, REFUSED, SECRET
from penstock.store.objects.commit import Committer, NotTheBroker, Request
from penstock.store.objects.verbs import CHANGES, LOOKS

log = logging.getLogger(__name__)

WRONG, FAILED = 400, 500
BODY_LIMIT = 256 * 1024 * 1024
EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104


_servers: "WeakSet[BrokerServer]" = WeakSet()


def _leave_to_parent() -> None:
    """A forked child closes what it inherited: else its parent's port would take connections when that is long dead."""
    for server in list(_servers):
        server.socket.close()


os.register_at_fork(after_in_child=_leave_to_parent)


class BrokerServer(ThreadingHTTPServer):
    """Answers for a committer. Every connection has a thread, which waits with its caller."""

    daemon_threads = True
    request_queue_size = 256
    committer: Committer | None = None

    def __init__(self, address: Address, secret: str) -> None:
        host, _, port = address.listen.rpartition(":")
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host.strip("[]"), int(port)), _Handler)
        except (OSError, ValueError, OverflowError) as error:
            raise UsageError(f"the broker can't listen at {address.listen!r}: {error}; say listen=host:port") from error
        self.secret = secret
        self.address = address.advertise or self._advertised(host)
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._stopping = False
        self._thread = threading.Thread(target=self._serve, name="penstock-broker", daemon=True)
        self._thread.start()
        _servers.add(self)

    def _advertised(self, host: str) -> str:
        return f"{socket.gethostname() if host.strip('[]') in EVERYWHERE else host}:{self.server_address[1]}"

    def _serve(self) -> None:
        """Until it is stopped, which it notices at once: the server's own loop would look up only now and then."""
        while True:
            try:
                request, client_address = self.get_request()
            except OSError:
                if self._stopping:
                    return
                time.sleep(0.01)  # too many files are open, say
                continue
            self.process_request(request, client_address)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        log.debug("a client of the broker went away", exc_info=True)

    def stop(self) -> None:
        self._stopping = True
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # closing alone would leave the thread waiting
        self._thread.join()
        self.server_close()
        with self._lock:
            left = list(self._connections)
        for connection in left:  # their threads are waiting for a next request that won't come
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def answer(self, asked: Any) -> tuple[int, Any]:
        """A status, and what goes with it."""
        committer = self.committer
        verb, args = asked["verb"], asked["args"]
        try:
            if committer is None:
                raise NotTheBroker(None)
            if verb in LOOKS:
                return ANSWERED, committer.look(verb, args)
            if verb not in CHANGES:
                return REFUSED, ("NotSupported", f"this broker doesn't know the verb {verb!r}: upgrade it")
            if not committer.leads:
                raise NotTheBroker(None)
            deadline = time.monotonic() + float(asked["seconds"])
            request = Request(verb, args, str(asked["session"]), int(asked["number"]), deadline)
            return ANSWERED, committer.change(request)
        except NotTheBroker:
            return ELSEWHERE, None
        except PenstockError as error:
            return REFUSED, (type(error).__name__, str(error))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: BrokerServer

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length", "0"))
        if self.path != PATH or not self._knows_the_secret():
            self.close_connection = True
            self._send(FORBIDDEN, "the secret is not this broker's")
            return
        if length > BODY_LIMIT:
            self.close_connection = True
            self._send(WRONG, "the request is too long")
            return
        try:
            asked = json.loads(self.rfile.read(length))
            status, answer = self.server.answer(asked)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            log.warning("a request to the broker can't be read: %r", error)
            status, answer = WRONG, "the request can't be read"
        except Exception as error:
            log.exception("a request to the broker failed")
            status, answer = FAILED, repr(error)
        self._send(status, answer)

    def _knows_the_secret(self) -> bool:
        return hmac.compare_digest(self.headers.get(SECRET, "").encode(), self.server.secret.encode())

    def _send(self, status: int, answer: Any) -> None:
        body = json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()
        head = f"HTTP/1.1 {status} .\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self.wfile.write(head.encode() + body)  # in one piece: two would wait for each other's acknowledgement

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)
