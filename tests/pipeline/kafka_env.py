"""Create, fill and delete Kafka topics for the tests of streams."""

import json
from collections.abc import Iterable
from itertools import count
from typing import Any
from uuid import uuid4

from confluent_kafka import Producer, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.processes import wait_until
from tests.support.servers import KafkaServer

SECONDS = 90.0


class Topics:
    """Client of the broker. Each instance uses new topic names, because topics outlive their tests."""

    def __init__(self, server: KafkaServer) -> None:
        self.servers = f"127.0.0.1:{server.port}"
        at = {"bootstrap.servers": self.servers, "log_level": 0}
        self._admin = AdminClient(at)
        self._settings = {**at, "enable.idempotence": True}
        self._producer = Producer(self._settings)
        self.stem = f"orders.{uuid4().hex[:8]}"
        self._numbers = count(1)

    def create(self, partitions: int = 2, name: str | None = None) -> str:
        topic = name or f"{self.stem}-{next(self._numbers)}"
        self._admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(SECONDS)
        assert wait_until(lambda: topic in self._names(), SECONDS)
        return topic

    def create_anew(self, topic: str, partitions: int = 2) -> None:
        """Delete a topic and create a new one with the same name."""
        old = self.topic_id(topic)
        self._admin.delete_topics([topic])[topic].result(SECONDS)
        assert wait_until(lambda: topic not in self._names(), SECONDS)
        self.create(partitions, topic)
        assert wait_until(lambda: self.topic_id(topic) != old, SECONDS)
        # Replace the producer: the old one remembers its progress in the deleted topic.
        self._producer = Producer(self._settings)

    def topic_id(self, topic: str) -> str:
        return str(self._admin.describe_topics(TopicCollection([topic]))[topic].result(SECONDS).topic_id)

    def put(self, topic: str, key: Any, value: Any, **more: Any) -> None:
        body = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
        self._producer.produce(topic, body, key, **more)

    def put_orders(self, topic: str, numbers: Iterable[int], keys: int = 5) -> None:
        for number in numbers:
            self.put(topic, f"customer {number % keys}", {"number": number})
        self.flush()

    def put_in_transaction(self, topic: str, numbers: Iterable[int], *, commit: bool) -> None:
        producer = Producer({**self._settings, "transactional.id": f"{topic} {commit}"})
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        for number in numbers:
            producer.produce(topic, json.dumps({"number": number}), f"customer {number % 5}")
        producer.flush(SECONDS)
        if commit:
            producer.commit_transaction(SECONDS)
        else:
            producer.abort_transaction(SECONDS)

    def flush(self) -> None:
        assert self._producer.flush(SECONDS) == 0, "the broker didn't take it all"

    def _names(self) -> set[str]:
        return set(self._admin.list_topics(timeout=SECONDS).topics)
