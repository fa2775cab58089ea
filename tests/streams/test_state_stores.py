"""Conformance suite for the three state stores, and tests of single stores."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.model.errors import StoreError, StoreUnavailable, UsageError
from penstock.streams.state import registry
from penstock.streams.state.api import Fenced, Saved, StateStore
from penstock.streams.state.rocksdb import files as rocks_files
from penstock.testing.states import OpenState, StateStoreConformance


def opener(url: str) -> Iterator[OpenState]:
    with ExitStack() as stack:

        def open_state() -> StateStore:
            store = registry.open_state(url)
            stack.callback(store.close)
            return store

        yield open_state


class TestSqliteState(StateStoreConformance):
    @pytest.fixture
    def open_state(self, tmp_path: Path) -> Iterator[OpenState]:
        yield from opener(f"sqlite:///{tmp_path}/state")


class TestRocksState(StateStoreConformance):
    @pytest.fixture
    def open_state(self, tmp_path: Path) -> Iterator[OpenState]:
        yield from opener(f"rocksdb:///{tmp_path}/state")


class TestPostgresState(StateStoreConformance):
    @pytest.fixture
    def open_state(self, postgres_url: str) -> Iterator[OpenState]:
        yield from opener(postgres_url)


def test_url_selects_state_store(tmp_path: Path) -> None:
    for url, shared in [
        ("sqlite:///state", False),
        ("rocksdb:///state", False),
        ("postgresql://someone@127.0.0.1/somewhere", True),
        ("postgresql+psycopg://someone@127.0.0.1/somewhere", True),
    ]:
        store = registry.open_state(url)
        assert (store.url, store.shared) == (url, shared)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://someone:secret@127.0.0.1/x", "unknown state store scheme 'mysql'"),
        ("memory:", "unknown state store scheme 'memory'; supported: postgres, postgresql, rocksdb, sqlite"),
        ("state", "invalid URL 'state'"),
        ("sqlite://", "invalid state URL sqlite://; expected a folder"),
        ("sqlite:///", "expected a folder"),
        ("rocksdb://state", "expected a folder"),
    ],
)
def test_invalid_state_urls_are_usage_errors(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        registry.open_state(url)


def test_unreachable_server_is_named_in_error() -> None:
    with pytest.raises(StoreUnavailable, match=r"someone:\*\*\*@127\.0\.0\.1"):
        registry.open_state("postgresql://someone:secret@127.0.0.1:1/x?connect_timeout=2").streams()


@pytest.mark.parametrize("scheme", ["sqlite", "rocksdb"])
def test_missing_state_partition_is_error(tmp_path: Path, scheme: str) -> None:
    store = registry.open_state(f"{scheme}:///{tmp_path}")
    started = store.start("orders", 2)
    for path in (tmp_path / "orders").glob("part-00001.*"):
        path.rename(tmp_path / path.name)
    with pytest.raises(StoreError, match="does not exist; restore it"):
        store.open_part(started, 1)
    with pytest.raises(StoreError, match="does not exist; restore it"):
        store.start("orders", 2)


KEEP_OPEN = """
import sys
from penstock.streams.state.registry import open_state
from penstock.streams.state.api import Started
part = open_state(sys.argv[1]).open_part(Started("orders", 1, 1), 0)
print("open", flush=True)
sys.stdin.read()
part.close()
"""


def test_database_open_in_another_process_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state partition cannot be opened while another process has its database open, and can be opened afterwards."""
    monkeypatch.setattr(rocks_files, "OPEN_SECONDS", 0.1)
    store = registry.open_state(f"rocksdb:///{tmp_path}")
    started = store.start("orders", 1)
    command = [sys.executable, "-c", KEEP_OPEN, store.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(StoreUnavailable, match="another process"):
            store.open_part(started, 0)
        process.communicate("")
    store.open_part(started, 0).close()


def test_rocksdb_compactions_finish_after_tasks_end(tmp_path: Path) -> None:
    """Compactions finish although tasks end before. If closing interrupted them, half of them would be discarded and
    begun again. One may be interrupted if the machine is too busy to start it soon."""
    store = registry.open_state(f"rocksdb:///{tmp_path}")
    started = store.start("orders", 1)
    merges = cut_short = 0
    for job in range(24):
        part = store.open_part(replace(started, job=job), 0)
        with part.transaction() as transaction:
            transaction.save({f"customer {number}": Saved(b'{"sum":%d}' % job) for number in range(5_000)})
        part.close()
        store.close()
        (log,) = (file.read_text() for file in tmp_path.rglob("LOG"))
        merges += log.count('"compaction_finished"')
        cut_short += log.count("hutdown in progress")
    assert 4 * cut_short < merges


def test_tasks_can_reopen_state_partition_during_close(tmp_path: Path) -> None:
    store = registry.open_state(f"rocksdb:///{tmp_path}")
    started = store.start("orders", 1)

    def add(_: int) -> None:
        part = store.open_part(started, 0)
        try:
            with part.transaction() as transaction:
                known = transaction.load(["a"]).get("a", Saved(b"0"))
                transaction.save({"a": Saved(b"%d" % (int(known.data) + 1))})
        finally:
            part.close()

    for number in range(30):
        add(number)  # while the previous database may be flushing, compacting or closed
    with ThreadPoolExecutor(4) as pool:
        fenced = [future.exception() for future in [pool.submit(add, number) for number in range(40)]]
    assert {type(error) for error in fenced} <= {type(None), Fenced}
    assert dict(store.read("orders"))["a"] == Saved(b"%d" % (30 + fenced.count(None)))
    store.close()
