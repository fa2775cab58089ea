"""Helpers of the database tests: connections, comparison and emptying of tables, tables of older releases."""

import traceback
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pymysql
from sqlalchemy import Dialect, inspect, make_url
from sqlalchemy.types import TypeEngine

from penstock.store.sql import migrate
from penstock.store.sql.schema import metadata, outbox, staged
from penstock.store.sql.store import SqlStore

TABLES = """
SELECT table_name FROM information_schema.tables
WHERE table_name LIKE 'penstock_%' AND table_name <> 'penstock_version' AND table_type = 'BASE TABLE'
"""
# Types that are equivalent to a query.
SAME_TYPES = {
    **dict.fromkeys(("SMALLINT", "BIGINT"), "INTEGER"),
    **dict.fromkeys(("BOOL", "TINYINT"), "BOOLEAN"),
    **dict.fromkeys(("VARCHAR", "LONGTEXT", "JSON"), "TEXT"),
    **dict.fromkeys(("LONGBLOB", "BINARY"), "BLOB"),
}

# The version table as created by the releases before the present migration runner.
OLD_VERSION_TABLE = """
CREATE TABLE penstock_version (
\tversion_num VARCHAR(32) NOT NULL,\x20
\tCONSTRAINT penstock_version_pkc PRIMARY KEY (version_num)
)
"""

Columns = list[tuple[str, str]]


class MysqlConnection(pymysql.Connection):  # type: ignore[misc]
    """PyMySQL connection with a method `execute`, as the suites use it on the connections of all drivers."""

    def execute(self, statement: str, values: Any = None) -> Any:
        cursor = self.cursor()
        cursor.execute(statement, values)
        return cursor


def connect_mysql(url: str, isolation: str = "REPEATABLE READ") -> MysqlConnection:
    """Open a connection, by default with the isolation level that is the server's default."""
    parts = make_url(url)
    options = {"host": parts.host, "port": parts.port, "user": parts.username, "password": str(parts.password)}
    return MysqlConnection(
        **options,
        database=parts.database,
        init_command=f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}",
    )


def empty_mysql(url: str) -> None:
    """Empty the tables of a MySQL store, which is faster than to create them again."""
    with connect_mysql(url) as connection:
        found = connection.execute(f"{TABLES} AND table_schema = DATABASE()")
        for (table,) in found.fetchall():
            connection.execute(f"DELETE FROM {table}")
        connection.commit()


def empty_postgres(url: str) -> None:
    """Empty the tables of a PostgreSQL store, which is faster than to create them again."""
    with psycopg.connect(url) as connection:
        found = connection.execute(TABLES)
        connection.execute(f"TRUNCATE {', '.join(name for (name,) in found)} RESTART IDENTITY")


def differences(store: SqlStore) -> dict[str, tuple[Columns, Columns]]:
    """Compare the tables in the code with those that the migrations created; of the view only the column names."""
    found = {}
    with store.transaction() as connection:
        kind = partial(_kind, dialect=connection.dialect)
        unused = set() if store.capabilities.staging else {staged}
        for table in (one for one in metadata.sorted_tables if one not in unused):
            columns = inspect(connection).get_columns(table.name)
            if table is outbox:
                here, there = [(one.name, "") for one in table.columns], [(one["name"], "") for one in columns]
            else:
                here = [(one.name, kind(one.type)) for one in table.columns]
                there = [(one["name"], kind(one["type"])) for one in columns]
            if here != there:
                found[table.name] = (here, there)
    return found


def _kind(type_: TypeEngine[Any], dialect: Dialect) -> str:
    name = type_.compile(dialect=dialect).partition(" ")[0].partition("(")[0]
    return SAME_TYPES.get(name, name)


def logged_text(error: BaseException) -> str:
    """Return the text that a log would show of an error, including its causes."""
    return "".join(traceback.format_exception(error))


def to_version(store: SqlStore, version: str) -> None:
    """Create the tables as an older release left them."""
    if store.url.startswith("sqlite"):
        Path(store.url.removeprefix("sqlite:///")).touch()
    with store.transaction() as connection:
        connection.exec_driver_sql(OLD_VERSION_TABLE)
    for step in migrate.steps(store.engine.dialect.name):
        if step.version <= version:
            with store.transaction() as connection:
                migrate.run(connection, step)
