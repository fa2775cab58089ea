"""Tables and views of the SQL stores with their columns, and the tables of stream state on PostgreSQL."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from sqlalchemy import Dialect, inspect
from sqlalchemy.types import NullType, TypeEngine

from penstock.store.registry import open_store
from penstock.store.sql.store import SqlStore
from penstock.streams.state.registry import open_state


def lines(sqlite_url: str, postgres_url: str) -> list[str]:
    """Return a line for each column in two empty databases."""
    with closing(open_state(postgres_url)) as state:
        state.start("orders", parts=1)
    return sorted((*_columns(sqlite_url), *_columns(postgres_url)))


def _columns(url: str) -> Iterator[str]:
    with closing(open_store(url)) as store:
        assert isinstance(store, SqlStore)
        store.initialise()
        with store.transaction() as connection:
            inspector, dialect = inspect(connection), connection.dialect
            for table in (*inspector.get_table_names(), *inspector.get_view_names()):
                for column in inspector.get_columns(table):
                    yield f"{dialect.name} {table}.{column['name']}{_kind(column['type'], dialect)}"


def _kind(type_: TypeEngine[Any], dialect: Dialect) -> str:
    """Return the type; an empty text for an expression in a view on SQLite, which has no type."""
    return "" if isinstance(type_, NullType) else f" {type_.compile(dialect=dialect)}"
