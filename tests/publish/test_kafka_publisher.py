"""`kafka://` against a real broker: delivered events, and the outcome of each failure."""

from collections import Counter

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AclOperation
from kafka_cluster import Cluster, headers

from penstock.model.outcome import PUBLISHED, RELEASED, Dead, Published, Released, Retry
from penstock.publish.registry import open_publisher
from penstock.testing.brokers import BrokerConformance, Refusal
from penstock.testing.events import delivery
from penstock.testing.publishers import PublisherOutcomes, attempt, messages, published, received
from tests.support.servers import KafkaServer

TOPICS = ("orders.created", "orders.refused", "outbox.orders.created", "outbox.orders.paid")


@pytest.fixture(scope="module")
def strict_server(kafka_server):
    """A broker that creates no topics automatically and that a test may stop.

    The fixture `kafka_server` ensures that Kafka's jars are present.
    """
    with KafkaServer(fsync=False, settings={"auto.create.topics.enable": "false"}) as server:
        yield server


@pytest.fixture
def cluster(strict_server):
    strict_server.start()
    cluster = Cluster(strict_server)
    cluster.create(*TOPICS)
    yield cluster
    cluster.close()


@pytest.fixture
def opened():
    """A function that opens publishers, which are closed after the test."""
    publishers = []

    def open_one(url):
        publishers.append(open_publisher(url))
        return publishers[-1]

    yield open_one
    for publisher in publishers:
        publisher.close()


@pytest.fixture
def publisher(cluster, opened):
    return opened(cluster.server.url())


@pytest.fixture
def read_back(cluster):
    return cluster.read_back


class TestKafka(BrokerConformance):
    @pytest.fixture
    def publisher(self, publisher):
        return publisher

    @pytest.fixture
    def read_back(self, read_back):
        return read_back

    @pytest.fixture
    def server(self, cluster):
        return cluster.server

    @pytest.fixture
    def impatient(self, server, opened):
        return opened(f"{server.url()}?timeout_seconds=2")

    @pytest.fixture
    def stranger(self, server, opened):
        return opened(f"{server.sasl_url(password='wrong')}?timeout_seconds=2"), "Invalid username or password"

    @pytest.fixture
    def refusals(self, cluster):
        cluster.create("small", max_message_bytes=10_000)
        cluster.create("compacted", cleanup_policy="compact")
        refused = {
            "too large": (delivery(payload=bytes(1_000_001), event_type="orders.refused"), Dead, "too large"),
            "too large for the broker": (
                delivery(payload=bytes(20_000), event_type="small"),
                Dead,
                "small: .*too large",
            ),
            "unknown topic": (delivery(event_type="unheard.of"), Retry, "topic unheard.of does not exist; create it"),
            "no topic's name": (delivery(event_type="orders/created"), Dead, "orders/created: .*invalid topic"),
            "no key": (delivery(event_type="compacted"), Dead, "compacted: .*validate"),
        }
        return {wrong: Refusal(*messages([event]), ends, cause) for wrong, (event, ends, cause) in refused.items()}


class TestMockCluster(PublisherOutcomes):
    """The client's own mock of a cluster with three brokers, for machines without Kafka."""

    @pytest.fixture
    def publisher(self, opened):
        return opened("kafka://127.0.0.1:1?config.test.mock.num.brokers=3")

    def test_event_too_large_for_client_is_dead_alone(self, publisher):
        events = [delivery(), delivery(payload=bytes(1_000_001)), delivery()]
        outcomes = publisher.publish(messages(events))
        assert isinstance(outcomes.pop(events[1].seq), Dead)
        assert outcomes == published([events[0], events[2]])

    def test_batch_larger_than_client_queue_is_published(self, opened):
        publisher = opened("kafka://127.0.0.1:1?config.test.mock.num.brokers=1&config.queue.buffering.max.messages=10")
        events = [delivery() for _ in range(100)]
        assert publisher.publish(messages(events)) == published(events)


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({}, None),
        ({"partition_key": "Füße"}, "Füße".encode()),
        ({"ordering_key": "order-9"}, b"order-9"),
        ({"partition_key": "customer-7", "ordering_key": "order-9"}, b"customer-7"),
    ],
)
def test_record_key_is_partition_key_or_ordering_key(publisher, cluster, keys, key):
    publisher.publish(messages([delivery(**keys)]))
    [record] = cluster.records("orders.created")
    assert record.key() == key


def test_penstock_headers_follow_headers_of_event(publisher, cluster):
    event = delivery(headers={"event_id": "mine", "penstock-queue": "mine too"}, queue="mail", ordering_key="a")
    publisher.publish(messages([event]))
    [record] = cluster.records("orders.created")
    assert headers(record) == [
        ("event_id", "mine"),
        ("penstock-queue", "mine too"),
        ("event_id", str(event.event_id)),
        ("penstock-event-type", "orders.created"),
        ("penstock-queue", "mail"),
        ("penstock-created-at", event.created_at.isoformat()),
        ("penstock-ordering-key", "a"),
    ]
    assert cluster.read_back("orders.created") == received([event])


def test_empty_payload_is_not_tombstone(publisher, cluster):
    publisher.publish(messages([delivery(payload=b"")]))
    [record] = cluster.records("orders.created")
    assert record.value() == b""


def test_broker_may_create_topic(kafka_server, opened):
    event = delivery(event_type="made.by.the.broker")
    assert opened(kafka_server.url()).publish(messages([event])) == published([event])


@pytest.mark.parametrize(
    ("topic", "ends"),
    [("orders.Created-2_x", Retry), ("...", Retry), ("a" * 249, Retry)]
    + [(name, Dead) for name in ("orders/created", "orders created", "é", ".", "..", "a" * 250)],
)
def test_missing_topic_is_retry_unless_name_is_invalid(opened, topic, ends):
    """The client may report an unknown topic before the broker could report an invalid name."""
    publisher = opened("kafka://127.0.0.1:1")
    assert isinstance(publisher._outcome(topic, KafkaError(KafkaError._UNKNOWN_TOPIC)), ends)


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._QUEUE_FULL,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.POLICY_VIOLATION,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN,
    ],
)
def test_temporary_refusal_is_retry(opened, code):
    assert isinstance(opened("kafka://127.0.0.1:1")._outcome("orders.created", KafkaError(code)), Retry)


def test_topic_created_later_is_found_at_next_attempt(publisher, cluster):
    event = delivery(event_type="made.by.an.operator")
    for _ in range(2):
        assert isinstance(publisher.publish(messages([event]))[event.seq], Retry)
    cluster.create("made.by.an.operator")
    assert publisher.publish(messages([event])) == published([event])


def test_events_too_large_only_together_are_published(publisher, cluster):
    cluster.create("small", max_message_bytes=10_000)
    events = [delivery(event_type="small", payload=bytes(2_000)) for _ in range(100)]
    assert publisher.publish(messages(events)) == published(events)
    assert sorted(cluster.read_back("small")) == sorted(received(events))


@pytest.mark.parametrize("place", [0, 320, 999])
def test_record_without_key_is_dead_alone_in_request(publisher, cluster, place):
    """The broker refuses the whole request, and the client reports INVALID_RECORD for each of its events."""
    cluster.create("compacted", cleanup_policy="compact")
    events = [delivery(event_type="compacted", partition_key=f"key-{number}") for number in range(1_000)]
    events[place] = delivery(event_type="compacted")
    outcomes = publisher.publish(messages(events))
    # Compare counts: pytest takes minutes to show a difference of a thousand outcomes.
    assert Counter(map(type, outcomes.values())) == {Published: 999, Dead: 1}
    invalid = outcomes[events[place].seq]
    assert isinstance(invalid, Dead)
    assert "compacted: Broker: Broker failed to validate record" in invalid.error
    arrived = [record.event_id for record in cluster.read_back("compacted")]
    assert len(arrived) == 999
    assert {*arrived} == {str(event.event_id) for event in events} - {str(events[place].event_id)}


def test_ordering_keys_keep_order_around_refused_record(publisher, cluster):
    cluster.create("small", max_message_bytes=10_000)
    events = [delivery(event_type="small", ordering_key=key) for _ in range(5) for key in "abcdefgh"]
    events[17] = delivery(event_type="small", ordering_key="b", payload=bytes(20_000))
    outcomes = attempt(publisher, events)
    assert isinstance(outcomes.pop(events[17].seq), Dead)
    del events[17]
    assert outcomes == published(events)
    arrived = cluster.read_back("small")
    for key in "abcdefgh":
        mine = [event for event in events if event.ordering_key == key]
        assert [one for one in arrived if one.ordering_key == key] == received(mine)


def test_events_after_refused_request_wait_for_single_sends(opened, cluster, monkeypatch):
    cluster.create("small", max_message_bytes=10_000)
    publisher = opened(cluster.server.url())
    publisher.publish(messages([delivery()]))
    # The clock of a call: it starts and waits for its reports in time, then the time-out has passed.
    moments = iter([0.0, 0.0])
    monkeypatch.setattr("penstock.publish.kafka.publisher.monotonic", lambda: next(moments, 6.0))
    heads = [delivery(event_type="small", ordering_key=f"key-{n}", payload=bytes(2_000)) for n in range(100)]
    behind = [delivery(event_type="small", ordering_key=f"key-{n}") for n in range(100)]
    outcomes = attempt(publisher, heads + behind)
    refused = {head.ordering_key for head in heads if isinstance(outcomes[head.seq], Retry)}
    assert refused
    assert {type(outcomes[event.seq]) for event in behind if event.ordering_key in refused} == {Released}
    arrived = cluster.read_back("small")
    assert [one for one in arrived if one.ordering_key in refused] == []


def test_oversized_request_without_time_to_split_is_retry(opened, cluster, monkeypatch):
    cluster.create("small", max_message_bytes=10_000)
    publisher = opened(cluster.server.url())
    publisher.publish(messages([delivery()]))
    # The clock of a call: it starts and waits for its reports in time, then the time-out has passed.
    moments = iter([0.0, 0.0])
    monkeypatch.setattr("penstock.publish.kafka.publisher.monotonic", lambda: next(moments, 6.0))
    events = [delivery(event_type="small", payload=bytes(2_000)) for _ in range(100)]
    outcomes = publisher.publish(messages(events))
    assert outcomes.keys() == {event.seq for event in events}
    # A slow client sends several requests, of which the last may be small enough.
    assert {type(outcome) for outcome in outcomes.values()} <= {Retry, Published}
    assert any(isinstance(outcome, Retry) for outcome in outcomes.values())


@pytest.mark.parametrize("interrupted", [False, True])
def test_events_held_back_by_outage_are_never_sent_later(opened, cluster, interrupted):
    class Interrupted(list):
        def __iter__(self):
            yield from super().__iter__()
            raise KeyboardInterrupt

    publisher = opened(f"{cluster.server.url()}?timeout_seconds=1")
    held_back, later = [delivery(), delivery()], delivery()
    cluster.server.stop()
    if interrupted:
        with pytest.raises(KeyboardInterrupt):
            publisher.publish(Interrupted(messages(held_back)))
    else:
        assert all(isinstance(outcome, Retry) for outcome in publisher.publish(messages(held_back)).values())
    cluster.server.start()
    while attempt(publisher, [later]) != published([later]):
        pass
    publisher.close()
    assert cluster.read_back("orders.created") == received([later])


def test_failure_releases_later_events_of_ordering_key(publisher, cluster):
    head, behind = delivery(event_type="unheard.of", ordering_key="a"), delivery(ordering_key="a")
    other = delivery(ordering_key="b")
    outcomes = attempt(publisher, [head, behind, other])
    assert isinstance(outcomes[head.seq], Retry)
    assert outcomes[behind.seq] == RELEASED
    assert cluster.read_back("orders.created") == received([other])


def test_producer_is_replaced_after_fatal_error(opened, cluster):
    """A user who may describe a topic but write to none causes a fatal error, which makes the producer unusable."""
    cluster.create("for.the.clerk")
    cluster.allow_clerk("for.the.clerk", AclOperation.DESCRIBE)
    publisher, event = opened(cluster.server.sasl_url("clerk")), delivery(event_type="for.the.clerk")
    for _ in range(2):
        outcome = publisher.publish(messages([event]))[event.seq]
        assert isinstance(outcome, Retry)
        assert "for.the.clerk: Failed to acquire idempotence PID" in outcome.error
        assert "authorization failed" in outcome.error
    cluster.allow_clerk("for.the.clerk", AclOperation.WRITE)
    assert publisher.publish(messages([event])) == published([event])


def test_forbidden_topic_is_retry_only_for_its_events(opened, cluster):
    cluster.create("open.to.clerk", "closed.to.clerk")
    cluster.allow_clerk("open.to.clerk", AclOperation.WRITE)
    publisher = opened(cluster.server.sasl_url("clerk"))
    events = [delivery(event_type="open.to.clerk"), delivery(event_type="closed.to.clerk")]
    outcomes = publisher.publish(messages(events))
    assert outcomes[events[0].seq] == PUBLISHED
    assert isinstance(outcomes[events[1].seq], Retry)
    assert "closed.to.clerk: " in outcomes[events[1].seq].error
    cluster.allow_clerk("closed.to.clerk", AclOperation.WRITE)
    assert publisher.publish(messages(events)) == published(events)
