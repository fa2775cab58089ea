"""Fixtures: an initialised store on each database, its outbox, and a worker that is stopped after the test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from worker_watch import Watch

from penstock import Outbox, Worker
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
def outbox(store: SqlStore) -> Outbox:
    return Outbox(store)


@pytest.fixture
def worker(store: SqlStore, url: str) -> Iterator[Worker]:
    made = Worker(url, graceful_timeout=5)
    yield made
    made.stop()


@pytest.fixture
def watch(store: SqlStore) -> Watch:
    return Watch(store)
