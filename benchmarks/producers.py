"""Plain producers to compare the relay with: the client library's own loop, in one process, from memory.

Each sends the same messages as the relay's publisher for the same events, and checks the acknowledgements.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from benchmarks.plan import EVENT_TYPE, PAYLOAD
from penstock.config.extras import needs_extra

TOPIC = "bench"
BATCH = 1_000


def kafka(url: str, count: int) -> float:
    """Return the events per second of `Producer.produce`, idempotent, with a report for each event."""
    from confluent_kafka import Producer

    settings = {"bootstrap.servers": _address(url), "enable.idempotence": True, "acks": "all"}
    producer = Producer(settings | {"queue.buffering.max.messages": 100_000})
    reported = 0

    def report(error: object, _: object) -> None:
        nonlocal reported
        assert error is None, error
        reported += 1

    began = time.perf_counter()
    for fields in _fields(count):
        headers: list[tuple[str, str | bytes | None]] = [
            *(("event_id", fields["id"]), ("penstock-event-type", EVENT_TYPE)),
            *(("penstock-queue", "outbox"), ("penstock-created-at", fields["at"])),
        ]
        while True:
            try:
                producer.produce(TOPIC, PAYLOAD, None, on_delivery=report, headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()
    assert reported == count
    return count / (time.perf_counter() - began)


def make_topic(url: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    admin = AdminClient({"bootstrap.servers": _address(url)})
    if TOPIC in admin.list_topics(timeout=10).topics:
        admin.delete_topics([TOPIC])[TOPIC].result()
        while TOPIC in admin.list_topics(timeout=10).topics:
            time.sleep(0.05)
    admin.create_topics([NewTopic(TOPIC, num_partitions=4)])[TOPIC].result()


def nats(url: str, count: int) -> float:
    """Return the events per second of JetStream's `publish_async`, with the acknowledgements awaited by batch."""
    return asyncio.run(_nats(url, count))


async def _nats(url: str, count: int) -> float:
    import nats as client

    connection = await client.connect(url)
    stream = connection.jetstream(publish_async_max_pending=2 * BATCH)
    began = time.perf_counter()
    waiting: list[Any] = []
    for fields in _fields(count):
        headers = {"Nats-Msg-Id": fields["id"], "type": EVENT_TYPE, "queue": "outbox", "created_at": fields["at"]}
        waiting.append(await stream.publish_async(TOPIC, PAYLOAD, headers=headers))
        if len(waiting) == BATCH:
            await asyncio.gather(*waiting)
            waiting.clear()
    await asyncio.gather(*waiting)
    seconds = time.perf_counter() - began
    await connection.close()
    return count / seconds


def make_stream(url: str) -> None:
    asyncio.run(_make_stream(url))


async def _make_stream(url: str) -> None:
    import nats as client
    from nats.js.errors import NotFoundError

    connection = await client.connect(url)
    stream = connection.jetstream()
    with suppress(NotFoundError):
        await stream.delete_stream(TOPIC)
    await stream.add_stream(name=TOPIC, subjects=[TOPIC])
    await connection.close()


def valkey(url: str, count: int) -> float:
    """Return the events per second of pipelined XADD commands."""
    from valkey import Valkey

    with Valkey.from_url(url) as client:
        began = time.perf_counter()
        pipeline: Any = client.pipeline(transaction=False)
        for number, fields in enumerate(_fields(count), 1):
            entry = {"event_id": fields["id"], "event_type": EVENT_TYPE, "queue": "outbox", "payload": PAYLOAD}
            pipeline.xadd(TOPIC, {**entry, "headers": "{}", "created_at": fields["at"]})
            if number % BATCH == 0:
                pipeline.execute()
        pipeline.execute()
        return count / (time.perf_counter() - began)


def flush_valkey(url: str) -> None:
    from valkey import Valkey

    with Valkey.from_url(url) as client:
        client.flushall()


def rabbitmq(url: str, count: int) -> float:
    """Return the events per second of aio-pika, with the confirms awaited by batch."""
    return asyncio.run(_rabbitmq(url, count))


async def _rabbitmq(url: str, count: int) -> float:
    from aio_pika import DeliveryMode, Message, connect

    async with await connect(url) as connection:
        exchange = (await connection.channel(publisher_confirms=True)).default_exchange
        began = time.perf_counter()
        waiting: list[Any] = []
        for number, fields in enumerate(_fields(count), 1):
            given: dict[str, Any] = {"penstock-queue": "outbox", "penstock-created-at": fields["at"]}
            message = Message(
                PAYLOAD,
                headers=given,
                message_id=fields["id"],
                type=EVENT_TYPE,
                delivery_mode=DeliveryMode.PERSISTENT,
            )
            waiting.append(exchange.publish(message, TOPIC))
            if len(waiting) == BATCH or number == count:
                await asyncio.gather(*waiting)
                waiting.clear()
        return count / (time.perf_counter() - began)


def make_queue(url: str) -> None:
    asyncio.run(_make_queue(url))


async def _make_queue(url: str) -> None:
    with needs_extra("the benchmark of RabbitMQ", "bench"):
        from aio_pika import connect
    async with await connect(url) as connection:
        await (await (await connection.channel()).declare_queue(TOPIC, durable=True)).purge()


def _fields(count: int) -> Iterator[dict[str, str]]:
    """Yield the fields that differ between messages."""
    for _ in range(count):
        yield {"id": str(uuid4()), "at": datetime.now(UTC).isoformat()}


def _address(url: str) -> str:
    return url.partition("://")[2].rstrip("/")
