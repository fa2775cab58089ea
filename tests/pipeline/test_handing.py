"""Handing over the rows of a step's result, without Spark: copies, order, and what a failure does to them."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from penstock.lifecycle import PUBLISHED, RELEASED, OrderPolicy, Outcome, Retry
from penstock.pipeline import carry
from penstock.pipeline.carry import Errand
from penstock.pipeline.handing import Row, send
from penstock.pipeline.settling import by_lease
from penstock.pipeline.slices import Slice, StopLine, line_to
from penstock.publish.base import Message
from penstock.publish.routing import Routing
from penstock.retry import RetryPolicy

NOW = datetime(2026, 1, 1, tzinfo=UTC)
places = count()


class Picky:
    """A publisher in this process: keeps what it is given, fails what it is told to, and refuses twins."""

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
    monkeypatch.setattr(carry, "open_publisher", lambda _: publisher)
    return publisher


@pytest.fixture
def errand(tmp_path: Path) -> Errand:
    return Errand(
        store=f"sqlite:///{tmp_path}/never-opened.db",
        destination=f"picky:{next(places)}",
        queue="outbox",
        batch=100,
        lease_seconds=60.0,
        retry=RetryPolicy.constant(1.0),
        routing=Routing(),
        order_policy=OrderPolicy.BLOCK,
    )


@pytest.fixture
def line() -> Iterator[StopLine]:
    with StopLine("127.0.0.1", "127.0.0.1") as opened:
        yield opened


@pytest.fixture
def turn(line: StopLine) -> Slice:
    return Slice(0, 0, float("inf"), line_to(line.address))


def row(seq: int, payload: str, ordering_key: str | None = None, **fields: Any) -> Row:
    usual = {"seq": seq, "event_id": str(uuid4()), "event_type": "x", "queue": "outbox", "payload": payload.encode()}
    usual |= {"headers": [("a", "b")], "partition_key": None, "ordering_key": ordering_key, "priority": 0}
    usual |= {"created_at": NOW, "available_at": NOW, "attempts": 0, "deliveries": 1, "max_attempts": None}
    usual |= {"replays": 0, "suspect": 0, "last_error": None, "lease": "l", "token": "t"}
    return usual | fields


def told(sent: list[tuple[Row, Outcome]]) -> list[tuple[str, str]]:
    return [(row["payload"].decode(), type(outcome).__name__) for row, outcome in sent]


def test_copies_of_an_event_go_out_in_calls_of_their_own(picky: Picky, errand: Errand, turn: Slice) -> None:
    rows = [row(1, "1a"), row(1, "1b"), row(2, "2a"), row(2, "2b"), row(3, "3a")]
    sent = send(errand, rows, turn)
    assert picky.calls == [["1a", "2a", "3a"], ["1b", "2b"]]
    assert {outcome for _, outcome in sent} == {PUBLISHED}
    assert sorted(told(sent)) == [(text, "Published") for text in ("1a", "1b", "2a", "2b", "3a")]


@pytest.mark.parametrize("failing", ["1a", "1b"])
def test_one_failing_copy_makes_its_event_come_again(picky: Picky, errand: Errand, turn: Slice, failing: str) -> None:
    lease, token = str(uuid4()), str(uuid4())
    picky.fails = {failing}
    sent = send(errand, [row(1, "1a", lease=lease, token=token), row(1, "1b", lease=lease, token=token)], turn)
    settled = [
        {"seq": one["seq"], "lease": lease, "token": token, "outcome": type(outcome).__name__.upper(), "error": "no"}
        for one, outcome in sent
    ]
    ((_, outcomes),) = by_lease(settled).items()
    assert isinstance(outcomes[1], Retry)
    assert picky.calls == [["1a"], ["1b"]]


def test_the_rows_of_a_key_go_out_by_seq_copies_and_all(picky: Picky, errand: Errand, turn: Slice) -> None:
    rows = [row(2, "2a", "k"), row(1, "1a", "k"), row(9, "9"), row(2, "2b", "k"), row(1, "1b", "k"), row(3, "3", "j")]
    send(errand, rows, turn)
    assert [text for call in picky.calls for text in call if text[0] in "12"] == ["1a", "1b", "2a", "2b"]


def test_what_stands_behind_a_failed_copy_of_its_key_is_given_back(picky: Picky, errand: Errand, turn: Slice) -> None:
    picky.fails = {"1b"}
    rows = [row(1, "1a", "k"), row(1, "1b", "k"), row(2, "2", "k"), row(3, "3", "j")]
    assert sorted(told(send(errand, rows, turn))) == [
        ("1a", "Published"),
        ("1b", "Retry"),
        ("2", "Released"),
        ("3", "Published"),
    ]


def test_once_all_is_to_stop_nothing_is_begun(picky: Picky, errand: Errand, turn: Slice, line: StopLine) -> None:
    picky.after_a_call = line.hang_up
    assert told(send(errand, [row(1, "1a"), row(1, "1b")], turn)) == [("1a", "Published"), ("1b", "Released")]
    assert [outcome for _, outcome in send(errand, [row(2, "2")], turn)] == [RELEASED]
    assert picky.calls == [["1a"]]


@pytest.mark.parametrize("name", ["seq", "lease", "event_type", "payload", "created_at"])
def test_a_row_with_a_hole_fails_before_anything_goes_out(picky: Picky, errand: Errand, turn: Slice, name: str) -> None:
    with pytest.raises(ValueError, match=rf"^a row of the step's result has no {name}$"):
        send(errand, [row(1, "1"), row(2, "2") | {name: None}], turn)
    assert picky.calls == []
