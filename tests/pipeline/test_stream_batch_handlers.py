"""Batch handlers on Spark, over a queue and a DataFrame: failing events, and an event that kills its process."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from step_env import Ground
from stream_env import DEAD, LIVE, Shop, records, states

from penstock.streams.engine.batch_handlers import BatchContext
from penstock.streams.sources import Frame, Queue, Source
from tests.support.files import write_whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

EVENTS = 90
NEVER, NOT_YET, KILLS = 7, 8, 9
SCHEMA = "line STRING, offset BIGINT, partition_key STRING, number INT"


def source_of(kind: str, ground: Ground, folder: Path, numbers: range) -> Source:
    """Write the numbers, spread over three customers, to a queue or a file; return the source."""
    if kind == "queue":
        outbox = ground.outbox
        outbox.emit_many(
            outbox.event("order", {"number": number}, queue="orders", partition_key=f"customer {number % 3}")
            for number in numbers
        )
        return Queue("orders")
    folder.mkdir(exist_ok=True)
    rows = [
        {"line": "shop", "offset": number, "partition_key": f"customer {number % 3}", "number": number}
        for number in numbers
    ]
    write_whole(folder / f"{numbers.start}.json", "".join(json.dumps(row) + "\n" for row in rows))

    def read(spark: "SparkSession") -> "DataFrame":
        return spark.readStream.schema(SCHEMA).json(str(folder))

    return Frame(read)


def count(orders: Any, ctx: BatchContext) -> None:
    sums = orders.group_by("key").aggregate([("number", "count"), ("number", "sum")])
    before = ctx.states.table(sums["key"], {"count": "int64", "sum": "int64"}).to_pylist()
    counts = [(was["count"] or 0) + more for was, more in zip(before, sums["number_count"].to_pylist(), strict=True)]
    totals = [(was["sum"] or 0) + more for was, more in zip(before, sums["number_sum"].to_pylist(), strict=True)]
    ctx.states.put(pa.table({"key": sums["key"].to_pylist(), "count": counts, "sum": totals}))
    for number in orders["number"].to_pylist():
        ctx.emit("counted", {"number": number}, queue="counted")


def expected(numbers: set[int]) -> dict[str, dict[str, int]]:
    by_customer = {f"customer {rest}": [number for number in numbers if number % 3 == rest] for rest in range(3)}
    return {key: {"count": len(of), "sum": sum(of)} for key, of in by_customer.items()}


def emitted(ground: Ground) -> list[int]:
    return sorted(json.loads(record.payload)["number"] for record in records(ground.outbox, "counted"))


@pytest.mark.parametrize("kind", ["queue", "dataframe"])
def test_events_are_applied_once(spark: "SparkSession", embedded: Ground, tmp_path: Path, kind: str) -> None:
    source = source_of(kind, embedded, tmp_path / "in", range(EVENTS))
    shop = Shop(spark, embedded, source, count, batch="arrow", fields={"number": "int64"})
    shop.run()
    source_of(kind, embedded, tmp_path / "in", range(EVENTS, EVENTS + 30))
    shop.run()  # with a new checkpoint: the rows of the first file are read again
    assert states(shop.state, "shop") == expected(set(range(EVENTS + 30)))
    assert emitted(embedded) == list(range(EVENTS + 30))
    assert not records(embedded.outbox, "orders", LIVE)


@pytest.mark.parametrize("kind", ["queue", "dataframe"])
def test_failing_event_becomes_dead_letter_alone(
    spark: "SparkSession", embedded: Ground, tmp_path: Path, kind: str
) -> None:
    def fail(orders: Any, ctx: BatchContext) -> None:
        count(orders, ctx)
        for number, attempts in zip(orders["number"].to_pylist(), orders["attempts"].to_pylist(), strict=True):
            if number == NEVER:
                raise ValueError("never")
            if number == NOT_YET and not attempts:
                raise ConnectionError("not yet")

    queue = "orders" if kind == "queue" else "streams/shop"
    source = source_of(kind, embedded, tmp_path / "in", range(EVENTS))
    shop = Shop(spark, embedded, source, fail, batch="arrow", fields={"number": "int64"}, max_retries=2)
    shop.run_until(lambda: not records(embedded.outbox, queue, LIVE), tmp_path / "checkpoint")
    assert states(shop.state, "shop") == expected(set(range(EVENTS)) - {NEVER})
    assert emitted(embedded) == sorted(set(range(EVENTS)) - {NEVER})
    (dead,) = records(embedded.outbox, queue, DEAD)
    assert json.loads(dead.payload)["number"] == NEVER
    assert (dead.last_error or "").startswith("ValueError: never")


@pytest.mark.crash
@pytest.mark.parametrize("kind", ["queue", "dataframe"])
def test_poison_event_becomes_dead_letter_alone(
    spark: "SparkSession", embedded: Ground, tmp_path: Path, kind: str
) -> None:
    def kill(orders: Any, ctx: BatchContext) -> None:
        count(orders, ctx)
        if KILLS in orders["number"].to_pylist():
            os._exit(1)

    queue = "orders" if kind == "queue" else "streams/shop"
    source = source_of(kind, embedded, tmp_path / "in", range(12))
    shop = Shop(spark, embedded, source, kill, batch="arrow", fields={"number": "int64"})
    shop.run_until(lambda: bool(records(embedded.outbox, queue, DEAD)), tmp_path / "checkpoint")
    assert states(shop.state, "shop") == expected(set(range(12)) - {KILLS})
    (dead,) = records(embedded.outbox, queue, DEAD)
    assert "died" in (dead.last_error or "")
