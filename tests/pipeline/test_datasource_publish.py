"""Publishing the rows of a micro-batch, without Spark: copies, order, and the consequences of a failure."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from penstock.model.event import Delivery
from penstock.model.lifecycle import OrderPolicy
from penstock.model.outcome import PUBLISHED, RELEASED, Outcome, Retry
from penstock.model.retry import RetryPolicy
from penstock.pipeline.datasource import sender as sending
from penstock.pipeline.datasource.publish import delivery_of, send_rows
from penstock.pipeline.datasource.sender import Dispatch, Sender
from penstock.pipeline.spark.stop_channel import StopChannel, connection_to, hung_up
from penstock.publish.api import Message

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Picky:
    """A publisher in this process: records the payloads, fails selected ones, and rejects two copies of an event."""

    in_order = False

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.fails: set[str] = set()
        self.after_a_call: Callable[[], object] = list

    def publish(self, messages: Sequence[Message]) -> dict[int, Outcome]:
        payloads = {message.event.seq: message.event.text() for message in messages}
        assert len(payloads) == len(messages), "two copies of an event in one call can't be told apart"
        self.calls.append(list(payloads.values()))
        self.after_a_call()
        return {seq: Retry("no") if text in self.fails else PUBLISHED for seq, text in payloads.items()}

    def close(self) -> None: ...


@pytest.fixture
def picky(monkeypatch: pytest.MonkeyPatch) -> Picky:
    publisher = Picky()
    monkeypatch.setattr(sending, "open_publisher", lambda _: publisher)
    return publisher


@pytest.fixture
def sender(picky: Picky) -> Sender:
    return Sender(Dispatch(destination="picky:", retry=RetryPolicy.constant(1.0)))


@pytest.fixture
def channel() -> Iterator[StopChannel]:
    with StopChannel("127.0.0.1", "127.0.0.1") as opened:
        yield opened


def row(seq: int, payload: str, ordering_key: str | None = None, **fields: Any) -> dict[str, Any]:
    usual = {"seq": seq, "event_id": str(uuid4()), "event_type": "x", "queue": "outbox", "payload": payload.encode()}
    usual |= {"headers": [("a", "b")], "partition_key": None, "ordering_key": ordering_key, "priority": 0}
    usual |= {"created_at": NOW, "available_at": NOW, "attempts": 0, "deliveries": 1, "max_attempts": None}
    usual |= {"replays": 0, "suspect": 0, "last_error": None}
    return usual | fields


def event(seq: int, payload: str, ordering_key: str | None = None) -> Delivery:
    return delivery_of(row(seq, payload, ordering_key))


def send(sender: Sender, events: Sequence[Delivery], stopped: Callable[[], bool] = bool) -> list[tuple[int, str]]:
    """Send events, of which several may be copies of one event. Return (seq, kind of outcome) of each, sorted."""
    sent = send_rows(sender, OrderPolicy.BLOCK, events, stopped)
    return sorted((seq, type(outcome).__name__) for seq, outcome in sent)


def test_copies_of_event_are_sent_in_separate_calls(picky: Picky, sender: Sender) -> None:
    sent = send(sender, [event(1, "1a"), event(1, "1b"), event(2, "2a"), event(2, "2b"), event(3, "3a")])
    assert picky.calls == [["1a", "2a", "3a"], ["1b", "2b"]]
    assert sent == [(seq, "Published") for seq in (1, 1, 2, 2, 3)]


@pytest.mark.parametrize("failing", ["1a", "1b"])
def test_each_copy_has_separate_outcome(picky: Picky, sender: Sender, failing: str) -> None:
    picky.fails = {failing}
    assert send(sender, [event(1, "1a"), event(1, "1b")]) == [(1, "Published"), (1, "Retry")]
    assert picky.calls == [["1a"], ["1b"]]


def test_events_and_copies_of_ordering_key_are_sent_by_seq(picky: Picky, sender: Sender) -> None:
    keyed = [event(2, "2a", "k"), event(1, "1a", "k"), event(2, "2b", "k"), event(1, "1b", "k")]
    send(sender, [*keyed, event(9, "9"), event(3, "3", "j")])
    assert [text for call in picky.calls for text in call if text[0] in "12"] == ["1a", "1b", "2a", "2b"]


def test_later_events_of_key_are_released_after_failed_copy(picky: Picky, sender: Sender) -> None:
    picky.fails = {"1b"}
    sent = send(sender, [event(1, "1a", "k"), event(1, "1b", "k"), event(2, "2", "k"), event(3, "3", "j")])
    assert sent == [(1, "Published"), (1, "Retry"), (2, "Released"), (3, "Published")]


def test_nothing_is_published_after_stop_request(picky: Picky, sender: Sender, channel: StopChannel) -> None:
    connection = connection_to(channel.address)
    picky.after_a_call = channel.hang_up
    first = send(sender, [event(1, "1a"), event(1, "1b")], lambda: hung_up(connection))
    assert first == [(1, "Published"), (1, "Released")]
    rows = send_rows(sender, OrderPolicy.BLOCK, [event(2, "2")], lambda: hung_up(connection))
    assert rows == [(2, RELEASED)]
    assert picky.calls == [["1a"]]


@pytest.mark.parametrize("name", ["seq", "event_type", "payload", "created_at"])
def test_row_with_null_in_required_column_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^step returned a row with NULL in {name}$"):
        delivery_of(row(2, "2") | {name: None})
