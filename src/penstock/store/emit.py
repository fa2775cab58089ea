"""Emitting: whose connection to use, and how an event becomes a row. The same for every SQL backend."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import uuid_utils.compat as uuid7
from sqlalchemy import Connection

from penstock.errors import InvalidEvent, UsageError
from penstock.event import Event, EventId

# What an INSERT into the outbox view takes, in this order.
EMIT_COLUMNS = (
    "event_id",
    "event_type",
    "queue",
    "payload",
    "headers",
    "partition_key",
    "ordering_key",
    "priority",
    "max_attempts",
    "available_at",
    "delay_seconds",
    "dedupe_key",
    "dedupe_seconds",
    "created_at",
)

_DRIVERS = {"psycopg": "postgresql", "psycopg2": "postgresql", "sqlite3": "sqlite"}


def new_event_id() -> EventId:
    return EventId(uuid7.uuid7())


def with_ids(events: Sequence[Event]) -> list[Event]:
    """Every event with an id of its own; two of one batch can't share one."""
    named = [event if event.event_id else replace(event, event_id=new_event_id()) for event in events]
    if len({event.event_id for event in named}) < len(named):
        raise InvalidEvent("two events of one batch have the same event_id")
    return named


@contextmanager
def borrowed(connection: object, dialect: str) -> Iterator[Any]:
    """A cursor on the caller's connection, inside the caller's transaction.

    Takes a SQLAlchemy Session or Connection, a Django connection, or a psycopg or sqlite3 connection. One that
    commits every statement by itself gets a transaction for the emit.
    """
    raw = _driver_connection(connection)
    driver = type(raw).__module__.partition(".")[0]
    found = _DRIVERS.get(driver)
    if found is None:
        raise UsageError(
            f"can't emit through a {type(connection).__module__}.{type(connection).__name__}; pass a SQLAlchemy "
            "Session or Connection, a psycopg or sqlite3 connection, or a Django connection"
        )
    if found != dialect:
        raise UsageError(f"the connection is to {found}, but the store is on {dialect}: an emit can't be atomic")
    with _own_transaction(connection, raw, driver):
        cursor = raw.cursor()
        try:
            yield cursor
        finally:
            cursor.close()


def _driver_connection(connection: object) -> Any:
    """The driver's own connection. Kinds are told by their modules: importing them all would slow every start."""
    given: Any = connection
    module = type(connection).__module__
    if module.startswith("sqlalchemy.ext.asyncio"):
        raise UsageError("with an async session, execute the statement: await session.execute(outbox.insert(event))")
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
    """Begin and commit here if, and only if, nothing is under way and the connection commits by itself."""
    if hasattr(connection, "in_atomic_block"):
        from django.db.transaction import atomic

        with atomic(using=connection.alias):  # type: ignore[attr-defined]
            yield
    elif driver == "psycopg" and raw.autocommit and raw.info.transaction_status.name == "IDLE":
        with raw.transaction():
            yield
    elif driver == "sqlite3" and raw.isolation_level is None and not raw.in_transaction:
        raw.execute("BEGIN IMMEDIATE")
        with raw:
            yield
    elif driver == "psycopg2" and raw.autocommit:
        raise UsageError("this psycopg2 connection commits every statement by itself: set autocommit to False to emit")
    else:
        yield
