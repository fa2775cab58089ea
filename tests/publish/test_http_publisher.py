"""`https://` against a real server: the shared suite in both modes, and the outcome of each response."""

import base64
import json
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from urllib.parse import unquote

import pytest
from http_receiver import HANG_UP, TAKEN, TOO_LARGE, UNKNOWN_TOPIC, Answer, ReceiverProcess, only_outcome

from penstock.model.outcome import PUBLISHED, RELEASED, Dead, Retry
from penstock.testing.brokers import BrokerConformance, Refusal
from penstock.testing.events import delivery
from penstock.testing.publishers import StoredMessage, attempt, messages, published

OWN = {"host", "content-length", "user-agent", "idempotency-key", "authorization"}


@pytest.fixture(scope="session")
def receiver_process():
    with ReceiverProcess() as server:
        yield server


@pytest.fixture
def open_at(receiver, opened):
    """A function that opens publishers to the receiver in this process."""
    return lambda options="", credentials="": opened(f"http://{credentials}{receiver.address}/hook{options}")


class HttpConformance(BrokerConformance):
    keeps_order = False
    mode = ""

    @pytest.fixture
    def server(self, receiver_process):
        receiver_process.forget()
        yield receiver_process
        receiver_process.start()

    @pytest.fixture
    def open_for(self, server, opened):
        def open_one(options="", path="topics", credentials=""):
            address = f"{credentials}127.0.0.1:{server.port}/{path}/{{topic}}"
            return opened(f"http://{address}?mode={self.mode}{options}")

        return open_one

    @pytest.fixture
    def publisher(self, open_for):
        return open_for("&timeout_seconds=60")  # a thousand requests to a Python receiver can be slow on a busy machine

    @pytest.fixture
    def impatient(self, open_for):
        return open_for("&timeout_seconds=1")

    @pytest.fixture
    def stranger(self, open_for):
        return open_for(path="guarded", credentials="clerk:wrong-secret@"), "401 Unauthorized: who are you"

    @pytest.fixture
    def refusals(self):
        large, unknown = delivery(payload=bytes(TOO_LARGE + 1)), delivery(event_type=UNKNOWN_TOPIC)
        return {
            "too large": Refusal(messages([large])[0], Dead, "413.*that is too much"),
            "unknown topic": Refusal(messages([unknown])[0], Retry, "404 Not Found: no such topic"),
        }

    @pytest.fixture
    def read_back(self, server):
        def read(topic):
            return [self.parse(request) for request in server.taken() if request.path == f"/topics/{topic}"]

        return read

    def test_http_errors_hide_wrong_credentials(self, stranger):
        publisher, _ = stranger
        for outcome in publisher.publish(messages([delivery(), delivery()])).values():
            assert isinstance(outcome, Retry)
            assert "secret" not in outcome.error

    def test_right_http_credentials_are_accepted(self, open_for):
        event = delivery()
        publisher = open_for(path="guarded", credentials="clerk:right%2Dsecret@")
        assert publisher.publish(messages([event])) == published([event])


class TestBinary(HttpConformance):
    mode = "binary"

    def parse(self, request):
        attributes = {name[3:]: unquote(value) for name, value in request.headers.items() if name.startswith("ce-")}
        plain = {name: value for name, value in request.headers.items() if name not in OWN and name[:3] != "ce-"}
        headers = plain | json.loads(attributes.get("headers", "{}"))
        assert_attributes(request, attributes)
        return event_received(attributes, request.body, headers)


class TestStructured(HttpConformance):
    mode = "structured"

    def parse(self, request):
        assert request.headers["content-type"].startswith("application/cloudevents+json")
        document = json.loads(request.body)
        assert_attributes(request, document)
        headers = json.loads(document.get("headers", "{}"))
        assert document.get("datacontenttype") == headers.get("content-type")
        return event_received(document, structured_payload(document), headers)


def assert_attributes(request, attributes):
    """Check the attributes that every CloudEvent must have, and those that Penstock adds."""
    assert attributes["specversion"] == "1.0"
    assert attributes["source"] == "/penstock/outbox"
    assert attributes["id"] == request.headers["idempotency-key"]
    assert unquote(request.path).endswith("/" + attributes["subject"])
    assert datetime.fromisoformat(attributes["time"]) == datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert attributes["queue"] == "outbox"


def structured_payload(document):
    if "data_base64" in document:
        return base64.b64decode(document["data_base64"])
    return json.dumps(document["data"]).encode()


def event_received(attributes, payload, headers):
    return StoredMessage(
        event_id=attributes["id"],
        event_type=attributes["type"],
        payload=payload,
        headers=headers,
        partition_key=attributes.get("partitionkey"),
        ordering_key=attributes.get("orderingkey"),
    )


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_every_2xx_is_published(receiver, open_at, status):
    receiver.answer = lambda _: Answer(status)
    assert only_outcome(open_at(), delivery()) == PUBLISHED


FINAL = {400, 402, 405, 406, *range(409, 425), 426, 427, 428, *range(430, 500)}


def test_every_other_status_is_retry_or_dead(receiver, open_at):
    """Test each status from 300 to 599. The 4xx that are retried are 401, 403, 404, 407, 408, 425 and 429."""
    receiver.answer = lambda request: Answer(int(request.body))
    events = {status: delivery(payload=str(status).encode()) for status in range(300, 600)}
    outcomes = open_at("?timeout_seconds=60").publish(messages([*events.values()]))
    assert {status for status, event in events.items() if isinstance(outcomes[event.seq], Dead)} == FINAL
    for status, event in events.items():
        assert isinstance(outcomes[event.seq], Dead | Retry)
        assert f"the receiver answered {status}" in outcomes[event.seq].error


@pytest.mark.parametrize("status", [401, 403, 404, 407, 408, 425, 429, 500, 502, 503, 504, 599])
def test_temporary_status_is_retry_with_reason_and_body(receiver, open_at, status):
    receiver.answer = lambda _: Answer(status, body=b"<p>come\r\n back</p>" + b"x" * 100_000, reason="Not Now")
    outcome = only_outcome(open_at(), delivery())
    assert isinstance(outcome, Retry)
    assert f"{status} Not Now: <p>come back</p>xxx" in outcome.error
    assert len(outcome.error) < 300


@pytest.mark.parametrize("status", [301, 302, 303, 304, 307, 308])
def test_redirect_is_retry_that_names_location(receiver, open_at, status):
    receiver.answer = lambda _: Answer(status, {"location": "https://me:hunter2@elsewhere.example/hook"})
    outcome = only_outcome(open_at(), delivery())
    assert isinstance(outcome, Retry)
    assert "elsewhere.example/hook" in outcome.error
    assert "hunter2" not in outcome.error
    assert len(receiver.requests) == 1


def test_dispatch_keeps_retry_after_in_seconds(receiver, open_at):
    receiver.answer = lambda _: Answer(429, {"retry-after": "120"})
    event = delivery()
    outcome = attempt(open_at(), [event])[event.seq]
    assert isinstance(outcome, Retry)
    assert outcome.delay_seconds == 120


def test_retry_after_date_becomes_delay(receiver, open_at):
    then = datetime.now(UTC) + timedelta(hours=2)
    receiver.answer = lambda _: Answer(503, {"retry-after": format_datetime(then, usegmt=True)})
    before = datetime.now(UTC)
    outcome = only_outcome(open_at(), delivery())
    # A date has whole seconds, and the delay counts from the arrival of the response.
    assert then - timedelta(seconds=1) <= before + timedelta(seconds=outcome.delay_seconds)
    assert outcome.delay_seconds <= (then - before).total_seconds()


def test_each_event_has_separate_outcome(receiver, open_at):
    answers = {b"good": TAKEN, b"bad": Answer(400), b"busy": Answer(503), b"gone": HANG_UP}
    receiver.answer = lambda request: answers[request.body]
    events = [delivery(payload=payload) for payload in [*answers] * 5]
    outcomes = open_at("?concurrency=3").publish(messages(events))
    kinds = {event.payload: type(outcomes[event.seq]).__name__ for event in events}
    assert kinds == {b"good": "Published", b"bad": "Dead", b"busy": "Retry", b"gone": "Retry"}
    assert len(receiver.requests) == 20, "the client must not try again by itself"


def test_every_attempt_has_idempotency_key_of_event(receiver, open_at):
    answers = [Answer(503), HANG_UP, TAKEN]
    receiver.answer = lambda _: answers.pop(0)
    publisher, event = open_at(), delivery()
    kinds = [type(only_outcome(publisher, event)) for _ in range(3)]
    assert kinds == [Retry, Retry, type(PUBLISHED)]
    assert [request.headers["idempotency-key"] for request in receiver.requests] == [str(event.event_id)] * 3


def test_concurrency_reaches_and_never_exceeds_limit(receiver, open_at):
    counted, under_way, most = threading.Lock(), 0, 0
    together = threading.Barrier(4)

    def answer(_):
        nonlocal under_way, most
        with counted:
            under_way += 1
            most = max(most, under_way)
        together.wait(60)  # blocks until four requests run at the same time
        with counted:
            under_way -= 1
        return TAKEN

    receiver.answer = answer
    events = [delivery() for _ in range(20)]
    assert open_at("?concurrency=4&timeout_seconds=60").publish(messages(events)) == published(events)
    assert most == 4


def test_connections_are_kept_between_batches(receiver, open_at):
    publisher = open_at("?concurrency=3")
    for _ in range(5):
        publisher.publish(messages([delivery() for _ in range(10)]))
    assert receiver.connections <= 3
    publisher.close()
    assert only_outcome(publisher, delivery()) == PUBLISHED, "a closed publisher opens again"


def test_hanging_receiver_releases_unsent_events(receiver, open_at):
    released = threading.Event()
    receiver.answer = lambda _: TAKEN if released.wait(60) else HANG_UP
    publisher, events = open_at("?concurrency=2&timeout_seconds=2"), [delivery() for _ in range(100)]
    outcomes = publisher.publish(messages(events))
    released.set()
    assert [type(outcomes[event.seq]) for event in events] == [Retry] * 2 + [type(RELEASED)] * 98
    assert "did not answer within 2 s" in outcomes[events[0].seq].error
    left = events
    while left:  # the number of batches depends on the machine's load
        outcomes = publisher.publish(messages(left))
        left = [event for event in left if outcomes[event.seq] != PUBLISHED]


def test_late_response_is_not_matched_to_next_request(receiver, open_at):
    late, publisher = threading.Event(), open_at("?concurrency=1&timeout_seconds=2")
    receiver.answer = lambda request: TAKEN if request.body == b"slow" and late.wait(60) else Answer(400)
    assert isinstance(only_outcome(publisher, delivery(payload=b"slow")), Retry)
    late.set()
    assert isinstance(only_outcome(publisher, delivery(payload=b"bad")), Dead)


def test_status_counts_when_response_body_never_ends(receiver, open_at):
    """The promised body never arrives. The status already received counts, and the connection is not reused."""
    receiver.answer = lambda request: Answer(200 if request.body == b"good" else 503, {"content-length": "50"}, b"wait")
    publisher = open_at("?concurrency=1&timeout_seconds=2")
    assert only_outcome(publisher, delivery(payload=b"good")) == PUBLISHED
    outcome = only_outcome(publisher, delivery())
    assert isinstance(outcome, Retry)
    assert "503 Service Unavailable: wait" in outcome.error
    assert receiver.connections == 2


def test_connection_closed_while_idle_is_reopened(receiver, open_at):
    publisher = open_at("?concurrency=1")
    receiver.answer = lambda _: Answer(204, {"connection": "close"})
    for _ in range(3):
        assert only_outcome(publisher, delivery()) == PUBLISHED
    assert receiver.connections == 3


@pytest.mark.parametrize(
    ("host", "cause"),
    [("127.0.0.1:1", "ConnectionRefused"), ("nowhere.invalid", "gaierror"), ("[::1]:1", "Error")],
)
def test_unreachable_host_is_retry_that_names_host_and_cause(opened, host, cause):
    outcome = only_outcome(opened(f"http://me:hunter2@{host}/secret-path"), delivery())
    assert isinstance(outcome, Retry)
    assert f"http://{host}: " in outcome.error
    assert cause in outcome.error
    assert "hunter2" not in outcome.error
    assert "secret-path" not in outcome.error, "the path of a webhook is often its password"


def test_topic_in_path_is_quoted_and_dots_are_refused(receiver, opened):
    publisher = opened(f"http://{receiver.address}/hooks/{{topic}}/in")
    for topic in ("a/b", "Grüße 水", "?x=1#y", "%2e", "..."):
        assert only_outcome(publisher, delivery(event_type=topic)) == PUBLISHED
        path = receiver.requests[-1].path
        assert path.count("/") == 3
        assert unquote(path) == f"/hooks/{topic}/in"
    for topic in (".", ".."):
        assert isinstance(only_outcome(publisher, delivery(event_type=topic)), Dead)
