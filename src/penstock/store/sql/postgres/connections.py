"""Connections to PostgreSQL: detection of connection poolers, and cursors that do not decode ids and times."""

from typing import Any


def is_pooled(connection: Any) -> bool:
    """Return True if a connection pooler answers in place of the server: it reports another process id at connect.

    A pooler may give the server connection to another client after each transaction.
    """
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    connection.rollback()
    return row is None or row[0] != connection.info.backend_pid


def prepare_for_claims(connection: Any, _record: Any) -> None:
    """Set up a new connection: no prepared statements behind a pooler, no sequential scans elsewhere.

    A pooler may run the next transaction on another server connection, which does not know the statement. On a direct
    connection the server keeps the plans of prepared statements. A plan made while the tables are empty would later
    read whole tables: 100 ms for a claim of 1,000 events instead of 5 ms.
    """
    if is_pooled(connection):
        connection.prepare_threshold = None
    else:
        connection.execute("SET enable_seqscan = off")
        connection.commit()


def bare(connection: Any) -> Any:
    """Return a cursor that leaves ids as bytes and times as numbers; `Delivery` decodes them on access."""
    from psycopg.types.numeric import Int8BinaryLoader
    from psycopg.types.string import ByteaBinaryLoader

    cursor = connection.cursor(binary=True)
    cursor.adapters.register_loader("uuid", ByteaBinaryLoader)
    cursor.adapters.register_loader("timestamptz", Int8BinaryLoader)
    return cursor
