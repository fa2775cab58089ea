"""Order of events at the broker: with four relays, a thousand keys, refusals and kills, each key stays in order."""

import asyncio
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from relay_processes import RelayProcess

from penstock.model.event import Event
from penstock.outbox import Outbox, connect
from tests.support.processes import wait_until
from tests.support.servers import KafkaServer, NatsServer

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

RELAYS = 4
KEYS = 1_000
EVENTS_A_KEY = 8
KILLS = 3
WAIT_SECONDS = 300.0
TOPIC = "ordered"
# At each of these steps a worker dies with a small probability, and two events in a hundred are refused.
CHANCES = "refuse:2%,after-claim:0.5%,in-publish:0.5%,after-publish:0.5%,after-settle:0.5%"

Log = dict[str, list[int]]
"""Numbers of each key at the broker, in the broker's order."""


@pytest.fixture
def outbox(postgres_url: str) -> Iterator[Outbox]:
    with connect(postgres_url) as opened:
        opened.store.initialise()
        yield opened


def emit_all(outbox: Outbox) -> None:
    """Emit number by number, each number for all keys in a new random order."""
    keys = [f"key-{number}" for number in range(KEYS)]
    for number in range(EVENTS_A_KEY):
        random.shuffle(keys)
        outbox.emit_many([Event(event_type="e", payload=f"{key}:{number}".encode(), ordering_key=key) for key in keys])


def relay_under_fire(outbox: Outbox, url: str, destination: str, folder: Path) -> None:
    """Run four relays until all events are published; kill and replace one of them three times."""
    given = {"store": url, "destination": destination, "topic": TOPIC, "master": "local[1]", "crash": CHANCES}
    relays = [RelayProcess(folder / f"relay-{number}", **given) for number in range(RELAYS)]
    try:
        emit_all(outbox)
        for kill in range(1, KILLS + 1):
            enough = KEYS * EVENTS_A_KEY * kill // (KILLS + 2)
            assert wait_until(lambda e=enough: count(outbox, "published") >= e, WAIT_SECONDS), relays[0].log
            relays.pop(0).__exit__()
            relays.append(RelayProcess(folder / f"relay-{RELAYS + kill}", **given))
        all_there = KEYS * EVENTS_A_KEY
        assert wait_until(lambda: count(outbox, "published") == all_there, WAIT_SECONDS), (
            outbox.store.stats(),
            relays[0].log,
        )
    finally:
        for relay in relays:
            relay.__exit__()


def count(outbox: Outbox, state: str) -> int:
    return int(outbox.store.stats().total(state))


def assert_in_order(log: Log) -> int:
    """Assert that every number of each key arrived in order; return how many arrived more than once.

    After a kill, events that were sent but not settled are sent again: a repeated sequence, which is itself in order.
    """
    assert log.keys() == {f"key-{number}" for number in range(KEYS)}
    repeated = 0
    for key, numbers in log.items():
        assert list(dict.fromkeys(numbers)) == list(range(EVENTS_A_KEY)), (key, numbers)
        for last, following in pairwise(numbers):
            assert following <= last + 1, (key, numbers)
        repeated += len(numbers) - EVENTS_A_KEY
    return repeated


def logged(payloads: list[bytes]) -> Log:
    log: Log = {}
    for payload in payloads:
        key, _, number = payload.decode().rpartition(":")
        log.setdefault(key, []).append(int(number))
    return log


def test_keys_stay_in_order_at_kafka(
    outbox: Outbox,
    postgres_url: str,
    kafka_server: KafkaServer,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    _make_topic(kafka_server)
    relay_under_fire(outbox, postgres_url, kafka_server.url(), tmp_path)
    repeated = assert_in_order(logged(_read_topic(kafka_server)))
    record_property("repeated", repeated)


def test_keys_stay_in_order_at_nats(
    outbox: Outbox,
    postgres_url: str,
    nats_server: NatsServer,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """The duplicate window is minimal: otherwise the server would remove the repeats that the test counts."""
    asyncio.run(_make_stream(nats_server.url()))
    relay_under_fire(outbox, postgres_url, nats_server.url(), tmp_path)
    repeated = assert_in_order(logged(asyncio.run(_read_stream(nats_server.url()))))
    record_property("repeated", repeated)


def _bootstrap(server: KafkaServer) -> dict[str, Any]:
    return {"bootstrap.servers": server.url().partition("://")[2].rstrip("/")}


def _make_topic(server: KafkaServer) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient(_bootstrap(server))
    admin.create_topics([NewTopic(TOPIC, num_partitions=4)])[TOPIC].result()


def _read_topic(server: KafkaServer) -> list[bytes]:
    """Return all payloads of the topic, partition by partition: each key is in only one partition."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({**_bootstrap(server), "group.id": "test", "enable.auto.commit": False})
    try:
        payloads: list[bytes] = []
        for partition in range(4):
            _, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=30)
            consumer.assign([TopicPartition(TOPIC, partition, 0)])
            while True:
                message = consumer.poll(0.5)
                if message is not None:
                    assert message.error() is None, message.error()
                    payloads.append(message.value())
                position = consumer.position([TopicPartition(TOPIC, partition)])[0].offset
                if position >= end or end == 0:
                    break
        return payloads
    finally:
        consumer.close()


async def _make_stream(url: str) -> None:
    import nats
    from nats.js.api import StreamConfig

    connection = await nats.connect(url)
    # The shortest window that the server accepts.
    await connection.jetstream().add_stream(StreamConfig(name="ORDERED", subjects=[TOPIC], duplicate_window=0.1))
    await connection.close()


async def _read_stream(url: str) -> list[bytes]:
    import nats

    connection = await nats.connect(url)
    stream = connection.jetstream()
    state = (await stream.stream_info("ORDERED")).state
    found = [await stream.get_msg("ORDERED", number) for number in range(state.first_seq, state.last_seq + 1)]
    await connection.close()
    return [message.data or b"" for message in found]
