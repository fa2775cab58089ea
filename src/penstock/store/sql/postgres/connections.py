"""Connections to PostgreSQL: which of them a pooler has its hands on, and cursors that leave rows as they come."""

from typing import Any


def is_pooled(connection: Any) -> bool:
    """Whether a pooler answers in the server's place: it gives out process numbers of its own. It may hand the server's
    connection to another client after each transaction."""
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    connection.rollback()
    return row is None or row[0] != connection.info.backend_pid


def prepare_for_claims(connection: Any, _record: Any) -> None:
    """Set up a new connection: no prepared statements behind a pooler, no sequential scans elsewhere.

    A pooler may run the next transaction on another server connection, which does not know the statement. On a
    connection of our own the server keeps the plans of prepared statements. A plan that it makes while the tables are
    empty would read whole tables later: 100 ms for a claim of 1,000 instead of 5.
    """
    if is_pooled(connection):
        connection.prepare_threshold = None
    else:
        connection.execute("SET enable_seqscan = off")
        connection.commit()


def bare(connection: Any) -> Any:
    """A cursor that leaves ids as bytes and times as numbers, which `Delivery` decodes when asked."""
    from psycopg.types.numeric import Int8BinaryLoader
    from psycopg.types.string import ByteaBinaryLoader

    cursor = connection.cursor(binary=True)
    cursor.adapters.register_loader("uuid", ByteaBinaryLoader)
    cursor.adapters.register_loader("timestamptz", Int8BinaryLoader)
    return cursor
