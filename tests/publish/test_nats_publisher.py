"""`nats://` against a real server: delivered events, and the outcome of each failure."""

import pickle
import re
import socket
import threading
from concurrent.futures import Future

import pytest
from nats.js.api import DiscardPolicy
from nats_streams import Streams
from unreliable_nats import HalfDeafServer

from penstock.model.outcome import PUBLISHED, RELEASED, Dead, Retry
from penstock.publish.api import Message
from penstock.publish.nats import message as nats_wire
from penstock.publish.nats.publisher import FLIGHT_MESSAGES, _flights
from penstock.publish.registry import open_publisher
from penstock.testing.brokers import BrokerConformance, Refusal
from penstock.testing.events import delivery
from penstock.testing.publishers import attempt, messages, published
from tests.support.gates import Gate
from tests.support.servers import NatsServer

STREAM = "EVENTS"
USERS = [
    {"user": "relay", "password": "right-secret"},
    {"user": "clerk", "password": "right-secret", "permissions": {"publish": ["orders.>"]}},
    {"user": "deaf", "password": "right-secret", "permissions": {"subscribe": {"deny": ["_INBOX.>"]}}},
]


@pytest.fixture
def streams(nats_server):
    """The server's streams, with a new one for orders. After the test the server is running and has no streams."""
    streams = Streams(nats_server.url())
    streams.create(STREAM, "orders.>", "outbox.>")
    yield streams
    nats_server.start()
    streams.delete_all()


@pytest.fixture
def open_at():
    """A function that opens publishers, which are closed after the test."""
    opened = []

    def open_one(url):
        opened.append(open_publisher(url))
        return opened[-1]

    yield open_one
    for publisher in opened:
        publisher.close()


@pytest.fixture
def publisher(nats_server, streams, open_at):
    return open_at(nats_server.url())


@pytest.fixture(scope="module")
def guarded():
    """A server that requires a known user."""
    with NatsServer(fsync=False, settings={"authorization": {"users": USERS}}) as server:
        Streams(server.url("relay:right-secret")).create(STREAM, "orders.>", "secrets.>")
        yield server


class TestNats(BrokerConformance):
    @pytest.fixture
    def server(self, nats_server, streams):
        return nats_server

    @pytest.fixture
    def publisher(self, publisher):
        return publisher

    @pytest.fixture
    def read_back(self, streams):
        return lambda topic: streams.received(STREAM, topic)

    @pytest.fixture
    def impatient(self, nats_server, streams, open_at):
        return open_at(f"{nats_server.url()}?timeout_seconds=1")

    @pytest.fixture
    def stranger(self, nats_server, guarded, open_at):
        return open_at(guarded.url("relay:wrong-secret")), "authorization.*credentials"

    @pytest.fixture
    def refusals(self, streams):
        streams.create_full("FULL", "full")
        streams.create("SMALL", "small", max_msg_size=300)
        return {
            "too large": refused("orders.created", Dead, "max_payload", payload=bytes(1_048_576)),
            "too large with its headers": refused("orders.created", Dead, "max_payload", payload=bytes(1_048_500)),
            "too large for the stream": refused("small", Dead, "size exceeds maximum", payload=bytes(301)),
            "unknown topic": refused("nowhere", Retry, "no stream accepts subject 'nowhere'"),
            "full": refused("full", Retry, "maximum messages exceeded"),
            "a space": refused("orders created", Dead, "invalid subject"),
            "a line break": refused("orders\r\nPING", Dead, "invalid subject"),
            "an empty word": refused("orders..created", Dead, "invalid subject"),
            "a wildcard": refused("orders.*", Dead, "wildcard"),
            "all": refused(">", Dead, "wildcard"),
            "a command": refused("$JS.API.STREAM.DELETE.EVENTS", Dead, "reserved for the server"),
            "far too long": refused("x" * 4_000, Dead, "expected at most"),
        }


def refused(topic, ends, cause, **overrides):
    return Refusal(Message(topic, delivery(**overrides)), ends, re.escape(cause))


def test_message_has_all_fields_of_event(publisher, streams):
    event = delivery(queue="mail", partition_key="100 %", ordering_key="ä b", headers={"plain": "yes"})
    publisher.publish(messages([event]))
    [message] = streams.raw(STREAM, "orders.created")
    assert message.headers == {
        "Nats-Msg-Id": str(event.event_id),
        "Penstock-Event-Id": str(event.event_id),
        "Penstock-Event-Type": "orders.created",
        "Penstock-Queue": "mail",
        "Penstock-Created-At": event.created_at.isoformat(),
        "Penstock-Partition-Key": "100%20%25",
        "Penstock-Ordering-Key": "%C3%A4%20b",
        "plain": "yes",
    }


@pytest.mark.parametrize(
    "headers",
    [
        {"Nats-Rollup": "all", "nats-msg-id": "mine", "Penstock-Queue": "mine", "Penstock-Headers": "{}"},
        {"status": "503", "Description": "No Responders", "plain": "yes"},
        {"spaced name": "a", "spaced": " a ", "tab": "a\tb", "lines": "a\r\nInjected: yes", "": "nameless", "a:b": "c"},
        {"name": "1", "Name": "2", "percent": "100 %", "quoted": '"', "inner space": "a b", "x": "a b"},
    ],
)
def test_reserved_and_unusual_headers_arrive_unchanged(publisher, streams, headers):
    first, event = delivery(), delivery(headers=headers)
    assert publisher.publish(messages([first, event])) == published([first, event])
    _, received = streams.received(STREAM, "orders.created")
    assert received.headers == headers


def test_server_drops_repeats_but_not_replays(publisher, streams):
    event = delivery()
    for again in (
        event,
        event._replace(deliveries=2, attempts=1),
        event._replace(replays=1),
        event._replace(replays=1),
    ):
        assert publisher.publish(messages([again])) == published([event])
    assert [one.event_id for one in streams.received(STREAM, "orders.created")] == [str(event.event_id)] * 2


def test_server_drops_repeats_over_connections(nats_server, streams, open_at):
    event = delivery()
    for _ in range(2):
        assert open_at(nats_server.url()).publish(messages([event])) == published([event])
    assert len(streams.raw(STREAM, "orders.created")) == 1


def test_whole_batch_is_sent_before_first_acknowledgement(nats_server, streams, open_at):
    events = [delivery() for _ in range(1_000)]
    with Gate(nats_server.port) as gate:
        publisher = open_at(f"nats://127.0.0.1:{gate.port}")
        publisher.publish(messages([delivery()]))
        gate.hold_answers(until=b"HPUB orders.created ", count=len(events))
        assert publisher.publish(messages(events)) == published(events)
        assert not gate.holding
        publisher.close()


def test_batch_is_split_by_count_and_size():
    many = messages([delivery()] * (2 * FLIGHT_MESSAGES + 1))
    assert [len(flight) for flight in _flights(many)] == [FLIGHT_MESSAGES, FLIGHT_MESSAGES, 1]
    payload = bytes(12_000_000)
    heavy = messages([delivery(payload=payload) for _ in range(5)])
    assert [len(flight) for flight in _flights(heavy)] == [2, 2, 1]
    assert [message for flight in _flights(heavy) for message in flight] == heavy


def test_long_batch_arrives_in_order(publisher, streams):
    events = [delivery() for _ in range(FLIGHT_MESSAGES + 500)]
    assert publisher.publish(messages(events)) == published(events)
    arrived = [one.event_id for one in streams.received(STREAM, "orders.created")]
    assert arrived == [str(event.event_id) for event in events]


def test_one_connection_serves_all_batches(nats_server, streams, open_at):
    with Gate(nats_server.port) as gate:
        publisher = open_at(f"nats://127.0.0.1:{gate.port}")
        for _ in range(5):
            assert list(publisher.publish(messages([delivery()])).values()) == [PUBLISHED]
        assert gate.connections == 1
        publisher.close()


def test_forbidden_subject_fails_alone_at_once(guarded, open_at):
    publisher = open_at(f"{guarded.url('clerk:right-secret')}?timeout_seconds=60")
    forbidden, allowed = delivery(event_type="secrets.Told"), delivery()
    outcomes = publisher.publish(messages([forbidden, allowed]))
    assert isinstance(outcomes[forbidden.seq], Retry)
    assert re.search("no permission to publish to .*permissions violation", outcomes[forbidden.seq].error)
    assert outcomes[allowed.seq] == PUBLISHED


def test_failure_releases_later_events_of_ordering_key(guarded, open_at):
    publisher = open_at(guarded.url("clerk:right-secret"))
    head, behind = delivery(event_type="secrets.told", ordering_key="a"), delivery(ordering_key="a")
    other = delivery(ordering_key="b")
    outcomes = attempt(publisher, [head, behind, other])
    assert isinstance(outcomes[head.seq], Retry)
    assert outcomes[behind.seq] == RELEASED
    assert outcomes[other.seq] == PUBLISHED


def test_user_without_inbox_permission_is_retry_with_cause(guarded, open_at):
    event = delivery()
    outcome = attempt(open_at(guarded.url("deaf:right-secret")), [event])[event.seq]
    assert isinstance(outcome, Retry)
    assert "cannot receive acknowledgements" in outcome.error
    assert "permissions violation" in outcome.error


@pytest.mark.parametrize(
    "answer", [b"", b"yes", b"[]", b'{"type": "io.nats.jetstream.api.v1.stream_names_response", "total": 0}']
)
def test_invalid_acknowledgement_is_retry(answer):
    outcome = nats_wire.outcome("orders.created", answer, None)
    assert isinstance(outcome, Retry)
    assert "invalid acknowledgement" in outcome.error


def test_full_server_is_retry(open_at):
    with NatsServer(fsync=False) as server:
        server.stop()
        server.settings["jetstream"] = {"store_dir": str(server.folder / "jetstream"), "max_file_store": 100_000}
        server.start()
        Streams(server.url()).create(STREAM, "orders.>")
        publisher, events = open_at(server.url()), [delivery(payload=bytes(10_000)) for _ in range(20)]
        outcomes = publisher.publish(messages(events))
        refused = [outcome for outcome in outcomes.values() if outcome != PUBLISHED]
        assert 0 < len(refused) < 20
        for outcome in refused:
            assert isinstance(outcome, Retry)
            assert "insufficient" in outcome.error


@pytest.mark.parametrize("settings", [{"max_bytes": 500}, {"max_msgs_per_subject": 1, "discard_new_per_subject": True}])
def test_full_stream_is_retry(publisher, streams, settings):
    streams.create("FULL", "full", max_msgs=1_000, discard=DiscardPolicy.NEW, **settings)
    events = [delivery(event_type="full") for _ in range(5)]
    outcomes = publisher.publish(messages(events))
    assert outcomes[events[0].seq] == PUBLISHED
    assert {type(outcomes[event.seq]) for event in events[2:]} == {Retry}


def test_missing_server_is_retry_for_each_event(open_at):
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        events = [delivery(), delivery(ordering_key="a"), delivery(ordering_key="b")]
        outcomes = attempt(open_at(f"nats://127.0.0.1:{reserved.getsockname()[1]}"), events)
    assert outcomes.keys() == {event.seq for event in events}
    for outcome in outcomes.values():
        assert isinstance(outcome, Retry)
        assert "cannot reach NATS: 127.0.0.1" in outcome.error
        assert "Connect call failed" in outcome.error


def test_next_host_is_used_when_first_is_unreachable(nats_server, streams, open_at):
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        gone = f"127.0.0.1:{reserved.getsockname()[1]}"
        publisher = open_at(f"nats://{gone},127.0.0.1:{nats_server.port}")
        event = delivery()
        assert publisher.publish(messages([event])) == published([event])


def test_closed_publisher_reconnects(publisher):
    for _ in range(2):
        event = delivery()
        assert publisher.publish(messages([event])) == published([event])
        publisher.close()


def test_closing_leaves_no_thread(publisher):
    before = threading.active_count()
    publisher.publish(messages([delivery()]))
    assert threading.active_count() == before + 1
    publisher.close()
    assert threading.active_count() == before


def test_publisher_can_not_be_pickled(publisher):
    with pytest.raises(TypeError, match="cannot pickle a NatsPublisher"):
        pickle.dumps(publisher)


def test_stream_of_url_is_created_once(nats_server, streams, open_at):
    url = f"{nats_server.url()}?stream=MADE&subjects=made.>,other"
    for _ in range(2):
        event = delivery(event_type="made.here")
        assert open_at(url).publish(messages([event])) == published([event])
    assert len(streams.raw("MADE", "made.here")) == 2


def test_uncreatable_stream_is_retry(nats_server, streams, open_at):
    event = delivery()
    outcome = attempt(open_at(f"{nats_server.url()}?stream=OVERLAPPING&subjects=orders.>"), [event])[event.seq]
    assert isinstance(outcome, Retry)
    assert "overlap" in outcome.error


@pytest.mark.parametrize("hang_up", [True, False], ids=["hangs up", "falls silent"])
def test_unanswered_events_are_retried_and_sent_once(open_at, hang_up):
    events = [delivery() for _ in range(1_000)]
    with HalfDeafServer(answers=300, hang_up=hang_up) as server:
        publisher = open_at(f"nats://127.0.0.1:{server.port}?timeout_seconds=0.5")
        outcomes = publisher.publish(messages(events))
        assert server.connections == 1
        first = delivery()
        assert publisher.publish(messages([first])) == published([first])
        assert server.connections == 2, "an answer that comes late finds nobody"
        publisher.close()
    assert outcomes.keys() == {event.seq for event in events}
    assert all(outcomes[event.seq] == PUBLISHED for event in events[:300])
    assert all(isinstance(outcomes[event.seq], Retry) for event in events[300:])
    cause = "connection ended" if hang_up else "no acknowledgement within 0.5 s"
    assert cause in outcomes[events[-1].seq].error
    assert len(server.ids) == len(set(server.ids)), "nothing is sent twice by itself"


def test_events_unsent_at_timeout_are_never_sent(nats_server, streams, open_at):
    """The events exceed the system's socket buffers. Unsent ones must not be sent after the server has resumed."""
    publisher = open_at(f"{nats_server.url()}?timeout_seconds=1")
    events = [delivery(payload=bytes(900_000)) for _ in range(30)]
    assert attempt(publisher, [event := delivery()]) == published([event])
    nats_server.freeze()
    try:
        outcomes = publisher.publish(messages(events))
        publisher.close()
    finally:
        nats_server.thaw()
    assert outcomes.keys() == {event.seq for event in events}
    assert all(isinstance(outcome, Retry) for outcome in outcomes.values())
    assert publisher.publish(messages([event := delivery()])) == published([event])
    assert len(streams.raw(STREAM, "orders.created")) < len(events)


def test_interrupted_batch_is_not_sent_later(open_at, monkeypatch):
    with HalfDeafServer(answers=1, hang_up=False) as server:
        publisher = open_at(f"nats://127.0.0.1:{server.port}")
        first = delivery()
        assert publisher.publish(messages([first])) == {first.seq: PUBLISHED}
        server.asked.clear()
        # Interrupt the batch while it is in flight. A test cannot time a real Ctrl-C that precisely.
        monkeypatch.setattr(Future, "result", lambda *_: server.asked.wait(30) and interrupt())
        with pytest.raises(KeyboardInterrupt):
            publisher.publish(messages([delivery()]))
        monkeypatch.undo()
        publisher.close()
    assert server.connections == 1
    assert len(server.ids) == 2


def interrupt():
    raise KeyboardInterrupt
