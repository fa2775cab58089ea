"""Permissions of the files that Penstock creates: other users have no access, whatever the umask is."""

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from object_queues import LARGE

from penstock.model.outcome import Published
from penstock.publish.registry import open_publisher
from penstock.store.registry import open_store
from penstock.streams.state.registry import open_state
from penstock.testing.events import delivery
from penstock.testing.publishers import messages
from penstock.testing.stores.scenario import all_to, claim, emit


@pytest.fixture(autouse=True)
def wide_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def permissions(path: Path) -> int:
    return path.stat().st_mode & 0o777


def modes(folder: Path) -> Mapping[str, int]:
    """Return the permissions of a folder and everything in it, by path."""
    return {str(path): permissions(path) for path in (folder, *folder.rglob("*"))}


def write_queue(folder: Path) -> None:
    """Use a queue on object storage: its document, and objects for a payload and a result."""
    with closing(open_store(f"objects+file://{folder}")) as store:
        store.initialise()
        emit(store, payload=LARGE)
        held = claim(store)
        store.settle(held.lease, all_to(Published(result=LARGE), held))


def write_events(folder: Path) -> None:
    with closing(open_publisher(f"file://{folder}")) as publisher:
        publisher.publish(messages([delivery()]))


def write_states(folder: Path) -> None:
    for kind in ("sqlite", "rocksdb"):
        state = open_state(f"{kind}:///{folder / kind}")
        started = state.start("orders", 2)
        with closing(state.open_part(started, 0)):
            pass
        state.close()


@pytest.mark.parametrize("write", [write_queue, write_events])
def test_new_files_and_folders_are_private(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path / "made" / "here")
    found = modes(tmp_path / "made")
    assert found == {path: 0o700 if Path(path).is_dir() else 0o600 for path in found}
    assert any(map(os.path.isfile, found))


@pytest.mark.parametrize("write", [write_queue, write_events])
def test_existing_folder_keeps_its_permissions(write: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "here").mkdir(0o755)
    write(tmp_path / "here")
    found = modes(tmp_path / "here")
    assert found.pop(str(tmp_path / "here")) == 0o755
    assert found == {path: 0o700 if Path(path).is_dir() else 0o600 for path in found}


@pytest.mark.parametrize("write", [write_queue, write_events])
def test_folder_with_set_group_id_bit_is_shared_with_its_group(write: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here").chmod(0o2775)
    write(tmp_path / "here")
    found = modes(tmp_path / "here")
    assert found.pop(str(tmp_path / "here")) == 0o775
    assert found == {path: 0o770 if Path(path).is_dir() else 0o660 for path in found}


def test_new_sqlite_database_is_private(tmp_path: Path) -> None:
    with closing(open_store(f"sqlite:///{tmp_path / 'penstock.db'}")) as store:
        store.initialise()
        emit(store)
        found = {path.name: permissions(path) for path in tmp_path.iterdir()}
    assert found == {"penstock.db": 0o600, "penstock.db-shm": 0o600, "penstock.db-wal": 0o600}


def test_existing_sqlite_database_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "penstock.db"
    with closing(sqlite3.connect(path)) as own:
        own.execute("CREATE TABLE orders (id)")
    path.chmod(0o640)
    with closing(open_store(f"sqlite:///{path}")) as store:
        store.initialise()
        emit(store)
        found = {path.name: permissions(path) for path in tmp_path.iterdir()}
    assert found == {"penstock.db": 0o640, "penstock.db-shm": 0o640, "penstock.db-wal": 0o640}


def test_state_of_streams_is_private(tmp_path: Path) -> None:
    write_states(tmp_path / "state")
    found = modes(tmp_path / "state")
    databases = [path for path in found if path.endswith(".db")]
    assert len(databases) == 6
    assert {found[path] for path in databases} == {0o600}
    assert {permissions(path) for path in (tmp_path / "state").glob("**/orders")} == {0o700}
