"""Health report of a worker process, and its HTTP endpoint for the probes of orchestrators. Needs the extra `web`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from penstock.model.errors import UsageError
from penstock.telemetry import log
from penstock.web.auth import ProblemResponse
from penstock.web.server import HttpServer, parse_address
from penstock.worker.loops import WorkerLoop
from penstock.worker.runtime import Running
from penstock.worker.subscription import Subscription

Report = Mapping[str, Any]

OK, FAILING = "ok", "failing"
PATH = "/health"
HIGHEST_PORT = 65_535
# Tolerate a loop's errors for this long: a database restart must not restart the workers as well.
PATIENCE_SECONDS = 10.0


def report(running: Running | None) -> dict[str, Any]:
    """Report the health of a worker process. `reasons` lists the faults."""
    loops = running.loops if running else []
    if running is None:
        reasons = ["worker is starting or stopping"]
    elif running.over:
        reasons = ["worker is stopping"]
    elif not loops:
        reasons = ["worker is starting"]
    else:
        reasons = [why for loop in loops if (why := _fault(loop))]
    return {
        "status": FAILING if reasons else OK,
        "reasons": reasons,
        "claimant": running.claimant if running else None,
        "queues": _queues(running.subscriptions if running else ()),
        "loops": {loop.name: {"alive": loop.alive, "trouble": loop.error} for loop in loops},
    }


def _fault(loop: WorkerLoop) -> str | None:
    if not loop.alive and not loop.done:
        return f"the {loop.name} loop has ended"
    since = loop.failing_since
    if since is not None and monotonic() - since > PATIENCE_SECONDS:
        return f"the {loop.name} loop has been failing for {monotonic() - since:.0f} s: {loop.error}"
    return None


def _queues(subscriptions: Sequence[Subscription]) -> dict[str, dict[str, Any]]:
    """Return the counts by queue, summed over the queue's handlers, and the seconds since the least recent fetch."""
    queues: dict[str, dict[str, Any]] = {}
    now = monotonic()
    for one in subscriptions:
        counted = {"running": len(one.buffer.running), "queued": one.buffer.queued, **one.counts}
        ago = None if one.fetched_at is None else round(now - one.fetched_at, 3)
        known = queues.setdefault(one.queue, {**dict.fromkeys(counted, 0), "fetched_seconds_ago": ago})
        for name, number in counted.items():
            known[name] += number
        known["fetched_seconds_ago"] = None if ago is None else max(ago, known["fetched_seconds_ago"] or 0.0)
    return queues


# -- the endpoint ----------------------------------------------------------------------------------------------


def health_addresses(text: str, processes: int) -> list[str]:
    """Return an address for each process: consecutive ports from the given one on, or port 0 for all."""
    first = parse_address(text, "--health")[1]
    last = first + processes - 1
    if first == 0:
        return [text] * processes
    if last > HIGHEST_PORT:
        needed = f"{processes} processes need ports up to {last}"
        raise UsageError(f"invalid address {text!r} for --health: {needed}, and the highest is {HIGHEST_PORT}")
    host = text.rpartition(":")[0]
    return [f"{host}:{port}" for port in range(first, last + 1)]


@contextmanager
def serve_health(address: str, look: Callable[[], Report]) -> Iterator[str]:
    """Serve `GET /health` on a thread: 200 if `look` reports ok, else 503. Yield the URL."""
    with HttpServer(create_app(look), *parse_address(address, "--health"), name="penstock-health") as server:
        url = f"{server.url}{PATH}"
        log.info("health_served", url=url)
        yield url


def create_app(look: Callable[[], Report]) -> Starlette:
    """Return the application that serves the report of `look`."""

    async def answer(_: Request) -> JSONResponse:
        found = look()
        return JSONResponse(found, 200 if found["status"] == OK else 503, {"Cache-Control": "no-store"})

    def refuse(_: Request, error: Exception) -> ProblemResponse:  # noqa: ARG001
        return ProblemResponse(404, f"only GET {PATH} is supported")

    return Starlette(routes=[Route(PATH, answer)], exception_handlers={404: refuse, 405: refuse})
