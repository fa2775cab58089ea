"""The server of the HTTP API: it binds, serves until it is told to stop, and answers all who wait before it ends."""

import ipaddress
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

import uvicorn

from penstock.errors import PenstockError, UsageError
from penstock.jobs.api import JobsApp

GRACE_SECONDS = 10
BACKLOG = 2048


def require_safe(host: str, tokens: Sequence[str]) -> None:
    """Whoever binds to where others can reach it needs a token."""
    if not tokens and not _loopback(host):
        raise UsageError(
            f"others can reach {host}, so it needs a token: --token, or the variable PENSTOCK_JOBS_TOKEN; "
            "127.0.0.1 does without"
        )
    for token in tokens:
        if not token or not token.isascii() or any(character.isspace() for character in token):
            raise UsageError("a token has at least one character, all of them ASCII, and no space")


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class JobServer(uvicorn.Server):
    """Serves an app on a port of its own: `run` in this thread, or as a context in one beside it."""

    def __init__(self, app: JobsApp, host: str = "127.0.0.1", port: int = 0) -> None:
        self._app = app
        self._socket = _bound(host, port)
        self._thread: threading.Thread | None = None
        config = uvicorn.Config(
            app, log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=GRACE_SECONDS
        )
        super().__init__(config)

    @property
    def url(self) -> str:
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def serve_until_stopped(self) -> None:
        """Serve until `stop`, SIGTERM or Ctrl-C; a second Ctrl-C leaves requests unanswered."""
        self.run(sockets=[self._socket])

    def stop(self) -> None:
        """End: who waits is answered now."""
        self.should_exit = True
        self._app.end_waiting()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.stop()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As in the base, but a signal that was heeded is not raised again: ending is what it asked for."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.serve_until_stopped, name="penstock-jobs-server", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        assert self._thread is not None
        self._thread.join()


def _bound(host: str, port: int) -> socket.socket:
    """A socket that listens already: whoever connects before the server has started is served a little later."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise PenstockError(f"can't listen on {host} port {port}: {error}") from error
