"""HTTP server: binds its port at construction, serves an ASGI app until stopped, then finishes open requests."""

import ipaddress
import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Self
from weakref import WeakSet

import uvicorn
from starlette.types import ASGIApp

from penstock.model.errors import PenstockError, UsageError

GRACE_SECONDS = 10
BACKLOG = 2048

_servers: "WeakSet[HttpServer]" = WeakSet()


def _close_in_child() -> None:
    """Close the inherited sockets in a forked child, which would keep the port open after the parent has ended."""
    for server in list(_servers):
        descriptor = server.socket.detach()  # close() would wait for the event loop, which may hold a reference
        if descriptor >= 0:
            os.close(descriptor)


os.register_at_fork(after_in_child=_close_in_child)


def require_safe(host: str, tokens: Sequence[str], remedy: str) -> None:
    """Refuse to serve other machines without a token. `remedy` names the option that sets one."""
    if not tokens and not _loopback(host):
        raise UsageError(f"missing token for {host!r}, which other machines can reach; set {remedy}, or use 127.0.0.1")
    for token in tokens:
        if not token or not token.isascii() or any(character.isspace() for character in token):
            raise UsageError("invalid token; expected one or more ASCII characters without white space")


def parse_address(text: str, option: str) -> tuple[str, int]:
    """Parse HOST:PORT; an IPv6 address is in brackets."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise UsageError(f"invalid address {text!r} for {option}; use HOST:PORT, such as 127.0.0.1:8080")
    return host, int(port)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class HttpServer(uvicorn.Server):
    """Serves an app on a new socket: `serve_until_stopped` in the caller's thread, a `with` block in another thread.

    `on_stop` is called when the server begins to stop, so that the app can answer waiting requests.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        on_stop: Callable[[], None] | None = None,
        grace_seconds: int = GRACE_SECONDS,
        name: str = "penstock-http",
    ) -> None:
        self._on_stop = on_stop
        self._name = name
        self.socket = _bound(host, port)
        self._thread: threading.Thread | None = None
        config = uvicorn.Config(
            app,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=grace_seconds,
        )
        super().__init__(config)
        _servers.add(self)

    @property
    def port(self) -> int:
        number: int = self.socket.getsockname()[1]
        return number

    @property
    def url(self) -> str:
        host, port = self.socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def serve_until_stopped(self) -> None:
        """Serve until `stop`, SIGTERM or Ctrl-C; a second Ctrl-C leaves requests unanswered."""
        self.run(sockets=[self.socket])

    def stop(self) -> None:
        """Stop accepting requests and finish the open ones."""
        self.should_exit = True
        if self._on_stop is not None:
            self._on_stop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Stop; unlike the base class, keep no signal to be raised again after the server has stopped."""
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.stop()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.serve_until_stopped, name=self._name, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        assert self._thread is not None
        self._thread.join()


def _bound(host: str, port: int) -> socket.socket:
    """Return a listening socket: connections wait in its backlog until the server has started."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise PenstockError(f"cannot listen on {host} port {port}: {error}") from error
