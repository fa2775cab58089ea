"""Every example runs unchanged and prints the expected output."""

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, EXAMPLES / name, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_transactions() -> None:
    lines = run("transactions.py").splitlines()
    assert [line.split()[0] for line in lines] == ["order.placed", "shop.opened"]
    assert '"amount":42' in lines[0]


def test_claim_and_settle() -> None:
    assert run("claim_and_settle.py").splitlines() == [
        "claimed 3: 1 published, 1 retried, 1 dead",
        "claimed 1: 1 published, 0 retried, 0 dead",
    ]


def test_jobs_over_http() -> None:
    assert run("jobs_over_http.py").splitlines() == [
        "completed: {'sent_to': 'ada', 'attempts': 1}",
        "completed: {'sent_to': 'bob', 'attempts': 2}",
        "dead: invalid payload: to: Field required",
        "dead: the order was cancelled",
        "[{'type': 'email:send', 'pending': 0, 'claimed': 0, 'completed': 2, 'dead': 2}]",
    ]


def test_worker(tmp_path: Path) -> None:
    assert run("worker.py", str(tmp_path)).splitlines() == [
        "mail for order 1 sent at attempt 2",
        "mail for order 2 sent at attempt 2",
        "mail for order 3 sent at attempt 2",
        "turnover: 60",
    ]


@pytest.mark.spark
@pytest.mark.slow
def test_spark_stream() -> None:
    output = run("spark_stream.py")
    assert output.splitlines()[:3] == ["c0 14850", "c1 14950", "c2 15050"]
    assert "|PUBLISHED|  300|" in output


@pytest.mark.spark
@pytest.mark.slow
def test_analyse_events(tmp_path: Path) -> None:
    output = run("analyse_events.py", str(tmp_path / "latency.png"))
    for row in ("|invoice.sent|     DEAD|   20|", "|  order.paid|PUBLISHED|  100|", "|order.placed|PUBLISHED|  200|"):
        assert row in output
    assert re.search(r"\|invoice\.sent\|.*broken.*\|\s+20\|", output)
    assert re.search(r"\|order\.placed\|(\s*[\d.]+\|){3}\s+200\|", output)
    assert (tmp_path / "latency.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.spark
@pytest.mark.slow
def test_relay_with_step() -> None:
    assert run("relay_with_step.py").splitlines() == [
        "claimed 300, published 150, discarded 150",
        "all: 150 orders, 0 cards",
        "large: 50 orders, 0 cards",
        "{'PUBLISHED': 300}",
    ]


@pytest.fixture(params=["sqlite", "postgresql"])
def shop(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    url = f"sqlite:///{tmp_path}/shop.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    monkeypatch.setenv("PENSTOCK_STORE", url)
    monkeypatch.syspath_prepend(EXAMPLES)
    sys.modules.pop("fastapi_orders", None)
    module: ModuleType = importlib.import_module("fastapi_orders")
    from fastapi.testclient import TestClient

    with TestClient(module.app) as client:
        yield module, client


def test_fastapi_orders_commit_with_their_events(shop: Any) -> None:
    module, client = shop
    placed = client.post("/orders", json={"customer": "ada", "amount": 42})
    refused = client.post("/orders", json={"customer": "bob", "amount": 5_000})
    assert (placed.status_code, refused.status_code) == (201, 422)

    import penstock

    records = module.outbox.store.find(penstock.Selection(everything=True)).records
    assert [str(record.event_id) for record in records] == [placed.json()["event"]]
    assert records[0].ordering_key == "customer/ada"
    with module.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT customer FROM orders").scalars().all() == ["ada"]
