"""Fixtures: a job queue on SQLite and PostgreSQL, with the database's clock and with a manual clock."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.jobs import Jobs
from penstock.store.registry import open_store
from penstock.store.sql.store import SqlStore
from penstock.testing.stores import ManualClock


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an initialised store."""
    found: str = f"sqlite:///{tmp_path / 'jobs.db'}"
    if request.param == "postgresql":
        found = request.getfixturevalue("postgres_url")
    with_tables = open_store(found)
    with_tables.initialise()
    with_tables.close()
    return found


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def still(url: str, clock: ManualClock) -> Iterator[SqlStore]:
    """The store with the manual clock."""
    opened = open_store(url, clock=clock)
    yield opened
    opened.close()


@pytest.fixture
def jobs(still: SqlStore) -> Iterator[Jobs]:
    """The job queue with the manual clock."""
    with Jobs(still) as opened:
        yield opened


@pytest.fixture
def live(url: str) -> Iterator[Jobs]:
    """The job queue with the database's clock."""
    with Jobs(url) as opened:
        yield opened
