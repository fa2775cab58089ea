"""A Kafka broker for the tests of its publisher: topics, permissions, and the records since the start of a test."""

from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as Record
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from penstock.testing.publishers import StoredMessage
from tests.support.processes import wait_until
from tests.support.servers.kafka import CLERK, KafkaServer


class Cluster:
    """A client of the broker. Each topic has one partition, read from its end at the time of construction."""

    def __init__(self, server: KafkaServer) -> None:
        self.server = server
        at = {"bootstrap.servers": f"127.0.0.1:{server.port}", "log_level": 0}
        self._admin = AdminClient(at)
        self._consumer = Consumer({**at, "group.id": "penstock-tests", "enable.auto.commit": False})
        self._starts = {topic: self._end(topic) for topic in self._topics()}

    def close(self) -> None:
        self._consumer.close()

    def create(self, *topics: str, **settings: object) -> None:
        """Create the missing topics."""
        config = {name.replace("_", "."): str(value) for name, value in settings.items()}
        missing = [NewTopic(topic, 1, 1, config=config) for topic in topics if topic not in self._topics()]
        for done in self._admin.create_topics(missing).values() if missing else ():
            done.result()
        # The controller has answered; the broker learns about the topics slightly later.
        assert wait_until(lambda: {*topics} <= {*self._topics()}, 30)

    def allow_clerk(self, topic: str, operation: AclOperation) -> None:
        who, where, allowed = f"User:{CLERK}", ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        rule = (ResourceType.TOPIC, topic, where, who, "*", operation, allowed)
        for done in self._admin.create_acls([AclBinding(*rule)]).values():
            done.result()
        assert wait_until(lambda: bool(self._admin.describe_acls(AclBindingFilter(*rule)).result()), 30)

    def records(self, topic: str) -> list[Record]:
        """Return the records of a topic since construction, oldest first."""
        if topic not in self._topics():
            return []
        start, end = self._starts.get(topic, 0), self._end(topic)
        self._consumer.assign([TopicPartition(topic, 0, start)])
        return list(self._read(end)) if start < end else []

    def read_back(self, topic: str) -> list[StoredMessage]:
        return [received(record) for record in self.records(topic)]

    def _read(self, end: int) -> Iterator[Record]:
        while True:
            record = self._consumer.poll(30)
            assert record is not None, "the broker gave nothing for 30 s"
            assert record.error() is None, record.error()
            yield record
            if record.offset() + 1 >= end:
                return

    def _topics(self) -> list[str]:
        return [topic for topic in self._admin.list_topics(timeout=30).topics if not topic.startswith("__")]

    def _end(self, topic: str) -> int:
        """Return the offset after the last record. A broker that has just started may not lead its partitions yet."""
        ends: list[int] = []

        def answered() -> bool:
            try:
                ends.append(int(self._consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[1]))
            except KafkaException as error:
                if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                    raise
            return bool(ends)

        assert wait_until(answered, 30), f"the broker does not lead {topic}"
        return ends[0]


def headers(record: Record) -> list[tuple[str, str]]:
    return [(name, value.decode()) for name, value in record.headers()]


def received(record: Record) -> StoredMessage:
    pairs = headers(record)
    # Penstock's headers start at the last `event_id`.
    border = max(place for place, (name, _) in enumerate(pairs) if name == "event_id")
    own = dict(pairs[border:])
    return StoredMessage(
        event_id=own["event_id"],
        event_type=own["penstock-event-type"],
        payload=record.value(),
        headers=dict(pairs[:border]),
        partition_key=own.get("penstock-partition-key"),
        ordering_key=own.get("penstock-ordering-key"),
    )
