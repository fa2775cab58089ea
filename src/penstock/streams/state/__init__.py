"""State stores: where a stream keeps its state, and the inbox that says which events are in it."""

from penstock.config.urls import mask_url, url_scheme
from penstock.model.errors import UnknownScheme
from penstock.streams.state.base import Fenced, StateStore

DEFAULT_STATE = "sqlite:///penstock-state"
SCHEMES = ("postgres", "postgresql", "rocksdb", "sqlite")


def open_state(url: str = DEFAULT_STATE) -> StateStore:
    """The state store behind a URL. Nothing is opened before it is used."""
    match url_scheme(url).partition("+")[0]:
        case "sqlite":
            from penstock.streams.state.sqlite import SqliteState

            return SqliteState(url)
        case "rocksdb":
            from penstock.streams.state.rocks import RocksState

            return RocksState(url)
        case "postgresql" | "postgres":
            from penstock.streams.state.postgres import PostgresState

            return PostgresState(url)
        case _:
            raise UnknownScheme(f"no state store answers to {mask_url(url)!r}; known schemes: {', '.join(SCHEMES)}")


__all__ = ["DEFAULT_STATE", "Fenced", "StateStore", "open_state"]
