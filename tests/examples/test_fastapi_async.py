"""The async web shop on PostgreSQL, over HTTP: an order and its event commit together, or neither exists."""

import asyncio
import importlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import create_engine

import penstock
from penstock.web.server import HttpServer
from tests.support.examples import EXAMPLES, output_block


@pytest.fixture(params=["postgresql", "postgresql+asyncpg"])
def address(request: pytest.FixtureRequest, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve the example on a fresh database, with psycopg and with asyncpg, and yield the URL of its orders."""
    monkeypatch.setenv("PENSTOCK_STORE", postgres_url.replace("postgresql:", f"{request.param}:"))
    monkeypatch.syspath_prepend(EXAMPLES)
    sys.modules.pop("fastapi_async", None)
    example: Any = importlib.import_module("fastapi_async")
    with HttpServer(example.app) as server:
        yield f"{server.url}/orders"


def post(address: str, *orders: dict[str, Any]) -> list[httpx.Response]:
    """Send the orders at the same time, and return the responses in the order of the orders."""

    async def send() -> list[httpx.Response]:
        async with httpx.AsyncClient(timeout=60) as client:
            return await asyncio.gather(*(client.post(address, json=order) for order in orders))

    return asyncio.run(send())


def written(url: str) -> list[tuple[int, str, int]]:
    """Return the orders in the application's table."""
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT id, customer, amount FROM orders ORDER BY id").all()
    engine.dispose()
    return [(row.id, row.customer, row.amount) for row in rows]


def emitted(url: str) -> list[tuple[int, str | None, int]]:
    """Return the number, the ordering key and the amount in each event."""
    with penstock.connect(url) as outbox:
        records = outbox.store.find(penstock.Selection(everything=True)).records
    assert {record.event_type for record in records} <= {"order.placed"}
    bodies = [(json.loads(record.payload), record.ordering_key) for record in records]
    return sorted((body["order"], key, body["amount"]) for body, key in bodies)


def test_responses_equal_documented_output(address: str, postgres_url: str) -> None:
    (placed,) = post(address, {"customer": "ada", "amount": 42})
    (refused,) = post(address, {"customer": "bob", "amount": 5_000})
    assert (placed.status_code, refused.status_code) == (201, 422)
    assert [placed.text, refused.text] == output_block("fastapi_async.py")
    assert written(postgres_url) == [(1, "ada", 42)]
    assert emitted(postgres_url) == [(1, "customer/ada", 42)]


def test_rolled_back_request_emits_nothing(address: str, postgres_url: str) -> None:
    (refused,) = post(address, {"customer": "bob", "amount": 5_000})
    assert refused.status_code == 422
    assert (written(postgres_url), emitted(postgres_url)) == ([], [])


def test_concurrent_requests_have_separate_transactions(address: str, postgres_url: str) -> None:
    orders = [{"customer": f"c{number % 3}", "amount": 900 + 10 * number} for number in range(20)]
    responses = post(address, *orders)
    assert [response.status_code for response in responses] == [201] * 11 + [422] * 9
    found = written(postgres_url)
    assert sorted(amount for _, _, amount in found) == [order["amount"] for order in orders[:11]]
    assert emitted(postgres_url) == [(number, f"customer/{customer}", amount) for number, customer, amount in found]
