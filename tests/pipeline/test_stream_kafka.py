"""Streams that read Kafka, through Spark's connector and from a real broker."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kafka_ground import Topics
from step_ground import Ground
from stream_ground import records, states

from penstock import Streams
from penstock.pipeline.stores import close_stores
from penstock.pipeline.streaming import run_streams
from penstock.streams.context import Context
from penstock.streams.event import StreamEvent
from penstock.streams.sources import Kafka
from penstock.testing.processes import wait_until
from penstock.testing.servers import KafkaServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.usefixtures("reads_kafka")]

SECONDS = 120.0


@pytest.fixture
def topics(kafka_server: KafkaServer) -> Topics:
    return Topics(kafka_server)


class Shop:
    """A stream over a topic: what it saw of each key, and its state, dead letters and moved events."""

    def __init__(self, spark: "SparkSession", ground: Ground, source: Kafka, handler: Any = None, **given: Any) -> None:
        self.ground = ground
        self.state = f"sqlite:///{ground.folder}/state"
        self.app = Streams(ground.url, state=self.state)
        self._spark = spark
        self.app.stream(source, name="shop", parts=3, retry_seconds=0.01, **given)(handler or remember)

    def run(self, checkpoint: Path | None = None) -> int:
        counts = run_streams(
            self.app, spark=self._spark, once=True, checkpoint=None if checkpoint is None else str(checkpoint)
        )
        close_stores()
        return counts["shop"].batches

    def run_until(self, holds: Callable[[], bool]) -> None:
        """Failed events come again when their time has come."""

        def once_more() -> bool:
            self.run()
            return holds()

        assert wait_until(once_more, SECONDS)

    def seen(self) -> dict[str, list[Any]]:
        return {key: found["seen"] for key, found in states(self.state, "shop").items()}

    def records(self, *args: Any) -> list[Any]:
        return records(self.ground.outbox, "streams/shop", *args)


def remember(event: StreamEvent, ctx: Context) -> None:
    """The numbers of a key, in the order in which they were processed."""
    ctx.state["seen"] = [*ctx.state.get("seen", []), event.json()["number"]]
    ctx.emit("order.seen", event.json(), queue="seen")


def expected(*numbers: range) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for number in (number for some in numbers for number in some):
        found[f"customer {number % 5}"].append(number)
    return dict(found)


def test_every_record_counts_once_and_in_the_order_of_its_key(
    spark: "SparkSession", embedded: Ground, topics: Topics
) -> None:
    topic = topics.create(3)
    shop = Shop(spark, embedded, Kafka(topics.servers, topic, {"maxOffsetsPerTrigger": "150"}))
    topics.put_orders(topic, range(500))
    shop.run()
    assert shop.seen() == expected(range(500))
    assert sorted(record.payload for record in records(embedded.outbox, "seen")) == sorted(
        b'{"number":%d}' % number for number in range(500)
    )


@pytest.mark.parametrize("kept", [True, False])
def test_a_checkpoint_that_is_lost_costs_nothing(
    spark: "SparkSession", embedded: Ground, topics: Topics, tmp_path: Path, kept: bool
) -> None:
    topic = topics.create()
    shop = Shop(spark, embedded, Kafka(topics.servers, topic))
    for turn in range(3):
        topics.put_orders(topic, range(turn * 100, turn * 100 + 100))
        shop.run(tmp_path / ("checkpoint" if kept else f"checkpoint {turn}"))
        assert shop.seen() == expected(range(turn * 100 + 100))
    assert len(records(embedded.outbox, "seen")) == 300
