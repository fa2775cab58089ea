"""One short transaction: runs statements on the driver's own cursor, and turns rows into deliveries.

The connection comes from SQLAlchemy's pool. Statements bypass SQLAlchemy, because a relay reads 100,000 rows a second.
"""

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from sqlalchemy import Connection

from penstock.model.event import Delivery

_NAMED = re.compile(r"(?<![:\w]):([a-z_]+)")


@cache
def percent_style(statement: str) -> str:
    """Convert `:name` placeholders to `%(name)s`, the style of psycopg and PyMySQL."""
    return _NAMED.sub(r"%(\1)s", statement.replace("%", "%%"))


class Transaction:
    """Open transaction of a verb. `prepare` puts the clock and the driver's parameter style into a statement; `bare`
    returns a cursor for deliveries, whose rows may stay undecoded."""

    def __init__(
        self,
        connection: Connection,
        cursor: Any,
        prepare: Callable[[str], str],
        common: dict[str, Any],
        *,
        adapt: Callable[[Any], Any] | None = None,
        bare: Callable[[], Any] | None = None,
        delivery: Callable[[Any], Delivery] = Delivery._make,
    ) -> None:
        self.connection = connection
        self._cursor = cursor
        self._prepare = prepare
        self._common = common
        self._adapt = adapt
        self._bare = bare
        self._delivery = delivery

    def run(self, statement: str, **parameters: Any) -> int:
        """Execute a statement; return the number of affected rows."""
        self._execute(self._cursor, statement, parameters)
        return int(self._cursor.rowcount)

    def run_all(self, statements: Iterable[str], **parameters: Any) -> int:
        """Execute the statements in order; return the number of rows affected by the last one."""
        count = 0
        for statement in statements:
            count = self.run(statement, **parameters)
        return count

    def rows(self, statement: str, **parameters: Any) -> list[Any]:
        self._execute(self._cursor, statement, parameters)
        fetched: list[Any] = self._cursor.fetchall()
        return fetched

    def row(self, statement: str, **parameters: Any) -> Any:
        self._execute(self._cursor, statement, parameters)
        return self._cursor.fetchone()

    def scalar(self, statement: str, **parameters: Any) -> Any:
        row = self.row(statement, **parameters)
        return None if row is None else row[0]

    def deliveries(self, statement: str, **parameters: Any) -> list[Delivery]:
        cursor = self._cursor if self._bare is None else self._bare()
        self._execute(cursor, statement, parameters)
        return list(map(self._delivery, cursor.fetchall()))

    def _execute(self, cursor: Any, statement: str, parameters: dict[str, Any]) -> None:
        given = {**self._common, **parameters}
        if self._adapt is not None:
            given = {name: self._adapt(value) for name, value in given.items()}
        cursor.execute(self._prepare(statement), given)
