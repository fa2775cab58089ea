"""Open the store that a URL names. The module of a backend is imported when its URL is first opened."""

from importlib import import_module
from typing import Any, cast

from penstock.config.urls import mask_url, url_scheme
from penstock.model.errors import UnknownScheme
from penstock.model.times import Clock
from penstock.store.api import Store, StoreOptions
from penstock.store.sql.store import SqlStore

_SQLITE = "penstock.store.sql.sqlite.dialect:SqliteStore"
_POSTGRES = "penstock.store.sql.postgres.dialect:PostgresStore"
_MYSQL = "penstock.store.sql.mysql.dialect:MysqlStore"
_OBJECTS = "penstock.store.objects.store:ObjectStore"

_BACKENDS = {
    "sqlite": _SQLITE,
    "postgresql": _POSTGRES,
    "postgres": _POSTGRES,
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
    "objects": _OBJECTS,
}


def open_store(url: str, options: StoreOptions | None = None, clock: Clock | None = None) -> Store:
    """Return the store behind a URL. Nothing connects before the first verb."""
    module, _, name = _backend(url).partition(":")
    backend: Any = getattr(import_module(module), name)
    return cast(Store, backend(url, options or StoreOptions(), clock))


def open_sql_store(url: str, options: StoreOptions | None = None, clock: Clock | None = None) -> SqlStore:
    """Return the store behind the URL of a database: only a database has transactions of the caller."""
    if _backend(url) == _OBJECTS:
        raise UnknownScheme(f"{mask_url(url)!r} is no database, and this needs one")
    return cast(SqlStore, open_store(url, options, clock))


def _backend(url: str) -> str:
    backend = _BACKENDS.get(url_scheme(url).partition("+")[0])
    if backend is None:
        known = ", ".join(sorted(_BACKENDS))
        raise UnknownScheme(f"no store answers to {mask_url(url)!r}; known schemes: {known}")
    return backend
