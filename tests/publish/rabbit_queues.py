"""Queues of a RabbitMQ server for tests, created and read with another client than the publisher's."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import aiormq
from aiormq.abc import AbstractChannel, DeliveredMessage

from penstock.publish.rabbitmq.publisher import ORDERING_KEY_HEADER, OWN_HEADERS, PARTITION_KEY_HEADER


def with_channel(url: str, work: Callable[[AbstractChannel], Coroutine[Any, Any, Any]]) -> Any:
    """Run `work` on a separate connection and return its result."""

    async def run() -> Any:
        connection = await aiormq.connect(url)
        try:
            return await work(await connection.channel())
        finally:
            await connection.close()

    return asyncio.run(run())


def make_fresh(url: str, queues: Mapping[str, Mapping[str, Any]]) -> None:
    """Create empty durable queues with these names and arguments."""

    async def work(channel: AbstractChannel) -> None:
        for name, arguments in queues.items():
            await channel.queue_delete(name)
            await channel.queue_declare(name, durable=True, arguments=dict(arguments))

    with_channel(url, work)


def held(url: str, queue: str) -> list[DeliveredMessage]:
    """Return the messages in a queue, oldest first. Nothing is acknowledged, so that all messages stay in the queue."""

    async def work(channel: AbstractChannel) -> list[DeliveredMessage]:
        arrived: asyncio.Queue[DeliveredMessage] = asyncio.Queue()
        count = (await channel.queue_declare(queue, passive=True)).message_count or 0
        await channel.basic_consume(queue, arrived.put)
        return [await arrived.get() for _ in range(count)]

    messages: list[DeliveredMessage] = with_channel(url, work)
    return messages


def as_received(message: DeliveredMessage) -> Any:
    """Decode the event of a message, for comparison in the conformance suite."""
    # Imported here, after pytest has registered the module for assertion rewriting.
    from penstock.testing.publishers import StoredMessage

    properties = message.header.properties
    headers = dict(properties.headers or {})
    return StoredMessage(
        event_id=properties.message_id,
        event_type=properties.message_type,
        payload=message.body,
        headers={name: value for name, value in headers.items() if name not in OWN_HEADERS},
        partition_key=headers.get(PARTITION_KEY_HEADER),
        ordering_key=headers.get(ORDERING_KEY_HEADER),
    )
