"""The webhook receiver example, called over HTTP by the real destination."""

import importlib
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.model.outcome import Retry
from penstock.publish.registry import open_publisher
from penstock.testing.events import delivery
from penstock.testing.publishers import messages, published
from tests.support.examples import EXAMPLES, output_block

TESTS = Path(__file__).parents[1]
SECRET = "whsec_bWFkZSBmb3IgdGhpcyB0ZXN0IG9ubHk="


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve the example's application behind a real HTTP server, and yield the URL for webhooks."""
    monkeypatch.setenv("RECEIVER_DATABASE", str(tmp_path / "received.db"))
    monkeypatch.setenv("WEBHOOK_SECRET", SECRET)
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.syspath_prepend(TESTS / "publish")
    sys.modules.pop("webhook_receiver", None)
    example = importlib.import_module("webhook_receiver")
    http_receiver = importlib.import_module("http_receiver")
    from fastapi.testclient import TestClient

    with TestClient(example.app) as client:

        def answer(request: Any) -> Any:
            reply = client.post(request.path, content=request.body, headers=request.headers)
            return http_receiver.Answer(reply.status_code, body=reply.content)

        with http_receiver.Receiver(answer) as receiver:
            yield f"http://{receiver.address}/events"


def test_repeated_event_is_stored_once(address: str, tmp_path: Path) -> None:
    publisher, events = (
        open_publisher(f"{address}?secret_env=WEBHOOK_SECRET&timeout_seconds=60"),
        [delivery(), delivery()],
    )
    for _ in range(3):
        assert publisher.publish(messages(events)) == published(events)
    publisher.close()
    connection = sqlite3.connect(tmp_path / "received.db")
    rows = connection.execute("SELECT event_id, event_type, body FROM received").fetchall()
    connection.close()
    assert sorted(rows) == sorted((str(event.event_id), "orders.created", event.payload) for event in events)


def test_stored_event_equals_documented_output(address: str, tmp_path: Path) -> None:
    publisher = open_publisher(f"{address}?secret_env=WEBHOOK_SECRET&timeout_seconds=60")
    event = delivery(event_type="order.placed", payload=b'{"order": 1}')
    assert publisher.publish(messages([event])) == published([event])
    publisher.close()
    with closing(sqlite3.connect(tmp_path / "received.db")) as connection:
        rows = connection.execute("SELECT event_type, body FROM received").fetchall()
    assert [f"{kind}|{body.decode()}" for kind, body in rows] == output_block("webhook_receiver.py")


def test_unsigned_or_wrongly_signed_request_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANOTHER", "guessed")
    for options in ("", "?secret_env=ANOTHER"):
        publisher, event = open_publisher(address + options), delivery()
        outcome = publisher.publish(messages([event]))[event.seq]
        publisher.close()
        assert isinstance(outcome, Retry)
        assert "401 Unauthorized" in outcome.error
