"""What the tests of the databases ask about their tables and connections."""

import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pymysql
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import make_url

from penstock.event import Event
from penstock.store import SqlStore
from penstock.store.migrate import VERSION_TABLE, Upgrade
from penstock.store.schema import metadata

STARTS = 6
# MySQL has one that the others need not.
TABLES_OF_MYSQL = [*metadata.tables, "penstock_holds"]


class MysqlConnection(pymysql.Connection):  # type: ignore[misc]
    """The driver's own connection, with as much of the others' manners as the suites ask for."""

    def execute(self, statement: str, values: Any = None) -> Any:
        cursor = self.cursor()
        cursor.execute(statement, values)
        return cursor


def connect_mysql(url: str, isolation: str = "REPEATABLE READ") -> MysqlConnection:
    """As strict as the server would make it, unless told."""
    parts = make_url(url)
    options = {"host": parts.host, "port": parts.port, "user": parts.username, "password": str(parts.password)}
    return MysqlConnection(
        **options,
        database=parts.database,
        init_command=f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}",
    )


def empty(url: str) -> None:
    """Empty the tables of a MySQL store, which is faster there than to make them anew."""
    with connect_mysql(url) as connection:
        for table in TABLES_OF_MYSQL:
            connection.execute(f"DELETE FROM {table}")
        connection.commit()


def differences(store: SqlStore, *, compare_defaults: bool) -> object:
    """What the tables in the database have that the ones in the code have not, and the other way round."""
    options = {"version_table": VERSION_TABLE, "compare_type": True, "compare_server_default": compare_defaults}
    with store.transaction() as connection:
        return compare_metadata(MigrationContext.configure(connection, opts=options), metadata)


def initialise_at_once(opened: Callable[[], SqlStore]) -> list[Upgrade]:
    """Several starts that all want to create the tables first."""
    together = Barrier(STARTS)

    def start(_: int) -> Upgrade:
        store = opened()
        together.wait()
        try:
            return store.initialise()
        finally:
            store.close()

    with ThreadPoolExecutor(STARTS) as threads:
        return list(threads.map(start, range(STARTS)))


def tends_without_staging(store: SqlStore) -> None:
    """Tables of the version before staging, as a rolling upgrade meets them: upkeep does the rest of its work."""
    store.initialise()
    with store.transaction() as connection:
        connection.exec_driver_sql("DROP TABLE penstock_staged")
        connection.exec_driver_sql("DROP TABLE penstock_sinks")
    store.tend()
    assert store.append([Event(event_type="order.placed")])
    store.close()


def told(error: BaseException) -> str:
    """All that a log would show of an error, with its causes."""
    return "".join(traceback.format_exception(error))
