"""Conformance suite for publishers: tests to inherit, for the requirements on every destination.

    class TestMyPublisher(PublisherConformance):
        @pytest.fixture
        def publisher(self): ...      # a fresh publisher, to an empty destination

        @pytest.fixture
        def read_back(self): ...      # a function from a topic to its messages, as `StoredMessage`

For a destination that accepts the events of a batch in any order, set `keeps_order = False`, and `in_order = False` for
its publisher. A destination with a server uses `penstock.testing.brokers.BrokerConformance`.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from operator import attrgetter
from typing import ClassVar, NamedTuple

import pytest

from penstock.model.event import Delivery
from penstock.model.outcome import PUBLISHED, Outcome
from penstock.model.retry import RetryPolicy
from penstock.publish.api import Message, Publisher
from penstock.publish.dispatch import dispatch
from penstock.publish.topics import Routing
from penstock.testing.events import CREATED_AT, delivery

BATCH = 1_000

PAYLOADS = [
    pytest.param(b"", id="empty"),
    pytest.param(b'{"order": 1}', id="json"),
    pytest.param("Füße, 水, 🚰".encode(), id="unicode"),
    pytest.param(b"one\ntwo\r\nthree\x00four", id="line breaks and NUL"),
    pytest.param(b"\xff\xfe\x80 not UTF-8", id="not UTF-8"),
    pytest.param(bytes(range(256)) * 400, id="100 kB"),
]
HEADERS = [
    pytest.param({}, id="none"),
    pytest.param({"content-type": "application/json", "traceparent": "00-ab-cd-01"}, id="plain"),
    pytest.param({"Grüße": "水 🚰", "quoted": '"{}",\\'}, id="unicode"),
    pytest.param({"empty": ""}, id="empty value"),
]
KEYS = [
    pytest.param(None, None, id="none"),
    pytest.param("customer-7", None, id="partition key"),
    pytest.param(None, "order-9", id="ordering key"),
    pytest.param("Kunde ä/ö:*", "Füße\n水", id="unicode"),
]


class StoredMessage(NamedTuple):
    """An event as stored by the destination."""

    event_id: str
    event_type: str
    payload: bytes
    headers: Mapping[str, str]
    partition_key: str | None
    ordering_key: str | None


ReadBack = Callable[[str], Sequence[StoredMessage]]
"""Returns the messages in a topic of the destination, oldest first."""


class PublisherOutcomes:
    """Tests that read nothing back: every event gets an outcome."""

    @pytest.fixture
    def publisher(self) -> Publisher:
        raise NotImplementedError("override the fixture `publisher`")

    def test_every_event_gets_outcome(self, publisher: Publisher) -> None:
        events = [delivery(), delivery(payload=b"\xff"), delivery(partition_key="a"), delivery(ordering_key="a")]
        assert publisher.publish(messages(events)) == published(events)

    def test_thousand_events_get_outcomes(self, publisher: Publisher) -> None:
        events = [delivery() for _ in range(BATCH)]
        assert publisher.publish(messages(events)) == published(events)

    def test_redelivered_event_is_published_again(self, publisher: Publisher) -> None:
        event = delivery()
        for again in (event, event._replace(deliveries=2, attempts=1)):
            assert publisher.publish(messages([again])) == published([event])

    def test_empty_batch_has_no_outcomes(self, publisher: Publisher) -> None:
        assert publisher.publish([]) == {}

    def test_unused_publisher_can_be_closed_twice(self, publisher: Publisher) -> None:
        publisher.close()
        publisher.close()


class PublisherConformance(PublisherOutcomes):
    """Events arrive unchanged, and in the order in which they were sent."""

    keeps_order: ClassVar[bool] = True

    @pytest.fixture
    def read_back(self) -> ReadBack:
        raise NotImplementedError("override the fixture `read_back`")

    @pytest.mark.parametrize("payload", PAYLOADS)
    def test_payloads_arrive_unchanged(self, publisher: Publisher, read_back: ReadBack, payload: bytes) -> None:
        self._arrives(publisher, read_back, delivery(payload=payload))

    @pytest.mark.parametrize("headers", HEADERS)
    def test_headers_arrive_unchanged(
        self, publisher: Publisher, read_back: ReadBack, headers: Mapping[str, str]
    ) -> None:
        self._arrives(publisher, read_back, delivery(headers=headers))

    @pytest.mark.parametrize(("partition_key", "ordering_key"), KEYS)
    def test_keys_arrive_unchanged(
        self, publisher: Publisher, read_back: ReadBack, partition_key: str | None, ordering_key: str | None
    ) -> None:
        self._arrives(publisher, read_back, delivery(partition_key=partition_key, ordering_key=ordering_key))

    def test_batch_arrives_complete_and_in_order(self, publisher: Publisher, read_back: ReadBack) -> None:
        events = [delivery(payload=str(number).encode()) for number in range(BATCH)]
        publisher.publish(messages(events))
        assert self.arranged(read_back("orders.created")) == self.arranged(received(events))

    def test_batches_arrive_in_order(self, publisher: Publisher, read_back: ReadBack) -> None:
        events = [delivery(payload=str(number).encode()) for number in range(30)]
        for start in range(0, len(events), 10):
            publisher.publish(messages(events[start : start + 10]))
        assert self.arranged(read_back("orders.created")) == self.arranged(received(events))

    def test_events_arrive_at_their_topics(self, publisher: Publisher, read_back: ReadBack) -> None:
        events = [delivery(event_type=name) for name in ("orders.created", "orders.paid", "orders.created")]
        publisher.publish(Routing("{queue}.{event_type}").route(events))
        assert self.arranged(read_back("outbox.orders.created")) == self.arranged(received([events[0], events[2]]))
        assert self.arranged(read_back("outbox.orders.paid")) == self.arranged(received([events[1]]))

    def test_close_keeps_published_events(self, publisher: Publisher, read_back: ReadBack) -> None:
        events = [delivery() for _ in range(10)]
        publisher.publish(messages(events))
        publisher.close()
        assert self.arranged(read_back("orders.created")) == self.arranged(received(events))

    def arranged(self, held: Sequence[StoredMessage]) -> list[StoredMessage]:
        """Return the messages of a topic for comparison, sorted by event id if the destination keeps no order."""
        return list(held) if self.keeps_order else sorted(held, key=attrgetter("event_id"))

    def _arrives(self, publisher: Publisher, read_back: ReadBack, event: Delivery) -> None:
        """Check an event between two others: no field may pass from one event to its neighbours."""
        events = [delivery(), event, delivery()]
        assert publisher.publish(messages(events)) == published(events)
        assert self.arranged(read_back("orders.created")) == self.arranged(received(events))


def messages(events: Sequence[Delivery]) -> list[Message]:
    """Return messages whose topic is the event's type."""
    return Routing().route(events)


def published(events: Sequence[Delivery]) -> dict[int, Outcome]:
    return {event.seq: PUBLISHED for event in events}


def received(events: Sequence[Delivery]) -> list[StoredMessage]:
    """Return the messages that a destination should hold after these events."""
    return [
        StoredMessage(
            event_id=str(event.event_id),
            event_type=event.event_type,
            payload=event.payload,
            headers=dict(event.headers),
            partition_key=event.partition_key,
            ordering_key=event.ordering_key,
        )
        for event in events
    ]


def attempt(publisher: Publisher, events: Sequence[Delivery]) -> dict[int, Outcome]:
    """Make one attempt through the dispatcher, as a relay does.

    A publisher may also report an unreachable destination by raising.
    """
    now = CREATED_AT + timedelta(seconds=1)
    return dispatch(publisher, Routing(), RetryPolicy(), events, now=now, roll=lambda: 0.0)
