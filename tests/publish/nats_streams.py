"""Streams for the tests of the NATS publisher: created, filled and read. Each call opens a separate connection."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import unquote
from uuid import uuid4

import nats
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DiscardPolicy, RetentionPolicy, StreamConfig

from penstock.testing.publishers import StoredMessage

Result = TypeVar("Result")
OWN = ("Nats-Msg-Id", "Penstock-")


class Streams:
    """The streams of one server.

    Every stream gets a unique name, because a stream created soon after the deletion of one with the same name may find
    its messages.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._names: dict[str, str] = {}

    def create(self, name: str, *subjects: str, **settings: Any) -> None:
        self._names[name] = f"{name}_{uuid4().hex}"
        config = StreamConfig(name=self._names[name], subjects=list(subjects), **settings)
        self._run(lambda streams: streams.add_stream(config))

    def create_full(self, name: str, subject: str) -> None:
        """Create a stream that has reached its limit and refuses further messages."""
        self.create(name, subject, max_msgs=1, discard=DiscardPolicy.NEW, retention=RetentionPolicy.LIMITS)
        self._run(lambda streams: streams.publish(subject, b"the only one"))

    def delete_all(self) -> None:
        async def delete(streams: JetStreamContext) -> None:
            for name in await streams.streams_info():
                await streams.delete_stream(str(name.config.name))

        self._run(delete)

    def raw(self, stream: str, subject: str) -> list[Any]:
        """Return the messages of a subject in the stream, oldest first."""
        name = self._names.get(stream, stream)

        async def read(streams: JetStreamContext) -> list[Any]:
            info = await streams.stream_info(name, subjects_filter=subject)
            left = (info.state.subjects or {}).get(subject, 0)
            config = ConsumerConfig(ack_policy=AckPolicy.NONE)
            reader = await streams.pull_subscribe(subject, stream=name, config=config)
            found: list[Any] = []
            while len(found) < left:
                found += await reader.fetch(left - len(found), timeout=10)
            return found

        return self._run(read)

    def received(self, stream: str, subject: str) -> list[StoredMessage]:
        return [as_received(message) for message in self.raw(stream, subject)]

    def _run(self, work: Callable[[JetStreamContext], Awaitable[Result]]) -> Result:
        async def connected() -> Result:
            async with await nats.connect(self._url, allow_reconnect=False) as client:
                return await work(client.jetstream())

        return asyncio.run(connected())


def as_received(message: Any) -> StoredMessage:
    """Decode the event of a message, as documented for consumers."""
    headers = dict(message.headers)
    fields = {name: unquote(value) for name, value in headers.items() if name.startswith("Penstock-")}
    own = {name: value for name, value in headers.items() if not name.startswith(OWN)}
    return StoredMessage(
        event_id=fields["Penstock-Event-Id"],
        event_type=fields["Penstock-Event-Type"],
        payload=message.data,
        headers=own | json.loads(headers.get("Penstock-Headers", "{}")),
        partition_key=fields.get("Penstock-Partition-Key"),
        ordering_key=fields.get("Penstock-Ordering-Key"),
    )
