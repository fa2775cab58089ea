"""The three state stores against the suite that every one has to pass."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.streams import state
from penstock.streams.state.base import StateStore
from penstock.testing.states import OpenState, StateStoreConformance


def opener(url: str) -> Iterator[OpenState]:
    with ExitStack() as stack:

        def open_state() -> StateStore:
            store = state.open_state(url)
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
