"""An initialised store on every backend, and quick ways into each state."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock.admin.service import Admin
from penstock.model.event import Event, EventId
from penstock.model.outcome import PUBLISHED, Outcome
from penstock.store.registry import open_store
from penstock.store.sql.store import SqlStore


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'events.db'}"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
def store(url: str) -> Iterator[SqlStore]:
    opened = open_store(url)
    opened.initialise()
    yield opened
    opened.close()


@pytest.fixture
def an_hour_ago(store: SqlStore, url: str) -> Iterator[SqlStore]:
    """The same store, by a clock that is an hour slow: what it claims for a minute has long expired."""
    opened = open_store(url, clock=lambda: datetime.now(UTC) - timedelta(hours=1))
    yield opened
    opened.close()


@pytest.fixture
def admin(store: SqlStore) -> Admin:
    return Admin(store)


@pytest.fixture
def settled(store: SqlStore) -> Callable[..., EventId]:
    """Emits one event and settles it; returns its id."""

    def settle(outcome: Outcome = PUBLISHED, event_type: str = "order.placed", queue: str = "outbox") -> EventId:
        (event_id,) = store.append([Event(event_type=event_type, queue=queue, payload=b'{"id": 1}')])
        claim = store.claim(queue, limit=100, claimant="tester")
        store.settle(claim.lease, {event.seq: outcome for event in claim.events})
        return event_id

    return settle
