"""Open the state store of a URL. The module of a store is imported when its URL is first opened."""

from importlib import import_module
from typing import Any, cast

from penstock.config.urls import url_scheme
from penstock.model.errors import UnknownScheme
from penstock.streams.state.api import StateStore

DEFAULT_STATE = "sqlite:///penstock-state"

_POSTGRES = ("penstock.streams.state.postgres.store", "PostgresState")
_STORES = {
    "postgres": _POSTGRES,
    "postgresql": _POSTGRES,
    "rocksdb": ("penstock.streams.state.rocksdb.store", "RocksState"),
    "sqlite": ("penstock.streams.state.sqlite", "SqliteState"),
}


def open_state(url: str = DEFAULT_STATE) -> StateStore:
    """Return the state store of a URL. The store itself is opened on first use."""
    scheme = url_scheme(url).partition("+")[0]
    if scheme not in _STORES:
        raise UnknownScheme(f"unknown state store scheme {scheme!r}; supported: {', '.join(_STORES)}")
    module, name = _STORES[scheme]
    store: Any = getattr(import_module(module), name)
    return cast(StateStore, store(url))
