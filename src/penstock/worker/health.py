"""How a worker is, as JSON, and the small HTTP endpoint that says so: for probes of orchestrators and for people."""

import json
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from time import monotonic
from types import TracebackType
from typing import Any, Self

from penstock import telemetry
from penstock.errors import PenstockError, UsageError
from penstock.worker.loops import Loop
from penstock.worker.running import Running
from penstock.worker.subscription import Subscription

Report = Mapping[str, Any]

OK, FAILING = "ok", "failing"
PATH = "/health"
HIGHEST_PORT = 65_535
# A loop may stumble: a database that is restarted is no reason to be restarted as well.
PATIENCE_SECONDS = 10.0
CLIENT_SECONDS = 5.0


def report(running: Running | None) -> dict[str, Any]:
    """How one process is. What keeps it from being ok is in `reasons`."""
    if running is None:
        return {
            "status": FAILING,
            "reasons": ["it is starting or stopping"],
            "claimant": None,
            "queues": {},
            "loops": {},
        }
    if running.over:
        reasons = ["it is stopping"]
    elif not running.loops:
        reasons = ["it is starting"]
    else:
        reasons = [why for loop in running.loops if (why := _fault(loop))]
    return {
        "status": FAILING if reasons else OK,
        "reasons": reasons,
        "claimant": running.claimant,
        "queues": _queues(running.subscriptions),
        "loops": {loop.name: {"alive": loop.alive, "trouble": loop.trouble} for loop in running.loops},
    }


def _fault(loop: Loop) -> str | None:
    if not loop.alive and not loop.done:
        return f"the {loop.name} loop is dead"
    since = loop.troubled_at
    if since is not None and monotonic() - since > PATIENCE_SECONDS:
        return f"the {loop.name} loop has been in trouble for {monotonic() - since:.0f} s: {loop.trouble}"
    return None


def _queues(subscriptions: Sequence[Subscription]) -> dict[str, dict[str, Any]]:
    """By queue; where it has several handlers, all of them together, and the fetch that is the longest ago."""
    queues: dict[str, dict[str, Any]] = {}
    now = monotonic()
    for one in subscriptions:
        counted = {"running": len(one.holdings.running), "queued": one.holdings.queued, **one.counts}
        ago = None if one.fetched_at is None else round(now - one.fetched_at, 3)
        known = queues.setdefault(one.queue, {**dict.fromkeys(counted, 0), "fetched_seconds_ago": ago})
        for name, number in counted.items():
            known[name] += number
        known["fetched_seconds_ago"] = None if ago is None else max(ago, known["fetched_seconds_ago"] or 0.0)
    return queues


# -- the endpoint ----------------------------------------------------------------------------------------------


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT, where an IPv6 address stands in brackets."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise UsageError(
            f"{text!r} is no address for --health; one looks like 127.0.0.1:8080, and port 0 is a free one"
        )
    return host, int(port)


def health_addresses(text: str, processes: int) -> list[str]:
    """Return an address for each process: consecutive ports from the given one on, or port 0 for all."""
    first = parse_address(text)[1]
    last = first + processes - 1
    if first == 0:
        return [text] * processes
    if last > HIGHEST_PORT:
        needed = f"{processes} processes need ports up to {last}"
        raise UsageError(f"--health {text}: {needed}, and the highest is {HIGHEST_PORT}; use a lower port")
    host = text.rpartition(":")[0]
    return [f"{host}:{port}" for port in range(first, last + 1)]


class HealthServer:
    """`GET /health` on its own threads: 200 if `look` says ok, else 503."""

    def __init__(self, address: tuple[str, int], look: Callable[[], Report]) -> None:
        host, port = address
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._server = _Server(address, family, look)
        except OSError as error:
            raise PenstockError(f"health can't be served on {host}:{port}: {error.strerror or error}") from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="penstock-health", daemon=True)

    @property
    def url(self) -> str:
        host, port = self._server.socket.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}{PATH}"

    def __enter__(self) -> Self:
        self._thread.start()
        telemetry.info("health is served", url=self.url)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], family: int, look: Callable[[], Report]) -> None:
        self.address_family = family
        self.look = look
        super().__init__(address, _Answer)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTP's own one asks the name servers for a name that nobody needs

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that leaves in mid-answer is no news."""


class _Answer(BaseHTTPRequestHandler):
    server: _Server
    server_version = "penstock"
    sys_version = ""
    timeout = CLIENT_SECONDS

    def __getattr__(self, name: str) -> Any:
        """Whatever is asked for (`do_GET`, `do_POST`, …) is answered here."""
        if name.startswith("do_"):
            return self._respond
        raise AttributeError(name)

    def _respond(self) -> None:
        if self.command not in ("GET", "HEAD") or self.path.partition("?")[0] != PATH:
            self._answer(404, {"error": f"there is only GET {PATH}"})
            return
        found = self.server.look()
        self._answer(200 if found["status"] == OK else 503, found)

    def _answer(self, code: int, content: Report) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("cache-control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Probes come every few seconds: nothing to tell."""
