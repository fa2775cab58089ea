"""Stores: where events live. `open_store` finds the backend by its URL."""

from penstock.config.urls import mask_url, url_scheme
from penstock.model.errors import UnknownScheme
from penstock.model.times import Clock
from penstock.store.base import Store, StoreOptions
from penstock.store.sql import SqlStore

SCHEMES = {
    "sqlite": "sqlite",
    "postgresql": "postgres",
    "postgres": "postgres",
    "mysql": "mysql",
    "mariadb": "mysql",
    "objects": "objects",
}


def open_store(url: str, options: StoreOptions | None = None, clock: Clock | None = None) -> Store:
    """The store behind a URL. Nothing connects before the first verb."""
    if _backend(url) == "objects":
        from penstock.store.objects import ObjectStore

        return ObjectStore(url, options or StoreOptions(), clock)
    return open_sql_store(url, options, clock)


def open_sql_store(url: str, options: StoreOptions | None = None, clock: Clock | None = None) -> SqlStore:
    """The store behind the URL of a database, with what only a database can do: transactions of the caller's own."""
    chosen = options or StoreOptions()
    match _backend(url):
        case "sqlite":
            from penstock.store.sqlite import SqliteStore

            return SqliteStore(url, chosen, clock)
        case "postgres":
            from penstock.store.postgres import PostgresStore

            return PostgresStore(url, chosen, clock)
        case "mysql":
            from penstock.store.mysql import MysqlStore

            return MysqlStore(url, chosen, clock)
        case _:
            raise UnknownScheme(f"{mask_url(url)!r} is no database, and this needs one")


def _backend(url: str) -> str:
    backend = SCHEMES.get(url_scheme(url).partition("+")[0])
    if backend is None:
        known = ", ".join(sorted(SCHEMES))
        raise UnknownScheme(f"no store answers to {mask_url(url)!r}; known schemes: {known}")
    return backend


__all__ = ["SqlStore", "Store", "StoreOptions", "open_sql_store", "open_store"]
