"""Connections to PostgreSQL: which of them a pooler has its hands on, and cursors that leave rows as they come."""

from typing import Any


def is_pooled(connection: Any) -> bool:
    """Whether a pooler answers in the server's place: it gives out process numbers of its own. It may hand the server's
    connection to another client after each transaction."""
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    connection.rollback()
    return row is None or row[0] != connection.info.backend_pid


def forgo_preparing_behind_a_pooler(connection: Any, _record: Any) -> None:
    """A statement that was prepared on one server connection is unknown to the next one."""
    if is_pooled(connection):
        connection.prepare_threshold = None


def bare(connection: Any) -> Any:
    """A cursor that leaves ids as bytes and times as numbers, which `Delivery` decodes when asked."""
    from psycopg.types.numeric import Int8BinaryLoader
    from psycopg.types.string import ByteaBinaryLoader

    cursor = connection.cursor(binary=True)
    cursor.adapters.register_loader("uuid", ByteaBinaryLoader)
    cursor.adapters.register_loader("timestamptz", Int8BinaryLoader)
    return cursor
