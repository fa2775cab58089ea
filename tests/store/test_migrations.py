"""Upgrading the tables of an older Penstock: what is in them stays, and goes on."""

from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config

from penstock.event import Event
from penstock.lifecycle import PUBLISHED
from penstock.store import SqlStore, migrate, open_store
from penstock.store.base import Selection


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'old.db'}"
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


def to_version(store: SqlStore, version: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(migrate.MIGRATIONS))
    with store.engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, version)


@pytest.mark.parametrize("version", ["0001"])
def test_events_of_older_tables_go_on(url: str, version: str) -> None:
    store = open_store(url)
    if url.startswith("sqlite"):
        Path(url.removeprefix("sqlite:///")).touch()
    to_version(store, version)
    emitted = store.append([Event(event_type="orders.created", payload=b"body", ordering_key="k")])
    upgrade = store.initialise()
    assert upgrade.before == version
    assert upgrade.after == migrate.head()
    emitted += store.append([Event(event_type="orders.created", ordering_key="k")])
    claim = store.claim("outbox", limit=10, claimant="test")
    assert [event.event_id for event in claim.events] == emitted
    assert claim.events[0].payload == b"body"
    store.settle(claim.lease, dict.fromkeys((event.seq for event in claim.events), PUBLISHED))
    assert {record.event_id for record in store.find(Selection(everything=True)).records} == set(emitted)
    store.close()
