"""Streams whose state Spark keeps: the same handlers, sums, retries and dead letters, and a checkpoint to continue."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Outbox, Streams, connect
from penstock.errors import UsageError
from penstock.lifecycle import State
from penstock.pipeline.stores import close_stores
from penstock.pipeline.streaming import run_streams
from penstock.store.base import Selection
from penstock.streams.context import Context
from penstock.streams.event import StreamEvent
from penstock.streams.sources import Frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ORDERS = "event_id STRING, partition_key STRING, amount LONG"


def test_state_in_spark_needs_a_checkpoint() -> None:
    app = Streams("sqlite:///unused.db", state="spark:")
    app.stream("orders")(total)
    with pytest.raises(UsageError, match="checkpoint"):
        run_streams(app)


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    pytest.importorskip("google.protobuf")
    with connect(f"sqlite:///{tmp_path / 'events.db'}") as made:
        made.store.initialise()
        yield made
    close_stores()


@pytest.fixture
def run(spark: "SparkSession", outbox: Outbox, tmp_path: Path) -> Callable[..., Any]:
    """Runs the stream over the files that are there, or over a queue, until nothing is ready."""

    def go(source: Any = None) -> Any:
        folder = tmp_path / "orders"
        frame = Frame(lambda session: session.readStream.schema(ORDERS).json(str(folder)))
        app = Streams(outbox.store.url, state="spark:")
        app.stream(source or frame, parts=2, max_retries=1, retry_seconds=0.0)(total)
        return run_streams(app, spark=spark, once=True, checkpoint=str(tmp_path / "checkpoint"))["total"]

    return go


def total(event: StreamEvent, ctx: Context) -> None:
    """Adds up, emits, and then fails where an amount is negative."""
    amount = event.json()["amount"]
    ctx.state["sum"] = ctx.state.get("sum", 0) + amount
    ctx.emit("total.changed", {"sum": ctx.state["sum"]}, queue="totals")
    if amount < 0:
        raise ValueError("a negative amount")


def orders(folder: Path, name: str, *rows: tuple[str, str, int]) -> None:
    folder.mkdir(exist_ok=True)
    lines = (json.dumps({"event_id": event_id, "partition_key": key, "amount": n}) for event_id, key, n in rows)
    (folder / f"{name}.json").write_text("\n".join(lines))


def sums(spark: "SparkSession", tmp_path: Path) -> dict[str, int]:
    """As Spark itself shows them."""
    checkpoint = str(tmp_path / "checkpoint" / "total")
    rows = spark.read.format("statestore").option("stateVarName", "state").load(checkpoint).collect()
    return {row.key.stream_key: json.loads(row.value.data)["sum"] for row in rows}


def emitted(outbox: Outbox) -> list[int]:
    page = outbox.store.find(Selection(queue="totals"), limit=100)
    return sorted(json.loads(record.payload)["sum"] for record in page.records)


def test_sums_are_right_and_go_on_from_the_checkpoint(
    spark: "SparkSession", outbox: Outbox, run: Callable[..., Any], tmp_path: Path
) -> None:
    orders(tmp_path / "orders", "1", ("a", "ada", 1), ("b", "ada", 2), ("c", "bob", 5), ("a", "ada", 1))
    run()
    assert sums(spark, tmp_path) == {"ada": 3, "bob": 5}
    orders(tmp_path / "orders", "2", ("d", "ada", 4), ("b", "ada", 2))
    run()
    assert sums(spark, tmp_path) == {"ada": 7, "bob": 5}
    assert emitted(outbox) == [1, 3, 5, 7]


def test_an_event_that_fails_is_tried_again_and_then_dead(
    spark: "SparkSession", outbox: Outbox, run: Callable[..., Any], tmp_path: Path
) -> None:
    orders(tmp_path / "orders", "1", ("a", "ada", 1), ("b", "ada", -5), ("c", "ada", 2), ("none", "", 1))
    for _ in range(3):  # what is to be retried is there again when its batch is committed
        run()
    dead = outbox.store.find(Selection(states=frozenset({State.DEAD}), queue="streams/total"), limit=10).records
    assert sorted(record.headers["penstock-stream-origin"] for record in dead) == ["b", "none"]
    assert {"a negative amount" in (record.last_error or "") for record in dead} == {True, False}
    assert sums(spark, tmp_path) == {"ada": 3}
    assert emitted(outbox) == [1, 3]


def test_a_queue_is_told_when_the_state_is_committed(
    spark: "SparkSession", outbox: Outbox, run: Callable[..., Any], tmp_path: Path
) -> None:
    outbox.emit_many(
        outbox.event("order", {"amount": n}, queue="orders", partition_key=f"k{n % 3}") for n in range(-1, 30)
    )
    for _ in range(3):
        counts = run("orders")
    assert sums(spark, tmp_path) == {f"k{key}": sum(n for n in range(30) if n % 3 == key) for key in range(3)}
    settled = outbox.store.find(Selection(queue="orders"), limit=100).records
    assert sorted(str(record.state) for record in settled) == ["DEAD"] + ["PUBLISHED"] * 30
    assert counts.applied == 0
