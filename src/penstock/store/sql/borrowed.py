"""Cursors on a caller's connection, for emits and settlements inside the caller's transaction."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from sqlalchemy import Connection

from penstock.model.errors import UsageError

_DRIVERS = {"psycopg": "postgresql", "psycopg2": "postgresql", "sqlite3": "sqlite", "pymysql": "mysql"}

# Flag of the server status, which MySQL sends with every response.
_IN_TRANSACTION = 1


@contextmanager
def borrowed(connection: object, dialect: str) -> Iterator[Any]:
    """Open a cursor on the caller's connection, inside the caller's transaction.

    Accepts a SQLAlchemy Session or Connection, a Django connection, or a psycopg, sqlite3 or PyMySQL connection. A
    connection in autocommit mode without an open transaction gets one for the block.
    """
    if dialect == "mysql" and _is_async(connection):
        raise UsageError("an async session cannot emit to MySQL or MariaDB; pass a synchronous session")
    raw = _driver_connection(connection)
    driver = next((name for name in _modules(raw) if name in _DRIVERS), "")
    found = _DRIVERS.get(driver)
    if hasattr(raw, "__aenter__"):
        raise UsageError("an async connection cannot emit; use a SQLAlchemy async session (see Outbox.insert)")
    if found is None:
        raise UsageError(
            f"unsupported connection type {type(connection).__module__}.{type(connection).__name__}; pass a SQLAlchemy "
            "Session or Connection, a psycopg, sqlite3 or PyMySQL connection, or a Django connection"
        )
    if found != dialect:
        raise UsageError(
            f"connection is to {found}, but store is on {dialect}; pass a connection to the store's database"
        )
    with _own_transaction(connection, raw, driver), closing(_cursor(raw, driver)) as cursor:
        yield cursor


def _modules(given: object) -> list[str]:
    """Return the top-level modules of an object's type and its base classes."""
    return [base.__module__.partition(".")[0] for base in type(given).__mro__]


def _cursor(raw: Any, driver: str) -> Any:
    """Return a cursor with tuples as rows, whatever row type the caller configured."""
    if driver == "psycopg":
        from psycopg.rows import tuple_row

        return raw.cursor(row_factory=tuple_row)
    if driver == "pymysql":
        from pymysql.cursors import Cursor

        return raw.cursor(Cursor)
    cursor = raw.cursor()
    if driver == "sqlite3":
        cursor.row_factory = None
    return cursor


def _is_async(connection: object) -> bool:
    return any(base.__module__.startswith("sqlalchemy.ext.asyncio") for base in type(connection).__mro__)


def _driver_connection(connection: object) -> Any:
    """Return the driver's own connection. Recognise its kind without importing the libraries, which would slow every
    start."""
    given: Any = connection
    if _is_async(connection):
        raise UsageError("an async session cannot be borrowed; use: await session.execute(outbox.insert(event))")
    if hasattr(connection, "ensure_connection"):
        given.ensure_connection()
        return given.connection
    if isinstance(connection, Connection):
        return connection.connection.dbapi_connection
    if hasattr(connection, "get_bind") and hasattr(connection, "connection"):
        return given.connection().connection.dbapi_connection
    return connection


@contextmanager
def _own_transaction(connection: object, raw: Any, driver: str) -> Iterator[None]:
    """Begin and commit a transaction only if the connection is in autocommit mode and has no open transaction."""
    if hasattr(connection, "in_atomic_block"):
        from django.db.transaction import atomic

        with atomic(using=connection.alias):  # type: ignore[attr-defined]
            yield
    elif driver == "psycopg" and raw.autocommit and raw.info.transaction_status.name == "IDLE":
        with raw.transaction():
            yield
    elif driver == "sqlite3" and not raw.in_transaction:
        with _sqlite_transaction(raw):
            yield
    elif driver == "pymysql" and raw.get_autocommit() and not raw.server_status & _IN_TRANSACTION:
        with _mysql_transaction(raw):
            yield
    elif driver == "psycopg2" and raw.autocommit:
        raise UsageError("the psycopg2 connection is in autocommit mode; set autocommit to False to emit")
    else:
        yield


@contextmanager
def _mysql_transaction(raw: Any) -> Iterator[None]:
    raw.begin()
    try:
        yield
    except BaseException:
        raw.rollback()
        raise
    raw.commit()


@contextmanager
def _sqlite_transaction(raw: Any) -> Iterator[None]:
    """Run the block after BEGIN IMMEDIATE: a transaction that reads before its first write fails if another connection
    writes in between. Commit only in autocommit mode. Otherwise the driver would have begun a transaction at the first
    write anyway, and the caller ends it."""
    commits_by_itself = raw.isolation_level is None or getattr(raw, "autocommit", None) is True
    raw.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        raw.execute("ROLLBACK")
        raise
    if commits_by_itself:
        raw.execute("COMMIT")
