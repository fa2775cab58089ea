"""Filters pushed down to the store: queries return the same rows, and the store transfers fewer of them."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from penstock.model.event import Event
from penstock.model.lifecycle import State
from penstock.model.outcome import PUBLISHED, Dead
from penstock.model.selection import Selection
from penstock.pipeline.datasource.filters import narrow
from penstock.pipeline.datasource.reader import FilteringReader, SourceOptions
from penstock.pipeline.formats import register
from penstock.runtime.store_cache import close_stores
from penstock.store.registry import open_store
from penstock.store.sql.store import SqlStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=1)
TICK = timedelta(microseconds=1)


# Without Spark


@pytest.mark.parametrize(
    ("one", "selection"),
    [
        (EqualTo(("state",), "DEAD"), Selection(states=frozenset({State.DEAD}))),
        (EqualTo(("state",), "dead"), Selection(states=frozenset())),
        (In(("state",), ("DEAD", "PENDING", None)), Selection(states=frozenset({State.DEAD, State.PENDING}))),
        (EqualTo(("queue",), "mail"), Selection(queues=frozenset({"mail"}))),
        (In(("event_type",), ("a", "b")), Selection(event_types=frozenset({"a", "b"}))),
        (GreaterThanOrEqual(("created_at",), NOON), Selection(since=NOON)),
        (GreaterThan(("created_at",), NOON), Selection(since=NOON + TICK)),
        (LessThan(("created_at",), NOON), Selection(until=NOON)),
        (LessThanOrEqual(("created_at",), NOON), Selection(until=NOON + TICK)),
        (EqualTo(("created_at",), NOON), Selection(since=NOON, until=NOON + TICK)),
        (IsNotNull(("created_at",)), Selection()),
    ],
)
def test_pushed_filter_narrows_selection(one: Filter, selection: Selection) -> None:
    assert narrow(Selection(), [one]) == (selection, [])


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("priority",), 3),
        EqualTo(("headers", "state"), "DEAD"),
        EqualNullSafe(("queue",), "mail"),
        Not(EqualTo(("queue",), "mail")),
        In(("created_at",), (NOON, LATER)),
        GreaterThan(("queue",), "mail"),
        GreaterThan(("created_at",), NOON.replace(tzinfo=None)),
        IsNotNull(("last_error",)),
    ],
)
def test_inexpressible_filter_is_left_to_spark(one: Filter) -> None:
    assert narrow(Selection(), [one]) == (Selection(), [one])


def test_filters_and_options_are_combined() -> None:
    options = SourceOptions.parse({"store": "s", "queue": "mail", "state": "dead,pending", "since": NOON.isoformat()})
    reader = FilteringReader(options)
    left = Not(EqualTo(("queue",), "x"))
    filters = [
        In(("state",), ("DEAD", "CLAIMED")),
        In(("queue",), ("mail", "x")),
        EqualTo(("queue",), "x"),
        GreaterThan(("created_at",), LATER),
        GreaterThan(("created_at",), NOON),
        left,
    ]
    assert list(reader.pushFilters(filters)) == [left]
    assert reader.selection == Selection(
        states=frozenset({State.DEAD}), queue="mail", queues=frozenset({"x"}), since=LATER + TICK
    )


# With Spark


@pytest.fixture(scope="module")
def session(spark: "SparkSession") -> Iterator["SparkSession"]:
    register(spark)
    yield spark
    close_stores()


@pytest.fixture
def store(postgres_url: str) -> Iterator[SqlStore]:
    """A store with events of several queues and types in every state, emitted over several hours."""
    now = [NOON]
    store = open_store(postgres_url, clock=lambda: now[0])
    store.initialise()
    chosen = random.Random(7)
    for hour in range(6):
        now[0] = NOON + timedelta(hours=hour)
        fields = [(chosen.choice(["outbox", "mail", "jobs"]), chosen.choice(["a", "b", "c"])) for _ in range(40)]
        store.append([Event(queue=queue, event_type=kind) for queue, kind in fields])
    for queue in ("outbox", "mail"):
        claim = store.claim(queue, limit=40, claimant="test", lease_seconds=3_600)
        seqs = [event.seq for event in claim.events]
        store.settle(claim.lease, dict.fromkeys(seqs[:20], PUBLISHED) | dict.fromkeys(seqs[20:30], Dead("bad")))
    yield store
    store.close()


FILTERS = [
    "state = 'DEAD'",
    "state IN ('PENDING', 'PUBLISHED') AND queue = 'mail'",
    "queue IN ('mail', 'jobs') AND event_type = 'b'",
    "queue = 'mail' AND queue = 'jobs'",
    "event_type IN ('a', 'c') AND created_at > TIMESTAMP '2026-01-01T13:00:00Z'",
    "created_at >= TIMESTAMP '2026-01-01T13:00:00Z' AND created_at < TIMESTAMP '2026-01-01T15:00:00Z'",
    "created_at <= TIMESTAMP '2026-01-01T14:00:00Z' AND state <> 'PENDING'",
    "created_at = TIMESTAMP '2026-01-01T16:00:00Z'",
    "queue = 'mail' OR event_type = 'a'",
    "state = 'nowhere'",
    "event_type LIKE 'a%' AND last_error = 'bad' AND state = 'DEAD'",
]


@pytest.mark.spark
def test_pushed_filters_return_same_rows_as_spark(session: "SparkSession", store: SqlStore, postgres_url: str) -> None:
    def read(**options: str) -> "DataFrame":
        given = {"store": postgres_url, "partitions": "3", "push_filters": "true", **options}
        return session.read.format("penstock").options(**given).load()

    everything = read().localCheckpoint()
    assert everything.count() == 240
    for number, condition in enumerate(FILTERS):
        expected = sorted(row.seq for row in everything.where(condition).collect())
        found = sorted(row.seq for row in read().where(condition).collect())
        assert found == expected, condition
        if number % 4:
            continue
        mixed = sorted(row.seq for row in read(queue="mail").where(condition).collect())
        of_mail = everything.where(condition).where("queue = 'mail'")
        assert mixed == sorted(row.seq for row in of_mail.collect()), condition


def scanned(frame: "DataFrame") -> int:
    """Return the number of rows that Spark received from the source for a query."""
    frame.collect()
    plan = frame._jdf.queryExecution().executedPlan()
    while plan.nodeName().split()[0] != "BatchScan":
        plan = plan.finalPhysicalPlan() if plan.nodeName() == "AdaptiveSparkPlan" else plan.children().head()
    return int(plan.metrics().apply("numOutputRows").value())


@pytest.mark.spark
@pytest.mark.parametrize(
    ("condition", "exact"),
    [
        ("state = 'DEAD'", True),
        ("queue IN ('mail', 'jobs') AND created_at > TIMESTAMP '2026-01-01T13:00:00Z'", True),
        ("queue = 'mail' AND priority = 1", False),
    ],
)
def test_pushed_filters_reduce_scanned_rows(
    session: "SparkSession", store: SqlStore, postgres_url: str, condition: str, exact: bool
) -> None:
    given = {"store": postgres_url, "push_filters": "true"}
    frame = session.read.format("penstock").options(**given).load().where(condition)
    count = scanned(frame)
    assert 0 < count < 240
    assert (count == frame.count()) is exact


@pytest.mark.spark
def test_unfiltered_query_after_filtered_query_returns_all_rows(
    session: "SparkSession", store: SqlStore, postgres_url: str
) -> None:
    frame = session.read.format("penstock").option("store", postgres_url).load()
    assert 0 < frame.where("state = 'DEAD'").count() < 240
    assert frame.count() == 240
