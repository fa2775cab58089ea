"""The health endpoint: its responses, and the conditions under which a worker is reported as unhealthy."""

import socket
import sys
from collections.abc import Iterator
from time import monotonic
from urllib.request import Request

import pytest
from worker_commands import PATIENCE, get

from penstock import AckPolicy, Outbox, Received, Worker
from penstock.cli import main
from penstock.model.errors import PenstockError, UsageError
from penstock.web import health
from penstock.web.health import health_addresses, report, serve_health
from penstock.worker.loops import WorkerLoop
from tests.support.processes import wait_until
from tests.support.servers import PostgresServer

ANYWHERE = "127.0.0.1:0"


@pytest.fixture(params=["sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: object) -> str:
    return f"sqlite:///{tmp_path}/events.db"


@pytest.fixture
def health_url(worker: Worker) -> Iterator[str]:
    with serve_health(ANYWHERE, lambda: report(worker.runtime)) as url:
        yield url


def test_report_counts_events_by_queue(worker: Worker, outbox: Outbox, health_url: str) -> None:
    @worker.handler("orders", types=["good"])
    def good(event: Received) -> None: ...

    @worker.handler("orders", types=["bad"], ack_policy=AckPolicy.REJECT_ON_ERROR)
    def bad(event: Received) -> None:
        raise ValueError("bad")

    for kind in ("good", "good", "bad"):
        outbox.emit(kind, queue="orders")
    worker.start()
    assert wait_until(lambda: get(health_url)[1]["queues"]["orders"]["dead"] == 1, PATIENCE)
    assert wait_until(lambda: get(health_url)[1]["queues"]["orders"]["handled"] == 2, PATIENCE)
    code, answer = get(health_url)
    assert (code, answer["claimant"]) == (200, worker.runtime and worker.runtime.claimant)
    worker.stop()
    reasons = ["worker is starting or stopping"]
    assert get(health_url) == (
        503,
        {"status": "failing", "reasons": reasons, "claimant": None, "queues": {}, "loops": {}},
    )


def test_other_requests_are_not_found(worker: Worker, health_url: str) -> None:
    assert get(health_url.replace("/health", "/"))[0] == 404
    assert get(health_url.replace("/health", "/healthy"))[0] == 404
    assert get(Request(health_url, data=b"{}", method="POST"))[0] == 404  # type: ignore[arg-type]
    assert get(f"{health_url}?verbose")[0] == 503


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_died_loop_is_reported_but_completed_loop_is_not(worker: Worker) -> None:
    worker.handler("orders")(print)
    worker.start()
    running = worker.runtime
    assert running is not None
    done, dead = WorkerLoop("done", lambda: None), WorkerLoop("dead", _die)
    for loop in (done, dead):
        running.loops.append(loop)
        loop.start()
        assert loop.join(monotonic() + PATIENCE)
    assert report(running)["reasons"] == ["the dead loop has ended"]
    running.loops.remove(dead)
    assert report(running)["status"] == "ok"


def _die() -> float:
    raise SystemExit


# The pool does not close the connections of other threads when the store disposes of it; they are garbage-collected.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <function BaseConnection:pytest.PytestUnraisableExceptionWarning"
)
def test_outage_makes_worker_unhealthy_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with PostgresServer(fsync=False) as server:
        worker = Worker(server.create_database())
        worker.handler("orders")(print)
        with Outbox(worker.prepare().store) as outbox:
            outbox.store.initialise()
        worker.start()
        try:
            with serve_health(ANYWHERE, lambda: report(worker.runtime)) as url:
                _through_an_outage(server, url, monkeypatch)
        finally:
            worker.stop()


def _through_an_outage(server: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert get(url)[0] == 200
    server.stop()
    assert wait_until(lambda: bool(get(url)[1]["loops"]["fetch of orders"]["trouble"]), PATIENCE)
    assert get(url)[0] == 200  # still healthy: the outage is shorter than PATIENCE_SECONDS
    monkeypatch.setattr(health, "PATIENCE_SECONDS", 0.0)
    code, answer = get(url)
    assert (code, answer["status"]) == (503, "failing")
    assert any(why.startswith("the fetch of orders loop has been failing for 0 s: ") for why in answer["reasons"])
    server.start()
    assert wait_until(lambda: get(url)[0] == 200, PATIENCE)


def test_each_process_has_port() -> None:
    assert health_addresses("[::1]:8080", 3) == ["[::1]:8080", "[::1]:8081", "[::1]:8082"]
    assert health_addresses("0.0.0.0:65534", 2) == ["0.0.0.0:65534", "0.0.0.0:65535"]
    assert health_addresses("127.0.0.1:0", 2) == ["127.0.0.1:0", "127.0.0.1:0"]
    with pytest.raises(UsageError, match="3 processes need ports up to 65536, and the highest is 65535"):
        health_addresses("0.0.0.0:65534", 3)


def test_port_in_use_is_named_in_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(PenstockError, match=f"cannot listen on 127.0.0.1 port {port}: .*in use"),
            serve_health(f"127.0.0.1:{port}", dict),
        ):
            pass


def test_missing_extra_is_named_in_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delitem(sys.modules, "penstock.web.health")
    monkeypatch.setitem(sys.modules, "penstock.web.server", None)
    assert main(["worker", "shop:worker", "--health", ANYWHERE]) == 2
    message = "error: --health requires an extra that is not installed; run: pip install 'penstock[worker]'\n"
    assert capsys.readouterr().err == message
