"""Fixtures: an initialised store on every backend, and shortcuts to each state of an event."""

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
    """Open the same store with a clock that is one hour slow: leases of a minute from this store have expired."""
    opened = open_store(url, clock=lambda: datetime.now(UTC) - timedelta(hours=1))
    yield opened
    opened.close()


@pytest.fixture
def admin(store: SqlStore) -> Admin:
    return Admin(store)


@pytest.fixture
def settled(store: SqlStore) -> Callable[..., EventId]:
    """Return a function that emits one event, settles it and returns its id."""

    def settle(outcome: Outcome = PUBLISHED, event_type: str = "order.placed", queue: str = "outbox") -> EventId:
        (event_id,) = store.append([Event(event_type=event_type, queue=queue, payload=b'{"id": 1}')])
        claim = store.claim(queue, limit=100, claimant="tester")
        store.settle(claim.lease, {event.seq: outcome for event in claim.events})
        return event_id

    return settle
