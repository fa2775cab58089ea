"""Streams that read a real Kafka broker through Spark's connector."""

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kafka_env import Topics
from step_env import Ground
from stream_env import DEAD, LIVE, Shop, records, remember, states

from penstock.model.errors import PipelineError, UsageError
from penstock.model.selection import Selection
from penstock.pipeline.streams.sources.kafka.connector_jars import coordinates
from penstock.pipeline.streams.sources.kafka.source import KafkaSource
from penstock.streams.context import Context
from penstock.streams.event import StreamEvent
from penstock.streams.sources import Kafka
from tests.support.servers import KafkaServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.usefixtures("reads_kafka")]


@pytest.fixture
def topics(kafka_server: KafkaServer) -> Topics:
    return Topics(kafka_server)


def expected(*numbers: range) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for number in (number for some in numbers for number in some):
        found[f"customer {number % 5}"].append(number)
    return dict(found)


def test_records_are_applied_once_in_key_order(spark: "SparkSession", embedded: Ground, topics: Topics) -> None:
    topic = topics.create(3)
    shop = Shop(spark, embedded, Kafka(topics.servers, topic, {"maxOffsetsPerTrigger": "150"}))
    topics.put_orders(topic, range(500))
    shop.run()
    assert shop.seen() == expected(range(500))
    assert sorted(record.payload for record in records(embedded.outbox, "seen")) == sorted(
        b'{"number":%d}' % number for number in range(500)
    )


@pytest.mark.parametrize("kept", [True, False])
def test_records_are_applied_once_if_checkpoint_is_lost(
    spark: "SparkSession", embedded: Ground, topics: Topics, tmp_path: Path, kept: bool
) -> None:
    topic = topics.create()
    shop = Shop(spark, embedded, Kafka(topics.servers, topic))
    for turn in range(3):
        topics.put_orders(topic, range(turn * 100, turn * 100 + 100))
        shop.run(tmp_path / ("checkpoint" if kept else f"checkpoint {turn}"))
        assert shop.seen() == expected(range(turn * 100 + 100))
    assert len(records(embedded.outbox, "seen")) == 300


def test_failed_record_blocks_no_others_and_keeps_origin(
    spark: "SparkSession", embedded: Ground, topics: Topics, tmp_path: Path
) -> None:
    """Failed events are retried and replayed in the retry queue; reading Kafka again applies no event twice."""
    mended = tmp_path / "mended"

    def fail(event: StreamEvent, ctx: Context) -> None:
        number = event.json()["number"]
        if number == 10 and not mended.exists():
            raise ValueError("never")
        if number == 11 and not event.moved:
            raise ConnectionError("not yet")
        remember(event, ctx)

    topic = topics.create(1)
    shop = Shop(spark, embedded, Kafka(topics.servers, topic), fail, max_retries=1)
    topics.put_orders(topic, range(10))
    topics.put(topic, "customer 0", {"number": 10}, headers={"colour": b"red", "penstock-event-type": b"order.placed"})
    topics.put_orders(topic, range(11, 20))
    shop.run_until(lambda: not shop.records(LIVE) and bool(shop.records(DEAD)))
    assert shop.seen() == expected(range(20)) | {"customer 0": [0, 5, 15], "customer 1": [1, 6, 16, 11]}
    (dead,) = shop.records(DEAD)
    assert dead.last_error is not None
    assert dead.last_error.startswith("ValueError: never\n")
    assert (dead.event_type, dead.payload, dead.partition_key) == ("order.placed", b'{"number": 10}', "customer 0")
    assert dead.headers == {
        "colour": "red",
        "penstock-event-type": "order.placed",
        "penstock-stream": "shop",
        "penstock-stream-key": "customer 0",
        "penstock-stream-origin": f"{topic}/0/10",
    }
    mended.touch()
    assert embedded.outbox.store.replay(Selection(queue="streams/shop", states=DEAD)) == 1
    shop.run_until(lambda: not shop.records(LIVE))
    assert shop.seen()["customer 0"] == [0, 5, 15, 10]
    assert len(records(embedded.outbox, "seen")) == 20


def test_recreated_topic_is_read_as_new_topic(
    spark: "SparkSession", embedded: Ground, topics: Topics, tmp_path: Path
) -> None:
    """A recreated topic starts again at offset 0. By name and offset alone its records would count as applied.

    The new topic has more records than the old one, so that Spark's old checkpoint would continue in its middle.
    """
    topic = topics.create()
    shop = Shop(spark, embedded, Kafka(topics.servers, topic))
    topics.put_orders(topic, range(50))
    shop.run(tmp_path / "checkpoint")
    topics.create_anew(topic)
    topics.put_orders(topic, range(100, 200))
    shop.run(tmp_path / "checkpoint")
    assert shop.seen() == expected(range(50), range(100, 200))
    shop.run()
    assert shop.seen() == expected(range(50), range(100, 200))


def test_topic_recreated_while_reading_ends_stream(spark: "SparkSession", embedded: Ground, topics: Topics) -> None:
    topic = topics.create()
    source = KafkaSource(Kafka(topics.servers, topic))
    source.load(spark)
    assert source.topics()[topic].startswith(f"{topic}@")
    topics.create_anew(topic)
    with pytest.raises(PipelineError, match="was deleted and recreated while being read; restart the stream"):
        source.topics()
    source.close()


def test_non_text_keys_headers_and_payloads_are_mapped(spark: "SparkSession", embedded: Ground, topics: Topics) -> None:
    def look(event: StreamEvent, ctx: Context) -> None:
        payload = event.payload.decode() if event.payload else "none"
        ctx.state["seen"] = [
            payload,
            event.event_type,
            event.event_id,
            dict(event.headers),
            event.created_at is not None,
        ]

    topic = topics.create(1)
    many = [("a", b"1"), ("a", b"2"), ("b", b"\xff"), ("c", None), ("d", "ö".encode()), ("penstock-tombstone", b"true")]
    topics.put(topic, "plain", b"0", headers=[*many, ("penstock-stream-key", b"another's")])
    topics.put(topic, "gone", None)
    topics.put(topic, b"\xff" * 60, b"2")
    topics.put(topic, (5).to_bytes(8), b"3", headers={"penstock-event-type": b"order.placed"})
    topics.put(topic, "ö", b"4")
    topics.flush()
    shop = Shop(spark, embedded, Kafka(topics.servers, topic), look)
    shop.run()
    encoded = {"penstock-key-encoding": "base64"}
    typed = {"penstock-event-type": "order.placed"}
    assert shop.seen() == {
        "plain": ["0", topic, f"{topic}/0/0", {"a": "2", "d": "ö"}, True],
        "gone": ["none", topic, f"{topic}/0/1", {"penstock-tombstone": "true"}, True],
        "/" * 80: ["2", topic, f"{topic}/0/2", encoded, True],
        "AAAAAAAAAAU=": ["3", "order.placed", f"{topic}/0/3", typed | encoded, True],
        "ö": ["4", topic, f"{topic}/0/4", {}, True],
    }


def test_pattern_topics_and_committed_transactions_are_read(
    spark: "SparkSession", embedded: Ground, topics: Topics
) -> None:
    """Topics created later are read, too, if they match the pattern. Records of aborted transactions are skipped."""
    first = topics.create(1)
    shop = Shop(spark, embedded, Kafka(topics.servers, f"{topics.stem}-[12]", pattern=True))
    topics.put_orders(first, range(10))
    topics.put_in_transaction(first, range(10, 15), commit=False)
    topics.put_in_transaction(first, range(15, 20), commit=True)
    shop.run()
    assert shop.seen() == expected(range(10), range(15, 20))
    topics.put_orders(topics.create(1), range(100, 110))
    topics.put_orders(topics.create(1), range(200, 210))
    shop.run()
    assert shop.seen() == expected(range(10), range(15, 20), range(100, 110))


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"topics": "none.such"}, PipelineError, "topic does not exist: none.such at "),
        ({"options": {"kafka.auto.offset.reset": "latest"}}, UsageError, "with these options: .*auto.offset.reset"),
        ({"options": {"kafka.security.protocol": "x"}}, UsageError, "with these options: .*security.protocol"),
        ({"options": {"Subscribe": "x"}}, UsageError, "option 'Subscribe' cannot be set"),
        (
            {
                "servers": "127.0.0.1:1",
                "options": {"kafka.default.api.timeout.ms": "2000", "kafka.request.timeout.ms": "1000"},
            },
            PipelineError,
            "cannot reach .*: TimeoutException",
        ),
    ],
)
def test_unusable_kafka_source_is_named_in_error(
    spark: "SparkSession", embedded: Ground, topics: Topics, given: dict[str, Any], kind: type[Exception], message: str
) -> None:
    source = Kafka(**({"servers": topics.servers, "topics": topics.create(1)} | given))
    with pytest.raises(kind, match=message):
        Shop(spark, embedded, source).run()


@pytest.mark.slow
def test_new_session_adds_connector_to_submit_arguments(embedded: Ground, topics: Topics) -> None:
    variables = {"PYSPARK_SUBMIT_ARGS": "--driver-memory 1g pyspark-shell"}
    topic = topics.create(1)
    topics.put_orders(topic, range(10))
    ended = run_session(embedded, topics, topic, variables)
    assert ended.returncode == 0, ended.stderr
    assert {key: found["seen"] for key, found in states(state_of(embedded), "shop").items()} == expected(range(10))


@pytest.mark.slow
def test_running_session_without_connector_is_usage_error(embedded: Ground, topics: Topics) -> None:
    ended = run_session(embedded, topics, topics.create(1), {}, "before")
    assert ended.returncode == 1
    assert "UsageError: the running Spark session lacks Spark's Kafka connector" in ended.stderr
    assert coordinates() in ended.stderr


def run_session(
    ground: Ground, topics: Topics, topic: str, variables: dict[str, str], *more: str
) -> "subprocess.CompletedProcess[str]":
    program = str(Path(__file__).with_name("kafka_session.py"))
    command = [sys.executable, program, ground.url, state_of(ground), topics.servers, topic, *more]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=200)


def state_of(ground: Ground) -> str:
    return f"sqlite:///{ground.folder}/state"
