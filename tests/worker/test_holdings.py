"""What a subscription holds, step by step: pure bookkeeping, without a store."""

import threading
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from penstock.model.event import Delivery
from penstock.model.lease import Lease, LeaseId, Token
from penstock.model.lifecycle import OrderPolicy
from penstock.model.outcome import PUBLISHED, RELEASED, Outcome, Retry
from penstock.worker.buffer import Holdings
from penstock.worker.received import Received

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def lease() -> Lease:
    return Lease(LeaseId(uuid4()), Token(uuid4()), "outbox")


def events(under: Lease, *keys: str | None) -> list[Received]:
    deliveries = [
        Delivery(seq, uuid4(), "x", "outbox", b"", None, None, key, 0, NOW, NOW, 0, 1, None, 0, 0, None)
        for seq, key in enumerate(keys, 1)
    ]
    return [Received.of(one, under, None) for one in deliveries]  # type: ignore[arg-type]


def seqs(taken: list[Received]) -> list[int]:
    return [event.seq for event in taken]


def written(holdings: Holdings, *, everything: bool = True) -> list[dict[int, Outcome]]:
    due = holdings.due(1_000, all_of_it=everything)
    for one, _ in due:
        holdings.written(one)
    return [outcomes for _, outcomes in due]


def test_events_come_out_as_they_went_in_and_the_lease_goes_with_the_last() -> None:
    holdings, under = Holdings(OrderPolicy.BLOCK), lease()
    holdings.add(under, events(under, None, None, None))
    first, second, third = holdings.take(2) + holdings.take(2)
    assert holdings.take() == []
    assert (holdings.queued, len(holdings.running)) == (0, 3)
    holdings.finish(first, PUBLISHED)
    assert written(holdings, everything=False) == [], "it waits for others"
    holdings.finish(second, Retry("x", 0))
    holdings.finish(third, PUBLISHED)
    assert holdings.leases == [under]
    assert written(holdings, everything=False) == [{1: PUBLISHED, 2: Retry("x", 0), 3: PUBLISHED}]
    assert holdings.leases == []


def test_only_the_head_of_a_line_is_handed_out() -> None:
    holdings, under = Holdings(OrderPolicy.BLOCK), lease()
    holdings.add(under, events(under, "a", "a", None, "b", "a"))
    taken = holdings.take()
    assert seqs(taken + holdings.take() + holdings.take()) == [1, 3, 4]
    assert holdings.take() == []
    holdings.finish(taken[0], PUBLISHED)
    (second,) = holdings.take()
    assert second.seq == 2
    holdings.finish(second, Retry("x", 0))
    assert holdings.take() == [], "what stands behind a failure goes back"
    assert written(holdings) == [{1: PUBLISHED, 2: Retry("x", 0), 5: RELEASED}]
    assert holdings.undecided == 2


@pytest.mark.parametrize("order_policy", OrderPolicy)
def test_what_stands_behind_a_released_event_goes_back_with_it(order_policy: OrderPolicy) -> None:
    holdings, under = Holdings(order_policy), lease()
    holdings.add(under, events(under, "a", "a", "b"))
    (first,), (other,) = holdings.take(), holdings.take()
    holdings.finish(first, RELEASED)
    assert holdings.take(2) == []
    holdings.finish(other, PUBLISHED)
    assert written(holdings) == [{1: RELEASED, 2: RELEASED, 3: PUBLISHED}]


def test_a_batch_takes_a_line_along_and_keeps_its_key() -> None:
    holdings, under = Holdings(OrderPolicy.BLOCK), lease()
    holdings.add(under, events(under, "a", "a", "a", "b"))
    batch = holdings.take(2)
    assert seqs(batch) == [1, 2]
    assert seqs(holdings.take(5)) == [4]
    holdings.finish(batch[0], PUBLISHED)
    assert holdings.take(5) == [], "half of the batch is still in its hands"
    holdings.finish(batch[1], PUBLISHED)
    assert seqs(holdings.take(5)) == [3]


def test_a_hand_that_was_given_up_on_says_nothing_more() -> None:
    holdings, under = Holdings(OrderPolicy.BLOCK), lease()
    holdings.add(under, events(under, None, None))
    late, other = holdings.take(2)
    assert set(holdings.abandon(late.started + 1_000)) == {late, other}
    holdings.finish(late, Retry("too long", 0))
    holdings.finish(late, PUBLISHED)
    assert holdings.undecided == 1
    assert written(holdings) == [{1: Retry("too long", 0)}]
    assert holdings.leases == [under]


def test_a_drain_gives_back_what_was_not_started() -> None:
    holdings, under = Holdings(OrderPolicy.BLOCK), lease()
    holdings.add(under, events(under, "a", "a", None))
    (running,) = holdings.take()
    assert holdings.drain() == 2
    assert (holdings.queued, holdings.take(5)) == (0, [])
    holdings.finish(running, PUBLISHED)
    assert written(holdings) == [{1: PUBLISHED, 2: RELEASED, 3: RELEASED}]
    again = lease()
    holdings.add(again, events(again, "a"))
    assert seqs(holdings.take(5)) == [1], "the key is free again"


def test_a_lost_lease_is_forgotten_and_whoever_runs_is_told() -> None:
    holdings, lost, kept = Holdings(OrderPolicy.BLOCK), lease(), lease()
    holdings.add(lost, events(lost, "a", "a", None))
    holdings.add(kept, events(kept, "b"))
    (running,) = holdings.take()
    assert holdings.lose([lost.lease_id]) == 2
    assert running.lost
    holdings.finish(running, PUBLISHED)
    assert seqs(holdings.take(5)) == [1]
    assert holdings.leases == [kept]
    assert written(holdings) == []
    again = lease()
    holdings.add(again, events(again, "a"))
    assert len(holdings.take(5)) == 1


def test_outcomes_that_could_not_be_written_are_due_again() -> None:
    holdings, under = Holdings(OrderPolicy.BLOCK), lease()
    holdings.add(under, events(under, None, None))
    first, second = holdings.take(2)
    holdings.finish(first, PUBLISHED)
    ((_, outcomes),) = holdings.due(0)
    assert holdings.due(0) == [], "nobody writes them twice at a time"
    holdings.finish(second, PUBLISHED)
    holdings.put_back(under, outcomes)
    assert written(holdings) == [{1: PUBLISHED, 2: PUBLISHED}]
    assert holdings.leases == []


def test_leases_whose_last_outcomes_are_on_their_way_are_not_missed() -> None:
    holdings, under = Holdings(OrderPolicy.BLOCK), lease()
    holdings.add(under, events(under, None))
    (only,) = holdings.take()
    assert holdings.still_needed([under.lease_id]) == [under.lease_id]
    holdings.finish(only, PUBLISHED)
    holdings.due(0)
    assert holdings.still_needed([under.lease_id]) == []


def test_what_is_undecided_when_its_handler_returns_keeps_its_line() -> None:
    holdings, under = Holdings(OrderPolicy.BLOCK), lease()
    holdings.add(under, events(under, "a", "a"))
    (first,) = holdings.take()
    holdings.finish(first, None)
    assert holdings.take() == []
    assert holdings.running == set()
    first.decision = PUBLISHED
    holdings.finish(first, PUBLISHED)
    assert seqs(holdings.take()) == [2]


def test_a_thread_that_waits_is_woken() -> None:
    holdings, under, closed = Holdings(OrderPolicy.BLOCK), lease(), threading.Event()
    taken: list[Received] = []
    waiting = threading.Thread(target=lambda: taken.extend(holdings.await_some(1, closed)))
    waiting.start()
    holdings.add(under, events(under, None))
    waiting.join(60)
    assert seqs(taken) == [1]
