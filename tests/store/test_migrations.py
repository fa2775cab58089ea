"""Creation and upgrade of tables: databases of older releases, concurrent upgrades, locks of other transactions."""

import multiprocessing
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from databases import to_version

from penstock.model.errors import StoreConflict, StoreError
from penstock.model.event import Event
from penstock.model.outcome import PUBLISHED
from penstock.model.selection import Selection
from penstock.store.registry import open_store
from penstock.store.sql import migrate
from penstock.store.sql.store import SqlStore
from tests.support.processes import wait_until

STARTS = 4
WAIT_SECONDS = 60.0
# Digests of the released steps, computed without comments.
RELEASED = {
    "mysql/0001_spine": "d12909cef78033a9",
    "mysql/0002_copies": "ab45866d39d193a1",
    "mysql/0003_staging": "f70f16a238c8582e",
    "mysql/0004_steering": "6df62a4887c0f4dd",
    "mysql/0005_no_staging": "37a8d57fd2ae7a2c",
    "postgresql/0001_spine": "52a3d237e022545c",
    "postgresql/0002_copies": "1c478e085a96fa36",
    "postgresql/0003_staging": "47fdfa095d2fc96e",
    "postgresql/0004_steering": "803fe108b5c0c00b",
    "postgresql/0005_vacuum": "6c68f8fa9613f7bc",
    "postgresql/0006_validation": "8458f31ff6a2ab9c",
    "sqlite/0001_spine": "84857cd95880c126",
    "sqlite/0002_copies": "eb7744c08ee69ec1",
    "sqlite/0003_staging": "84ff6648fd81c77e",
    "sqlite/0004_steering": "514dd96d327a64c5",
    "sqlite/0005_validation": "8ea8b3043897f35b",
}
WAITING = {
    "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'penstock_events'::regclass",
    "mysql": "SELECT count(*) FROM information_schema.processlist WHERE state = 'Waiting for table metadata lock'",
}

AddStep = Callable[[str], None]


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'old.db'}"
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def store(url: str) -> Iterator[SqlStore]:
    store = open_store(url)
    yield store
    store.close()


@pytest.fixture
def add_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AddStep:
    """Return a function that adds a migration to each dialect, with a higher number than all others."""
    folder = shutil.copytree(migrate.MIGRATIONS, tmp_path / "migrations")
    monkeypatch.setattr(migrate, "MIGRATIONS", folder)

    def add(content: str) -> None:
        for dialect in folder.iterdir():
            (dialect / "9000_more.sql").write_text(content)

    return add


def versions(store: SqlStore) -> list[str]:
    return [step.version for step in migrate.steps(store.engine.dialect.name)]


@pytest.mark.parametrize("version", ["0001", "0002", "0003", "0004"])
def test_upgrade_keeps_events_of_older_tables(store: SqlStore, version: str) -> None:
    to_version(store, version)
    emitted = store.append([Event(event_type="orders.created", payload=b"body", ordering_key="k")])
    upgrade = store.initialise()
    assert (upgrade.before, upgrade.after) == (version, versions(store)[-1])
    assert [step[:4] for step in upgrade.steps] == [one for one in versions(store) if one > version]
    emitted += store.append([Event(event_type="orders.created", ordering_key="k")])
    claim = store.claim("outbox", limit=10, claimant="test")
    assert [event.event_id for event in claim.events] == emitted
    assert claim.events[0].payload == b"body"
    store.settle(claim.lease, dict.fromkeys((event.seq for event in claim.events), PUBLISHED))
    assert {record.event_id for record in store.find(Selection(everything=True)).records} == set(emitted)


def test_released_steps_do_not_change() -> None:
    found = {name: fingerprint(migrate.MIGRATIONS / f"{name}.sql") for name in RELEASED}
    assert found == RELEASED


def fingerprint(path: Path) -> str:
    statements = re.sub(r"--.*", "", path.read_text())
    return sha256(" ".join(statements.split()).encode()).hexdigest()[:16]


def test_concurrent_upgrades_run_each_step_once(url: str, store: SqlStore) -> None:
    spawning = multiprocessing.get_context("spawn")
    together, done = spawning.Barrier(STARTS), spawning.Queue()
    processes = [spawning.Process(target=initialise, args=(url, together, done)) for _ in range(STARTS)]
    for process in processes:
        process.start()
    ran = [done.get(timeout=WAIT_SECONDS) for _ in processes]
    for process in processes:
        process.join()
    assert sorted(step[:4] for steps in ran for step in steps) == versions(store)
    assert store.versions() == (versions(store)[-1], versions(store)[-1])
    assert store.append([Event(event_type="orders.created")])


def initialise(url: str, together: Any, done: Any) -> None:
    store = open_store(url)
    together.wait(WAIT_SECONDS)
    try:
        done.put(list(store.initialise().steps))
    finally:
        store.close()


def test_new_migration_file_is_run(store: SqlStore, add_step: AddStep) -> None:
    """The runner passes a percent sign on unchanged, and ends a statement only at `;` before an empty line."""
    store.initialise()
    add_step("-- More: of everything.\n\nCREATE TABLE more (a INTEGER);\n\nINSERT INTO more VALUES\n(7 % 4);\n")
    upgrade = store.initialise()
    assert list(upgrade.steps) == ["9000: More: of everything."]
    assert store.versions() == ("9000", "9000")
    with store.transaction() as connection:
        assert connection.exec_driver_sql("SELECT a FROM more").scalar() == 3


def test_failed_step_is_repeated(store: SqlStore, add_step: AddStep) -> None:
    store.initialise()
    before = store.versions()
    add_step("-- More\n\nCREATE TABLE IF NOT EXISTS more (a INTEGER);\n\nINSERT INTO mroe VALUES (1);\n")
    with pytest.raises(StoreError):
        store.initialise()
    assert store.versions()[0] == before[0]
    if not store.url.startswith("mysql"):  # MySQL commits each CREATE
        with pytest.raises(StoreError), store.transaction() as connection:
            connection.exec_driver_sql("SELECT a FROM more")
    add_step("-- More\n\nCREATE TABLE IF NOT EXISTS more (a INTEGER);\n\nINSERT INTO more VALUES (1);\n")
    assert len(store.initialise().steps) == 1


@pytest.mark.parametrize("url", ["postgres", "mariadb"], indirect=True)
class TestLocks:
    """Upgrades while a reader's open transaction locks a table that a step alters."""

    @pytest.fixture
    def altering(self, store: SqlStore, add_step: AddStep) -> None:
        store.initialise()
        add_step("-- More\n\nALTER TABLE penstock_events ADD COLUMN more INTEGER;\n")

    @pytest.mark.usefixtures("altering")
    def test_waiting_upgrade_does_not_block_emits(self, store: SqlStore) -> None:
        with ThreadPoolExecutor(2) as threads:
            with store.transaction() as reader:
                reader.exec_driver_sql("SELECT count(*) FROM penstock_events")
                upgrade = threads.submit(store.initialise)
                assert wait_until(lambda: waits(store), WAIT_SECONDS)
                emitted = threads.submit(store.append, [Event(event_type="orders.created")])
                assert emitted.result(WAIT_SECONDS)
                assert not upgrade.done()
            assert len(upgrade.result(WAIT_SECONDS).steps) == 1

    @pytest.mark.usefixtures("altering")
    def test_upgrade_gives_up_after_lock_timeout(self, store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(migrate, "RETRY_SECONDS", 0.0)
        before = store.versions()[0]
        with store.transaction() as reader:
            reader.exec_driver_sql("SELECT count(*) FROM penstock_events")
            with pytest.raises(StoreConflict, match=r"cannot upgrade within 0 s: other transactions"):
                store.initialise()
        assert store.versions()[0] == before
        assert len(store.initialise().steps) == 1


def waits(store: SqlStore) -> bool:
    with store.transaction() as connection:
        return bool(connection.exec_driver_sql(WAITING[store.engine.dialect.name]).scalar())
