"""`valkey://` against a real server: delivered events, and the outcome of each failure."""

import json
import socket
import threading
from contextlib import suppress

import pytest
from valkey import Valkey
from valkey.client import Pipeline
from valkey.exceptions import ResponseError

from penstock.model.outcome import PUBLISHED, RELEASED, Dead, Retry
from penstock.publish.registry import open_publisher
from penstock.testing.brokers import BrokerConformance, Refusal
from penstock.testing.events import delivery
from penstock.testing.publishers import StoredMessage, attempt, messages, published
from tests.support.processes import wait_until


@pytest.fixture
def open_at(broker):
    """A function that opens publishers to the server, which are closed after the test."""
    opened = []

    def open_one(options="", credentials=""):
        opened.append(open_publisher(f"redis://{credentials}127.0.0.1:{broker.port}/0{options}"))
        return opened[-1]

    yield open_one
    for publisher in opened:
        publisher.close()


class TestValkey(BrokerConformance):
    @pytest.fixture
    def server(self, broker):
        return broker

    @pytest.fixture
    def publisher(self, open_at):
        return open_at("?max_bytes=200000")

    @pytest.fixture
    def impatient(self, open_at):
        return open_at("?timeout_seconds=1")

    @pytest.fixture
    def stranger(self, open_at, client):
        client.config_set("requirepass", "right-secret")
        yield open_at(credentials=":wrong-secret@"), "authentication"
        client.config_set("requirepass", "")

    @pytest.fixture
    def refusals(self, client):
        """A missing topic is created automatically; a key of another type is refused."""
        client.set("taken", "a string")
        large, taken = messages([delivery(payload=bytes(200_001)), delivery(event_type="taken")])
        return {
            "too large": Refusal(large, Dead, "exceeds max_bytes of"),
            "no stream": Refusal(taken, Dead, "WRONGTYPE"),
        }

    @pytest.fixture
    def read_back(self, client):
        return lambda topic: [entry_received(fields) for _, fields in client.xrange(topic)]


def entry_received(fields):
    text = {name.decode(): value.decode() for name, value in fields.items() if name != b"payload"}
    return StoredMessage(
        event_id=text["event_id"],
        event_type=text["event_type"],
        payload=fields[b"payload"],
        headers=json.loads(text["headers"]),
        partition_key=text.get("partition_key"),
        ordering_key=text.get("ordering_key"),
    )


def test_entry_has_queue_and_creation_time(open_at, client):
    event = delivery(queue="mail")
    open_at().publish(messages([event]))
    [(_, fields)] = client.xrange("orders.created")
    assert fields[b"queue"] == b"mail"
    assert fields[b"created_at"].decode() == event.created_at.isoformat()


def test_batch_longer_than_pipeline_arrives_in_order(open_at, client):
    events = [delivery() for _ in range(2_500)]
    assert open_at().publish(messages(events)) == published(events)
    arrived = [fields[b"event_id"].decode() for _, fields in client.xrange("orders.created")]
    assert arrived == [str(event.event_id) for event in events]


def test_maxlen_trims_stream(open_at, client):
    publisher = open_at("?maxlen=100")
    publisher.publish(messages([delivery() for _ in range(1_000)]))
    assert 100 <= client.xlen("orders.created") < 500, "trimming is approximate: whole nodes of 100 entries"


def test_one_connection_serves_all_batches(open_at, client):
    before = client.info("stats")["total_connections_received"]
    publisher = open_at()
    for _ in range(5):
        publisher.publish(messages([delivery()]))
    assert client.info("stats")["total_connections_received"] == before + 1


def test_key_of_different_type_is_dead_only_for_its_events(open_at, client):
    client.set("taken", "a string")
    events = [delivery(), delivery(event_type="taken"), delivery()]
    outcomes = open_at().publish(messages(events))
    assert outcomes[events[0].seq] == outcomes[events[2].seq] == PUBLISHED
    assert isinstance(outcomes[events[1].seq], Dead)
    assert "WRONGTYPE" in outcomes[events[1].seq].error


def test_full_server_is_retry(open_at, client):
    publisher, event = open_at(), delivery()
    client.config_set("maxmemory", "1")
    outcome = publisher.publish(messages([event]))[event.seq]
    assert isinstance(outcome, Retry)
    assert "maxmemory" in outcome.error
    client.config_set("maxmemory", "0")
    assert publisher.publish(messages([event])) == {event.seq: PUBLISHED}


def test_server_without_replicas_is_retry(open_at, client):
    publisher, event = open_at(), delivery()
    client.config_set("min-replicas-to-write", "1")
    try:
        outcome = publisher.publish(messages([event]))[event.seq]
    finally:
        client.config_set("min-replicas-to-write", "0")
    assert isinstance(outcome, Retry)
    assert "NOREPLICAS" in outcome.error
    assert publisher.publish(messages([event])) == {event.seq: PUBLISHED}


def test_server_that_can_not_write_snapshots_is_retry(open_at, client, broker):
    """The error is MISCONF, as with a full disk. A folder with the snapshot's name causes it here."""
    publisher, event, obstacle = open_at(), delivery(), broker.folder / "dump.rdb"
    obstacle.mkdir()
    client.config_set("save", "3600 1")
    try:
        client.bgsave()
        assert wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", 30)
        outcome = publisher.publish(messages([event]))[event.seq]
    finally:
        client.config_set("save", "")
        obstacle.rmdir()
    assert isinstance(outcome, Retry)
    assert "MISCONF" in outcome.error
    client.bgsave()
    assert wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "ok", 30)
    assert publisher.publish(messages([event])) == {event.seq: PUBLISHED}


def test_server_busy_with_script_is_retry(open_at, client, broker):
    publisher, event = open_at(), delivery()
    client.config_set("busy-reply-threshold", "1")

    def loop():
        with Valkey(port=broker.port) as other, pytest.raises(ResponseError, match="killed"):
            other.eval("while true do end", 0)

    looping = threading.Thread(target=loop)
    looping.start()
    try:
        assert wait_until(lambda: _is_busy(client), 30)
        outcome = publisher.publish(messages([event]))[event.seq]
    finally:
        client.script_kill()
        looping.join()
        client.config_set("busy-reply-threshold", "5000")
    assert isinstance(outcome, Retry)
    assert "BUSY" in outcome.error
    assert publisher.publish(messages([event])) == {event.seq: PUBLISHED}


def _is_busy(client):
    try:
        client.ping()
    except ResponseError as error:
        return str(error).startswith("BUSY")
    return False


@pytest.mark.parametrize("answer", ["LOADING the dataset in memory", "CLUSTERDOWN The cluster is down", "TRYAGAIN"])
def test_answer_of_unready_server_is_retry_for_each_event(answer):
    """The answer is simulated, because these states last for milliseconds or need a cluster."""
    events = [delivery() for _ in range(3)]
    with HalfDeafServer(3, answer=f"-{answer}\r\n".encode(), timeout_seconds=60) as server:
        publisher = open_publisher(server.url)
        outcomes = publisher.publish(messages(events))
        publisher.close()
    for event in events:
        assert isinstance(outcomes[event.seq], Retry)
        assert answer.split()[-1] in outcomes[event.seq].error


@pytest.mark.parametrize("credentials", ["", ":wrong-secret@", "nobody:wrong-secret@"])
def test_wrong_password_is_retry_that_hides_it(open_at, client, credentials):
    publisher, events = open_at(credentials=credentials), [delivery(), delivery()]
    client.config_set("requirepass", "right-secret")
    outcomes = publisher.publish(messages(events))
    client.config_set("requirepass", "")
    assert outcomes.keys() == {event.seq for event in events}
    for outcome in outcomes.values():
        assert isinstance(outcome, Retry)
        assert "Authentication" in outcome.error
        assert "secret" not in outcome.error


@pytest.fixture
def as_clerk(open_at, client):
    """A publisher whose user may only write to streams of orders."""
    client.acl_setuser("clerk", enabled=True, nopass=True, keys=["orders.*"], commands=["+xadd", "+auth", "+select"])
    yield open_at(credentials="clerk:any@")
    client.acl_deluser("clerk")


def test_forbidden_stream_is_retry_only_for_its_events(as_clerk):
    forbidden, allowed = delivery(event_type="secrets"), delivery()
    outcomes = as_clerk.publish(messages([forbidden, allowed]))
    assert isinstance(outcomes[forbidden.seq], Retry)
    assert "permissions" in outcomes[forbidden.seq].error
    assert outcomes[allowed.seq] == PUBLISHED


def test_failure_releases_later_events_of_ordering_key(as_clerk, client):
    head, behind, other = (
        delivery(event_type="secrets", ordering_key="a"),
        delivery(ordering_key="a"),
        delivery(ordering_key="b"),
    )
    outcomes = attempt(as_clerk, [head, behind, other])
    assert isinstance(outcomes[head.seq], Retry)
    assert outcomes[behind.seq] == RELEASED
    assert [fields[b"event_id"].decode() for _, fields in client.xrange("orders.created")] == [str(other.event_id)]


def test_publisher_reconnects_after_server_becomes_replica(open_at, client):
    publisher, event = open_at(), delivery()
    publisher.publish(messages([delivery()]))
    client.execute_command("REPLICAOF", "127.0.0.1", "1")
    connections = client.info("stats")["total_connections_received"]
    outcome = publisher.publish(messages([event]))[event.seq]
    assert isinstance(outcome, Retry)
    assert "read only" in outcome.error
    client.execute_command("REPLICAOF", "NO", "ONE")
    assert publisher.publish(messages([event])) == {event.seq: PUBLISHED}
    assert client.info("stats")["total_connections_received"] == connections + 1


def test_missing_server_is_retry_for_each_event():
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        publisher = open_publisher(f"valkey://127.0.0.1:{reserved.getsockname()[1]}")
        events = [delivery(), delivery(ordering_key="a"), delivery(ordering_key="b")]
        outcomes = attempt(publisher, events)
    assert outcomes.keys() == {event.seq for event in events}
    assert all(isinstance(outcome, Retry) and "refused" in outcome.error for outcome in outcomes.values())


def test_connection_dropped_by_server_is_reopened(open_at, client):
    publisher = open_at()
    publisher.publish(messages([delivery()]))
    client.client_kill_filter(_type="normal", skipme=True)
    event = delivery()
    assert publisher.publish(messages([event])) == {event.seq: PUBLISHED}


@pytest.mark.parametrize(("scheme", "greeting"), [("valkey", b"*"), ("valkeys", b"\x16"), ("rediss", b"\x16")])
def test_secure_schemes_start_with_tls_handshake(scheme, greeting):
    heard = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listening = threading.Thread(target=lambda: heard.append(_first_byte(listener)))
        listening.start()
        publisher, event = open_publisher(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"), delivery()
        outcome = attempt(publisher, [event])[event.seq]
        listening.join()
        publisher.close()
    assert heard == [greeting]
    assert isinstance(outcome, Retry)


def _first_byte(listener):
    connection, _ = listener.accept()
    with connection:
        return connection.recv(1)


class HalfDeafServer:
    """A minimal server that answers some commands, then closes the connection or stops answering."""

    def __init__(self, answers, *, hang_up=False, answer=b"$3\r\n1-1\r\n", timeout_seconds=0.3):
        self.attempts = self.connections = 0
        self._answers, self._hang_up, self._answer = answers, hang_up, answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"valkey://127.0.0.1:{self._listener.getsockname()[1]}?timeout_seconds={timeout_seconds}"
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with suppress(OSError), connection:  # the client may close the connection first
                self._talk(connection)

    def _talk(self, connection):
        left = self._answers
        with connection.makefile("rwb") as stream:
            for command in iter(lambda: self._command(stream), None):
                introduction = command[0] == b"CLIENT"
                self.attempts += command[0] == b"XADD" and left == self._answers
                if not introduction and left == 0:
                    if self._hang_up:
                        return
                    continue
                left -= not introduction
                stream.write(b"+OK\r\n" if introduction else self._answer)
                stream.flush()

    def _command(self, stream):
        """Return one command, or None if the client has disconnected."""
        try:
            header = stream.readline()
            if not header:
                return None
            return [stream.read(int(stream.readline()[1:]) + 2)[:-2] for _ in range(int(header[1:]))]
        except OSError:
            return None


@pytest.mark.parametrize("hang_up", [True, False], ids=["hangs up", "falls silent"])
def test_unanswered_events_are_retried_and_sent_once(hang_up):
    events = [delivery() for _ in range(1_500)]
    with HalfDeafServer(1_100, hang_up=hang_up) as server:
        publisher = open_publisher(server.url)
        outcomes = publisher.publish(messages(events))
        publisher.close()
    assert outcomes.keys() == {event.seq for event in events}
    assert all(outcomes[event.seq] == PUBLISHED for event in events[:1_000]), "their pipeline was answered in full"
    assert all(isinstance(outcomes[event.seq], Retry) for event in events[1_100:])
    assert server.attempts == 1, "the client must not try again by itself"


def test_unread_answer_is_not_matched_to_next_batch(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    # Raise between two answers, as only a signal handler could. A test cannot time a real signal that precisely.
    monkeypatch.setattr(Pipeline, "parse_response", interrupted)
    with HalfDeafServer(0) as server:
        publisher = open_publisher(server.url)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                publisher.publish(messages([delivery()]))
        publisher.close()
    assert server.connections == 2
