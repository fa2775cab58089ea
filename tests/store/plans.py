"""Plans and costs of the store's statements on PostgreSQL."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql

from penstock.store.sql.transaction import Transaction

TYPES = {
    "queue": "text",
    "lease_id": "uuid",
    "limit": "integer",
    "room": "integer",
    "key_queue_limit": "integer",
    "alone": "boolean",
    "floor": "timestamptz",
    "types": "text[]",
    "seqs": "bigint[]",
    "kinds": "text[]",
    "errors": "text[]",
    "delays": "float8[]",
    "max_attempts": "integer",
    "skip": "boolean",
}
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")


class Plan:
    """Plan of a statement: the tree of nodes that EXPLAIN returns."""

    def __init__(self, output: Any) -> None:
        (self.root,) = json.loads(output) if isinstance(output, str) else output
        self.nodes = list(_walk(self.root["Plan"]))

    def scans(self, kind: str) -> set[str]:
        """Return the tables that nodes of this type read."""
        return {node["Relation Name"] for node in self.nodes if node["Node Type"] == kind}

    @property
    def sorted(self) -> set[str]:
        """Tables below a sort: all their rows are read before a limit applies."""
        sorts = [node for node in self.nodes if "Sort" in node["Node Type"]]
        return {below["Relation Name"] for node in sorts for below in _walk(node) if "Relation Name" in below}

    @property
    def kinds(self) -> set[str]:
        return {node["Node Type"] for node in self.nodes}

    @property
    def indexes(self) -> set[str]:
        return {node["Index Name"] for node in self.nodes if "Index Name" in node}

    @property
    def pages(self) -> int:
        """Number of pages that all nodes together accessed."""
        top = self.root["Plan"]
        return int(top["Shared Hit Blocks"] + top["Shared Read Blocks"])

    @property
    def rows(self) -> float:
        """Number of rows that the scans read, including rows removed by a filter."""
        return sum(
            (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
            for node in self.nodes
            if "Scan" in node["Node Type"] and "Relation Name" in node
        )


def _walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _walk(child)


def pages(plans: list[Plan]) -> int:
    return sum(plan.pages for plan in plans)


def explain(connection: psycopg.Connection, mode: str, statement: str, **values: Any) -> Plan:
    """Return the plan of a prepared statement: for these values (`force_custom_plan`), or generic."""
    names = list(dict.fromkeys(_PARAMETER.findall(statement)))
    numbered = _PARAMETER.sub(lambda match: f"${names.index(match[1]) + 1}", statement.replace("{now}", "now()"))
    types = ", ".join(TYPES[name] for name in names)
    given = sql.SQL(", ").join(sql.Literal(values[name]) for name in names)
    with connection.transaction(force_rollback=True):
        connection.execute(f"SET LOCAL plan_cache_mode = {mode}")
        connection.execute(f"PREPARE explained ({types}) AS {numbered}")
        try:
            found = connection.execute(sql.SQL("EXPLAIN (FORMAT JSON) EXECUTE explained ({})").format(given)).fetchone()
        finally:
            connection.execute("DEALLOCATE explained")
    assert found is not None
    return Plan(found[0])


@contextmanager
def explaining(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Plan]]:
    """Collect the plans, with actual costs, of all statements that stores run in the block."""
    plans: list[Plan] = []
    execute = Transaction._execute

    def explained(tx: Transaction, cursor: Any, statement: str, parameters: dict[str, Any]) -> None:
        with cursor.connection.cursor() as beside:
            beside.execute("SAVEPOINT explained")
            given = {**tx._common, **parameters}
            beside.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {tx._prepare(statement)}", given)
            plans.append(Plan(beside.fetchone()[0]))
            beside.execute("ROLLBACK TO SAVEPOINT explained")
        execute(tx, cursor, statement, parameters)

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "_execute", explained)
        yield plans
