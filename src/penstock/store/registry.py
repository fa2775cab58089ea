"""Backends by URL scheme. The module of a backend is imported when a URL of its scheme is first opened."""

from importlib import import_module
from typing import Any, cast

from penstock.config.urls import url_scheme
from penstock.model.errors import UnknownScheme
from penstock.model.times import Clock
from penstock.store.api import Store, StoreOptions

_POSTGRES = "penstock.store.sql.postgres.dialect:PostgresStore"
_MYSQL = "penstock.store.sql.mysql.dialect:MysqlStore"

_BACKENDS = {
    "sqlite": "penstock.store.sql.sqlite.dialect:SqliteStore",
    "postgresql": _POSTGRES,
    "postgres": _POSTGRES,
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
    "objects": "penstock.store.objects.store:ObjectStore",
}


def open_store(url: str, options: StoreOptions | None = None, clock: Clock | None = None) -> Store:
    """Open the store at `url`. No connection is made before the first operation."""
    backend = _BACKENDS.get(url_scheme(url).partition("+")[0])
    if backend is None:
        known = ", ".join(sorted(_BACKENDS))
        raise UnknownScheme(f"unknown store scheme {url_scheme(url)!r}; supported: {known}")
    module, _, name = backend.partition(":")
    kind: Any = getattr(import_module(module), name)
    return cast(Store, kind(url, options or StoreOptions(), clock))
