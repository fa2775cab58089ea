"""Stores: where events live. `open_store` finds the backend by its URL."""

from penstock.config import mask_url, url_scheme
from penstock.errors import UnknownScheme
from penstock.store.base import Store, StoreOptions
from penstock.store.moves import Clock
from penstock.store.sql import SqlStore

SCHEMES = {
    "sqlite": "sqlite",
    "postgresql": "postgres",
    "postgres": "postgres",
    "mysql": "mysql",
    "mariadb": "mysql",
}


def open_store(url: str, options: StoreOptions | None = None, clock: Clock | None = None) -> SqlStore:
    """The store behind a URL. Nothing connects before the first verb."""
    scheme = url_scheme(url).partition("+")[0]
    chosen = options or StoreOptions()
    match SCHEMES.get(scheme):
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
            known = ", ".join(sorted(SCHEMES))
            raise UnknownScheme(f"no store answers to {mask_url(url)!r}; known schemes: {known}")


__all__ = ["SqlStore", "Store", "StoreOptions", "open_store"]
