"""What a transaction on MySQL or MariaDB does differently: statements in two parts, and values for the driver."""

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from penstock.model.event import Delivery
from penstock.store.sql.transaction import Transaction

PART = "\n--;\n"


class MysqlTransaction(Transaction):
    """Runs a statement part by part; the last one's rows and count are the statement's."""

    def _execute(self, cursor: Any, statement: str, parameters: dict[str, Any]) -> None:
        for part in statement.split(PART):
            super()._execute(cursor, part, parameters)


def utc(time: datetime) -> datetime:
    """As a DATETIME holds it: in UTC, and without saying so. The driver would drop the zone without a look at it."""
    return time.astimezone(UTC).replace(tzinfo=None)


def adapt(value: Any) -> Any:
    """Ids as bytes and times in UTC. A list of numbers or rows becomes JSON; one of names or ids stays a list, for IN,
    and an empty one holds NULL, which nothing equals."""
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
    """Ids stay bytes and times numbers, which `Delivery` decodes when asked."""
    return Delivery._make(row if row[5] is None else (*row[:5], json.loads(row[5]), *row[6:]))
