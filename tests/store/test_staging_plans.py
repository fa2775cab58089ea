"""Cost of a commit of staged rows on PostgreSQL: proportional to their number, without statistics on these rows."""

from collections.abc import Iterator
from uuid import uuid4

import pytest
from plans import Plan, explaining

from penstock.store.api import StagedPart
from penstock.store.registry import open_store
from penstock.store.sql.store import SqlStore
from penstock.testing.stores.scenario import event

ROWS = 3_000
# A few statements read each row a few times; a nested loop over both sides of a join would read millions of rows.
READS_A_ROW = 40


@pytest.fixture
def store(postgres_url: str) -> Iterator[SqlStore]:
    store = open_store(postgres_url)
    store.initialise()
    yield store
    store.close()


def read(plan: Plan) -> float:
    """Return the number of rows that all nodes of a plan handled, including removed rows."""
    removed = ("Rows Removed by Filter", "Rows Removed by Join Filter")
    return sum(
        (node["Actual Rows"] + sum(node.get(kind, 0) for kind in removed)) * node["Actual Loops"] for node in plan.nodes
    )


def test_staged_commit_cost_is_proportional_to_rows(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    write = uuid4()
    for batch in range(2):  # the second batch meets the windows and keys of the first
        part = StagedPart(uuid4(), write, batch)
        rows = [event(dedupe_key=f"d{batch}/{n}", ordering_key=f"k{n}") for n in range(ROWS)]
        store.stage(part, [*rows, *rows[:10]])
        with explaining(monkeypatch) as plans:
            done = store.commit_staged(write, batch, {part.part_id: ROWS + 10}, once=True)
        assert (done.events, done.duplicates) == (ROWS, 10)
        assert 0 < sum(map(read, plans)) < READS_A_ROW * ROWS
