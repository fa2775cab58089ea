"""`amqp://` against a real RabbitMQ: delivered events, and the outcome of each failure."""

import pickle
import socket
import subprocess
import threading
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from rabbit_queues import as_received, held, make_fresh, with_channel

from penstock.model.errors import UsageError
from penstock.model.outcome import PUBLISHED, RELEASED, Dead, Retry
from penstock.model.retry import RetryPolicy
from penstock.publish.api import Message
from penstock.publish.dispatch import dispatch
from penstock.publish.rabbitmq.publisher import MESSAGE_BYTES, MESSAGE_BYTES_FROM_4, _usual_limit
from penstock.publish.registry import open_publisher
from penstock.publish.topics import Routing
from penstock.testing.brokers import BrokerConformance, Refusal
from penstock.testing.events import delivery
from penstock.testing.publishers import attempt, messages, published
from tests.support.gates import Gate
from tests.support.processes import free_port, wait_until
from tests.support.servers import RabbitServer

LIMIT = 1_000_000
FULL = {"x-max-length": 1, "x-overflow": "reject-publish"}
QUEUES = {
    "orders.created": {},
    "orders.refused": {},
    "outbox.orders.created": {},
    "outbox.orders.paid": {},
    "orders.full": FULL,
}


@pytest.fixture
def broker(rabbit_server):
    """The server, running and with empty queues at the start of each test."""
    rabbit_server.start()
    make_fresh(rabbit_server.url(), QUEUES)
    return rabbit_server


@pytest.fixture
def open_at():
    """A function that opens publishers, which are closed after the test."""
    opened = []

    def open_one(url, options=""):
        opened.append(open_publisher(url + options))
        return opened[-1]

    yield open_one
    for publisher in opened:
        publisher.close()


@pytest.fixture
def publisher(broker, open_at):
    return open_at(broker.url(), f"?max_message_bytes={LIMIT}")


def refused(ends, cause, **fields):
    event = delivery(**fields)
    return Refusal(Message(event.event_type, event), ends, cause)


class TestRabbit(BrokerConformance):
    @pytest.fixture
    def server(self, broker):
        return broker

    @pytest.fixture
    def publisher(self, publisher):
        return publisher

    @pytest.fixture
    def read_back(self, broker):
        return lambda topic: [as_received(message) for message in held(broker.url(), topic)]

    @pytest.fixture
    def impatient(self, broker, open_at):
        return open_at(broker.url(), "?timeout_seconds=1")

    @pytest.fixture
    def stranger(self, broker, open_at):
        return open_at(broker.url(password="wrong-secret")), "ACCESS_REFUSED.*login was refused"

    @pytest.fixture
    def refusals(self, publisher):
        filling = delivery(event_type="orders.full")
        assert publisher.publish(messages([filling])) == {filling.seq: PUBLISHED}
        long_topic = Message("ä" * 128, delivery())
        long_type = Message("orders.created", delivery(event_type="ä" * 128))
        return {
            "too large": refused(Dead, "payload of 1,000,001 bytes exceeds", payload=b"x" * (LIMIT + 1)),
            "unknown topic": refused(Retry, "NO_ROUTE.*default exchange.*'nowhere'", event_type="nowhere"),
            "a full queue": refused(Retry, "nack.*default exchange.*'orders.full'", event_type="orders.full"),
            "a long topic": Refusal(long_topic, Dead, "^topic .* must have at most 255 bytes"),
            "a long type": Refusal(long_type, Dead, "event type .* must have at most 255 bytes"),
            "a header that routes": refused(Dead, "'CC'.*routing keys", headers={"CC": "a"}),
            "a header of ours": refused(Dead, "reserved for Penstock", headers={"penstock-queue": "a"}),
            "a header's long name": refused(Dead, "128 bytes", headers={"n" * 129: "a"}),
            "headers over a frame": refused(Dead, "headers of 131,", headers={"a": "x" * 131_000}),
        }


@pytest.mark.parametrize(("topic", "count"), [("orders.full", 50), ("orders.unbound", 20)])
def test_events_survive_hour_of_backpressure(publisher, broker, topic, count):
    """With a full or missing queue, no event dies under the relay's retry policy.

    All events are published once the queue has room.
    """
    publisher.publish(messages([delivery(event_type="orders.full")]))
    began, draw = datetime.now(UTC), Random(0).random
    due = {event.seq: (0.0, event) for event in (delivery(event_type=topic, created_at=began) for _ in range(count))}
    now = 0.0
    while now < 3_600:
        now = max(now + 1, min(moment for moment, _ in due.values()))
        ready = [event for moment, event in due.values() if moment <= now]
        moment = began + timedelta(seconds=now)
        outcomes = dispatch(publisher, Routing(), RetryPolicy(), ready, now=moment, roll=draw)
        assert {type(outcome) for outcome in outcomes.values()} == {Retry}, f"after {now:.0f} s"
        for event in ready:
            due[event.seq] = (now + outcomes[event.seq].delay_seconds, event._replace(attempts=event.attempts + 1))
    make_fresh(broker.url(), {topic: {}})
    events = [event for _, event in due.values()]
    assert publisher.publish(messages(events)) == published(events)
    with_channel(broker.url(), lambda channel: channel.queue_delete(topic))


def test_message_has_all_fields_of_event(publisher, broker):
    headers = {"Content-Type": "application/json", "traceparent": "00-ab-cd-01"}
    event = delivery(headers=headers, partition_key="customer-7", ordering_key="order-9", queue="mail")
    publisher.publish(messages([event]))
    [message] = held(broker.url(), "orders.created")
    properties = message.header.properties
    assert properties.delivery_mode == 2
    assert (properties.message_id, properties.message_type) == (str(event.event_id), event.event_type)
    assert properties.timestamp == event.created_at
    assert properties.content_type == "application/json"
    assert properties.headers == headers | {
        "penstock-queue": "mail",
        "penstock-created-at": event.created_at.isoformat(),
        "penstock-partition-key": "customer-7",
        "penstock-ordering-key": "order-9",
    }


def test_overlong_content_type_stays_header(publisher, broker):
    publisher.publish(messages([delivery(headers={"content-type": "x" * 256})]))
    [message] = held(broker.url(), "orders.created")
    assert message.header.properties.content_type is None
    assert message.header.properties.headers["content-type"] == "x" * 256


def test_topic_exchange_routes_by_topic(broker, open_at):
    async def bind(channel):
        await channel.exchange_declare("events", exchange_type="topic", durable=True)
        await channel.queue_bind("orders.created", "events", "orders.*")

    with_channel(broker.url(), bind)
    routed, unrouted = delivery(event_type="orders.paid"), delivery(event_type="mail.sent")
    outcomes = open_at(broker.url(), "?exchange=events").publish(messages([routed, unrouted]))
    assert outcomes[routed.seq] == PUBLISHED
    assert outcomes[unrouted.seq] == Retry(
        "NO_ROUTE: no queue is bound to exchange 'events' with routing key 'mail.sent'"
    )
    assert [as_received(one).event_id for one in held(broker.url(), "orders.created")] == [str(routed.event_id)]


def test_whole_batch_is_sent_before_first_confirmation(broker, open_at):
    with Gate(broker.port) as gate:
        publisher = open_at(f"amqp://127.0.0.1:{gate.port}")
        publisher.publish(messages([delivery()]))
        events = [delivery(payload=b"marker") for _ in range(100)]
        gate.hold_answers(until=b"marker", count=100)
        assert publisher.publish(messages(events)) == published(events)
        publisher.close()


def test_batch_larger_than_socket_buffers_is_published(publisher, broker):
    events = [delivery(payload=bytes([number]) * 900_000) for number in range(30)]
    assert publisher.publish(messages(events)) == published(events)
    assert [message.body for message in held(broker.url(), "orders.created")] == [event.payload for event in events]


def test_message_size_limit_is_learnt_from_broker(broker, open_at):
    """The broker closes the channel at a message that is too large, which also fails the later messages."""
    with RabbitServer(settings={"max_message_size": 200_000}) as strict:
        make_fresh(strict.url(), QUEUES)
        publisher = open_at(strict.url())
        events = [delivery(), delivery(payload=b"x" * 200_001), delivery()]
        outcomes = publisher.publish(messages(events))
        assert isinstance(outcomes[events[1].seq], Dead)
        assert "max_message_size of 200,000" in outcomes[events[1].seq].error
        assert isinstance(outcomes[events[2].seq], Retry)
        assert "PRECONDITION_FAILED" in outcomes[events[2].seq].error
        again = [event._replace(deliveries=2) for event in events]
        outcomes = publisher.publish(messages(again))
        assert isinstance(outcomes[events[1].seq], Dead)
        assert outcomes[events[0].seq] == outcomes[events[2].seq] == PUBLISHED, "it has learnt the limit"


@pytest.mark.parametrize(
    ("version", "limit"),
    [("3.10.8", MESSAGE_BYTES), ("4.0.0", MESSAGE_BYTES_FROM_4), ("10.1", MESSAGE_BYTES_FROM_4), ("", MESSAGE_BYTES)],
)
def test_default_size_limit_depends_on_version(version, limit):
    assert _usual_limit(version) == limit


def test_missing_exchange_is_retry_that_names_it(broker, open_at):
    events = [delivery(), delivery()]
    for outcome in open_at(broker.url(), "?exchange=missing").publish(messages(events)).values():
        assert isinstance(outcome, Retry)
        assert "NOT_FOUND - no exchange 'missing'" in outcome.error


def test_virtual_host_of_url_is_used(broker, open_at):
    event = delivery()
    outcome = open_at(broker.url("a/b")).publish(messages([event]))[event.seq]
    assert isinstance(outcome, Retry)
    assert "vhost a/b not found" in outcome.error
    broker.control("add_vhost", "a/b")
    broker.control("set_permissions", "-p", "a/b", "guest", ".*", ".*", ".*")
    make_fresh(broker.url("a/b"), {"orders.created": {}})
    assert open_at(broker.url("a/b")).publish(messages([event])) == {event.seq: PUBLISHED}
    assert len(held(broker.url("a/b"), "orders.created")) == 1
    assert held(broker.url(), "orders.created") == []


def test_blocked_publisher_error_names_missing_resource(broker, open_at):
    publisher, event = open_at(broker.url(), "?timeout_seconds=1"), delivery()
    broker.control("set_vm_memory_high_watermark", "absolute", "1MB")
    try:
        assert wait_until(lambda: "memory" in broker.control("eval", "rabbit_alarm:get_alarms()."), 30)
        outcome = publisher.publish(messages([event]))[event.seq]
    finally:
        broker.control("set_vm_memory_high_watermark", "0.6")
    assert isinstance(outcome, Retry)
    assert "blocks publishers: low on memory" in outcome.error
    assert wait_until(lambda: "memory" not in broker.control("eval", "rabbit_alarm:get_alarms()."), 30)
    assert publisher.publish(messages([event])) == {event.seq: PUBLISHED}


def test_one_connection_serves_all_batches_despite_refusals(publisher, broker):
    def connections():
        return broker.control("list_connections", "pid", "--no-table-headers").split()

    for _ in range(3):
        publisher.publish(messages([delivery(), delivery(event_type="nowhere")]))
    before = connections()
    publisher.publish(messages([delivery()]))
    assert len(before) == 1
    assert connections() == before


def test_connection_closed_by_broker_is_reopened(publisher, broker):
    publisher.publish(messages([delivery()]))
    broker.control("close_all_connections", "maintenance")
    event = delivery()
    assert wait_until(lambda: publisher.publish(messages([event])) == {event.seq: PUBLISHED}, 30)


def test_failure_releases_later_events_of_ordering_key(publisher, broker):
    head, behind = delivery(event_type="nowhere", ordering_key="a"), delivery(ordering_key="a")
    outcomes = attempt(publisher, [head, behind])
    assert isinstance(outcomes[head.seq], Retry)
    assert outcomes[behind.seq] == RELEASED
    assert held(broker.url(), "orders.created") == []


def test_credentials_come_from_environment_and_stay_hidden(broker, open_at, monkeypatch):
    event, bare = delivery(), f"amqp://127.0.0.1:{broker.port}"
    monkeypatch.setenv("PENSTOCK_AMQP_USERNAME", "somebody")
    monkeypatch.setenv("PENSTOCK_AMQP_PASSWORD", "hidden-secret")
    outcome = open_at(bare).publish(messages([event]))[event.seq]
    assert isinstance(outcome, Retry)
    assert "ACCESS_REFUSED" in outcome.error
    assert "secret" not in outcome.error
    monkeypatch.setenv("PENSTOCK_AMQP_USERNAME", "guest")
    monkeypatch.setenv("PENSTOCK_AMQP_PASSWORD", "guest")
    assert open_at(bare).publish(messages([event])) == {event.seq: PUBLISHED}


def test_missing_broker_is_retry_for_each_event(open_at):
    events = [delivery(), delivery(ordering_key="a")]
    outcomes = attempt(open_at(f"amqp://127.0.0.1:{free_port()}"), events)
    assert outcomes.keys() == {event.seq for event in events}
    assert all(isinstance(outcome, Retry) and "Refused" in outcome.error for outcome in outcomes.values())


@pytest.mark.parametrize("greeting", [b"AMQP\x00\x00\x09\x00", b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_server_that_is_not_broker_is_retry(open_at, greeting):
    def answer(listener):
        connection, _ = listener.accept()
        with connection:
            connection.recv(8)
            connection.sendall(greeting)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        answering = threading.Thread(target=answer, args=[listener])
        answering.start()
        event = delivery()
        outcome = attempt(open_at(f"amqp://127.0.0.1:{listener.getsockname()[1]}"), [event])[event.seq]
        answering.join()
    assert isinstance(outcome, Retry)
    assert "AMQP" in outcome.error or "hung up" in outcome.error


@pytest.mark.parametrize("scheme", ["amqp", "amqps"])
def test_server_that_never_answers_is_retry(open_at, scheme):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        publisher = open_at(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}?timeout_seconds=0.2")
        event, threads = delivery(), threading.active_count()
        outcome = publisher.publish(messages([event]))[event.seq]
        assert threading.active_count() == threads
    assert outcome == Retry("the broker did not answer within 0.2 s")


@pytest.mark.parametrize("hangs", [False, True])
def test_closing_leaves_no_thread(publisher, broker, hangs):
    threads, event = threading.active_count(), delivery()
    assert publisher.publish(messages([event])) == {event.seq: PUBLISHED}
    assert threading.active_count() == threads + 1
    if hangs:
        broker.freeze()
    try:
        publisher.close()
        assert threading.active_count() == threads
    finally:
        broker.thaw()


@pytest.mark.parametrize("after_seconds", [0, 0.3], ids=["before it begins", "while it waits"])
def test_confirmations_of_interrupted_batch_are_not_reused(publisher, broker, monkeypatch, after_seconds):
    wait = Future.result

    def interrupted(future, timeout=None):
        monkeypatch.undo()
        with suppress(TimeoutError):
            wait(future, after_seconds)
        raise KeyboardInterrupt

    first, second = delivery(), delivery()
    publisher.publish(messages([delivery()]))
    broker.freeze()
    try:
        # Raise the interrupt in the wait for the answers. A test cannot time a real Ctrl-C that precisely.
        monkeypatch.setattr(Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            publisher.publish(messages([first]))
    finally:
        broker.thaw()
    assert publisher.publish(messages([second])) == {second.seq: PUBLISHED}
    assert str(second.event_id) in [as_received(one).event_id for one in held(broker.url(), "orders.created")]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A certificate authority for tests, and a certificate that it signed for localhost."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = ["-subj", "/CN=Test authority", "-keyout", "authority.key", "-out", "authority.pem"]
    signed = ["-CA", "authority.pem", "-CAkey", "authority.key", "-addext", "basicConstraints=critical,CA:FALSE"]
    localhost = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", "localhost.key", "-out", "localhost.pem"]
    for options in (authority, [*signed, *localhost, *files]):
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *options]
        subprocess.run(command, check=True, capture_output=True, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def tls_address(certificates, rabbit_server):
    """Address of a server with TLS that requires client certificates."""
    port = free_port()
    settings = {
        "listeners.ssl.1": f"127.0.0.1:{port}",
        "ssl_options.cacertfile": certificates / "authority.pem",
        "ssl_options.certfile": certificates / "localhost.pem",
        "ssl_options.keyfile": certificates / "localhost.key",
        "ssl_options.verify": "verify_peer",
        "ssl_options.fail_if_no_peer_cert": "true",
    }
    with RabbitServer(settings=settings) as server:
        make_fresh(server.url(), QUEUES)
        yield f"localhost:{port}"


def test_certificate_of_trusted_authority_is_accepted(tls_address, certificates, open_at):
    options = f"?ssl_ca_certs={certificates}/authority.pem&ssl_certfile={certificates}/localhost.pem"
    publisher = open_at(f"amqps://guest:guest@{tls_address}", f"{options}&ssl_keyfile={certificates}/localhost.key")
    events = [delivery(payload=b"x" * 10_000) for _ in range(100)]
    assert publisher.publish(messages(events)) == published(events)


def test_missing_client_certificate_is_retry(tls_address, certificates, open_at):
    event, options = delivery(), f"?ssl_ca_certs={certificates}/authority.pem"
    outcome = open_at(f"amqps://guest:guest@{tls_address}", options).publish(messages([event]))[event.seq]
    assert isinstance(outcome, Retry)
    assert "lost" in outcome.error, "TLS lets the broker hang up before its alert has been read"


def test_certificate_of_unknown_authority_is_retry(tls_address, open_at):
    event = delivery()
    outcome = open_at(f"amqps://guest:guest@{tls_address}").publish(messages([event]))[event.seq]
    assert isinstance(outcome, Retry)
    assert "CERTIFICATE_VERIFY_FAILED" in outcome.error


def test_certificate_for_different_name_is_retry(tls_address, certificates, open_at):
    event, elsewhere = delivery(), tls_address.replace("localhost", "127.0.0.1")
    publisher = open_at(f"amqps://guest:guest@{elsewhere}?ssl_ca_certs={certificates}/authority.pem")
    outcome = publisher.publish(messages([event]))[event.seq]
    assert isinstance(outcome, Retry)
    assert "IP address mismatch" in outcome.error


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("amqp://localhost?exchang=x", "unknown option 'exchang' for amqp:"),
        ("amqp://localhost?ssl_ca_certs=x", "use amqps:"),
        ("amqp://localhost?timeout_seconds=0", "greater than 0"),
        ("amqp://localhost?max_message_bytes=none", "whole number"),
        ("amqp://localhost?exchange=" + "x" * 128, "exchange"),
        ("amqp://localhost/a/b", "%2F"),
        ("amqp://localhost:port/", "port"),
        ("amqp://user:half/secret@localhost", "password"),
        ("amqps://localhost?ssl_ca_certs=/nowhere.pem", "nowhere"),
        ("amqps://localhost?ssl_keyfile=/nowhere.pem", "ssl_certfile"),
    ],
)
def test_invalid_url_is_refused_without_showing_secrets(url, complaint):
    with pytest.raises(UsageError, match=complaint) as refusal:
        open_publisher(url)
    assert "half" not in str(refusal.value)
    assert "secret" not in str(refusal.value)


def test_publisher_can_not_be_pickled(open_at):
    with pytest.raises(TypeError, match="cannot pickle a RabbitPublisher"):
        pickle.dumps(open_at("amqp://localhost"))
