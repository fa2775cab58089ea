"""Conformance suite for publishers to a broker: `PublisherConformance`, and the failures of a broker.

    class TestMyPublisher(BrokerConformance):
        server, publisher, read_back, impatient, stranger, refusals      # fixtures to override

A broker can be down, hang, restart during a test, refuse one event of a batch, or reject the publisher's login. After
each failure every event must have an outcome, a retry or dead as appropriate, with an error that names the cause.
"""

import re
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import pytest

from penstock.model.event import Delivery
from penstock.model.outcome import Dead, Outcome, Published, Retry
from penstock.publish.api import Message, Publisher
from penstock.publish.topics import Routing
from penstock.testing.events import delivery
from penstock.testing.publishers import PublisherConformance, ReadBack, attempt, published, received

ROUNDS = 400


class Broker(Protocol):
    """Server of a broker. Keeps its data and its address across all operations."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def restart(self) -> None: ...

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...


class Refusal(NamedTuple):
    """A message that the broker refuses, with the expected outcome and error."""

    message: Message
    ends: type[Retry | Dead]
    cause: str
    """A regular expression for the error. Case is ignored."""


class BrokerConformance(PublisherConformance):
    """Failures of a broker, and the outcomes that a publisher must return."""

    @pytest.fixture
    def server(self) -> Broker:
        raise NotImplementedError("override the fixture `server`")

    @pytest.fixture
    def impatient(self) -> Publisher:
        """A publisher that waits at most a second or two for an answer."""
        raise NotImplementedError("override the fixture `impatient`")

    @pytest.fixture
    def stranger(self) -> tuple[Publisher, str]:
        """A publisher with wrong credentials, and a regular expression for its errors."""
        raise NotImplementedError("override the fixture `stranger`")

    @pytest.fixture
    def refusals(self) -> Mapping[str, Refusal]:
        """Refused messages by the reason.

        At least `too large`; also `unknown topic`, unless the broker creates topics automatically.
        """
        raise NotImplementedError("override the fixture `refusals`")

    def test_outage_causes_retries_until_broker_returns(
        self, publisher: Publisher, read_back: ReadBack, server: Broker
    ) -> None:
        before, during = delivery(), [delivery() for _ in range(3)]
        assert attempt(publisher, [before]) == published([before])
        server.stop()
        outcomes = attempt(publisher, during)
        assert outcomes.keys() == {event.seq for event in during}
        assert all(isinstance(outcome, Retry) for outcome in outcomes.values()), outcomes
        server.start()
        assert attempt(publisher, during) == published(during)
        assert self.arranged(read_back("orders.created")[-3:]) == self.arranged(received(during))

    def test_refused_event_fails_alone(
        self, publisher: Publisher, read_back: ReadBack, refusals: Mapping[str, Refusal]
    ) -> None:
        assert "too large" in refusals
        for wrong, refusal in refusals.items():
            neighbours = [delivery(event_type="orders.refused"), delivery(event_type="orders.refused")]
            first, last = Routing().route(neighbours)
            outcomes = publisher.publish([first, refusal.message, last])
            assert outcomes.keys() == {first.event.seq, refusal.message.event.seq, last.event.seq}, wrong
            _ends(outcomes[refusal.message.event.seq], refusal)
            assert [outcomes[event.seq] for event in neighbours] == list(published(neighbours).values()), wrong
            assert self.arranged(read_back("orders.refused")[-2:]) == self.arranged(received(neighbours)), wrong

    def test_wrong_credentials_cause_retries_that_name_cause(self, stranger: tuple[Publisher, str]) -> None:
        """The outcome is a retry, because the events are correct and an operator can fix the credentials."""
        publisher, cause = stranger
        events = [delivery(), delivery()]
        outcomes = attempt(publisher, events)
        publisher.close()
        assert outcomes.keys() == {event.seq for event in events}
        for outcome in outcomes.values():
            assert isinstance(outcome, Retry), outcome
            assert re.search(cause, outcome.error, re.IGNORECASE), outcome

    def test_hanging_broker_causes_retries(self, server: Broker, impatient: Publisher, read_back: ReadBack) -> None:
        before, during = delivery(), [delivery() for _ in range(3)]
        assert attempt(impatient, [before]) == published([before])
        server.freeze()
        try:
            outcomes = attempt(impatient, during)
        finally:
            server.thaw()
        assert outcomes.keys() == {event.seq for event in during}
        assert all(isinstance(outcome, Retry) for outcome in outcomes.values()), outcomes
        tries = _insist(impatient, during)
        impatient.close()
        self._none_too_often(read_back, during, tries + 1)

    def test_restart_while_publishing_loses_no_event(
        self, server: Broker, publisher: Publisher, read_back: ReadBack
    ) -> None:
        """No event is lost, and no attempt publishes an event twice."""
        events = [delivery(payload=str(number).encode()) for number in range(ROUNDS)]
        restarted = threading.Thread(target=server.restart)
        tries: dict[int, int] = {}
        for start in range(0, ROUNDS, 10):
            if start == ROUNDS // 4:
                restarted.start()
            batch = events[start : start + 10]
            count = _insist(publisher, batch)
            tries |= dict.fromkeys((event.seq for event in batch), count)
        restarted.join()
        held = [one.event_id for one in read_back("orders.created")]
        for event in events:
            assert 1 <= held.count(str(event.event_id)) <= tries[event.seq]

    def _none_too_often(self, read_back: ReadBack, events: Sequence[Delivery], tries: int) -> None:
        held = [one.event_id for one in read_back("orders.created")]
        for event in events:
            assert 1 <= held.count(str(event.event_id)) <= tries


def _insist(publisher: Publisher, events: Sequence[Delivery]) -> int:
    """Publish the events, and the failed ones again, until all are published. Return the number of attempts."""
    left: list[Delivery] = list(events)
    pause = threading.Event()
    for tries in range(1, 301):
        outcomes = attempt(publisher, left)
        assert all(isinstance(outcome, Published | Retry) for outcome in outcomes.values()), outcomes
        left = [event for event in left if not isinstance(outcomes[event.seq], Published)]
        if not left:
            return tries
        pause.wait(0.1)
    raise AssertionError(f"{len(left)} of {len(events)} were not published in 300 attempts: {outcomes}")


def _ends(outcome: Outcome, refusal: Refusal) -> None:
    assert isinstance(outcome, refusal.ends), outcome
    assert isinstance(outcome, Retry | Dead)
    assert re.search(refusal.cause, outcome.error, re.IGNORECASE), outcome
