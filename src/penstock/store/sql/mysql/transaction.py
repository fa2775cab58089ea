"""Transactions on MySQL and MariaDB: statements in several parts, and conversion of values for the driver."""

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from penstock.model.event import Delivery
from penstock.store.sql.transaction import Transaction

PART = "\n--;\n"


class MysqlTransaction(Transaction):
    """Transaction that runs the parts of a statement in order; rows and count are those of the last part."""

    def _execute(self, cursor: Any, statement: str, parameters: dict[str, Any]) -> None:
        for part in statement.split(PART):
            super()._execute(cursor, part, parameters)


def utc(time: datetime) -> datetime:
    """Return the time as DATETIME stores it: in UTC, without a zone. The driver would drop the zone unconverted."""
    return time.astimezone(UTC).replace(tzinfo=None)


def adapt(value: Any) -> Any:
    """Convert a value for the driver: ids to bytes, times to UTC, a list of numbers or rows to JSON text.

    A list of names or ids becomes a tuple, for IN. An empty one becomes (NULL), which no value equals.
    """
    match value:
        case UUID():
            return value.bytes
        case datetime():
            return utc(value)
        case [int() | list(), *_]:
            return json.dumps(value)
        case list():
            return tuple(map(adapt, value)) or (None,)
        case _:
            return value


def delivery(row: Any) -> Delivery:
    """Return a delivery in which ids stay bytes and times numbers; `Delivery` decodes them on access."""
    return Delivery._make(row if row[5] is None else (*row[:5], json.loads(row[5]), *row[6:]))
