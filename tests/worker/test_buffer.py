"""The event buffer, operation by operation, without a store."""

import threading
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from penstock.model.event import Delivery
from penstock.model.lease import Lease, LeaseId, Token
from penstock.model.lifecycle import OrderPolicy
from penstock.model.outcome import PUBLISHED, RELEASED, Outcome, Retry
from penstock.worker.buffer import EventBuffer
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


def written(buffer: EventBuffer, *, everything: bool = True) -> list[dict[int, Outcome]]:
    due = buffer.due(1_000, all_of_it=everything)
    for one, _ in due:
        buffer.written(one)
    return [outcomes for _, outcomes in due]


def test_events_keep_order_and_last_outcome_ends_lease() -> None:
    buffer, under = EventBuffer(OrderPolicy.BLOCK), lease()
    buffer.add(under, events(under, None, None, None))
    first, second, third = buffer.take(2) + buffer.take(2)
    assert buffer.take() == []
    assert (buffer.queued, len(buffer.running)) == (0, 3)
    buffer.finish(first, PUBLISHED)
    assert written(buffer, everything=False) == [], "it waits for others"
    buffer.finish(second, Retry("x", 0))
    buffer.finish(third, PUBLISHED)
    assert buffer.leases == [under]
    assert written(buffer, everything=False) == [{1: PUBLISHED, 2: Retry("x", 0), 3: PUBLISHED}]
    assert buffer.leases == []


def test_only_first_event_of_ordering_key_is_taken() -> None:
    buffer, under = EventBuffer(OrderPolicy.BLOCK), lease()
    buffer.add(under, events(under, "a", "a", None, "b", "a"))
    taken = buffer.take()
    assert seqs(taken + buffer.take() + buffer.take()) == [1, 3, 4]
    assert buffer.take() == []
    buffer.finish(taken[0], PUBLISHED)
    (second,) = buffer.take()
    assert second.seq == 2
    buffer.finish(second, Retry("x", 0))
    assert buffer.take() == [], "what stands behind a failure goes back"
    assert written(buffer) == [{1: PUBLISHED, 2: Retry("x", 0), 5: RELEASED}]
    assert buffer.undecided == 2


@pytest.mark.parametrize("order_policy", OrderPolicy)
def test_release_also_releases_later_events_of_key(order_policy: OrderPolicy) -> None:
    buffer, under = EventBuffer(order_policy), lease()
    buffer.add(under, events(under, "a", "a", "b"))
    (first,), (other,) = buffer.take(), buffer.take()
    buffer.finish(first, RELEASED)
    assert buffer.take(2) == []
    buffer.finish(other, PUBLISHED)
    assert written(buffer) == [{1: RELEASED, 2: RELEASED, 3: PUBLISHED}]


def test_batch_holds_its_ordering_key_until_finished() -> None:
    buffer, under = EventBuffer(OrderPolicy.BLOCK), lease()
    buffer.add(under, events(under, "a", "a", "a", "b"))
    batch = buffer.take(2)
    assert seqs(batch) == [1, 2]
    assert seqs(buffer.take(5)) == [4]
    buffer.finish(batch[0], PUBLISHED)
    assert buffer.take(5) == [], "half of the batch is still in its hands"
    buffer.finish(batch[1], PUBLISHED)
    assert seqs(buffer.take(5)) == [3]


def test_second_outcome_of_abandoned_event_is_ignored() -> None:
    buffer, under = EventBuffer(OrderPolicy.BLOCK), lease()
    buffer.add(under, events(under, None, None))
    late, other = buffer.take(2)
    assert set(buffer.abandon(late.started + 1_000)) == {late, other}
    buffer.finish(late, Retry("too long", 0))
    buffer.finish(late, PUBLISHED)
    assert buffer.undecided == 1
    assert written(buffer) == [{1: Retry("too long", 0)}]
    assert buffer.leases == [under]


def test_drain_releases_events_that_were_not_started() -> None:
    buffer, under = EventBuffer(OrderPolicy.BLOCK), lease()
    buffer.add(under, events(under, "a", "a", None))
    (running,) = buffer.take()
    assert buffer.drain() == 2
    assert (buffer.queued, buffer.take(5)) == (0, [])
    buffer.finish(running, PUBLISHED)
    assert written(buffer) == [{1: PUBLISHED, 2: RELEASED, 3: RELEASED}]
    again = lease()
    buffer.add(again, events(again, "a"))
    assert seqs(buffer.take(5)) == [1], "the key is free again"


def test_lost_lease_is_dropped_and_running_events_are_marked() -> None:
    buffer, lost, kept = EventBuffer(OrderPolicy.BLOCK), lease(), lease()
    buffer.add(lost, events(lost, "a", "a", None))
    buffer.add(kept, events(kept, "b"))
    (running,) = buffer.take()
    assert buffer.lose([lost.lease_id]) == 2
    assert running.lost
    buffer.finish(running, PUBLISHED)
    assert seqs(buffer.take(5)) == [1]
    assert buffer.leases == [kept]
    assert written(buffer) == []
    again = lease()
    buffer.add(again, events(again, "a"))
    assert len(buffer.take(5)) == 1


def test_unwritten_outcomes_become_due_again() -> None:
    buffer, under = EventBuffer(OrderPolicy.BLOCK), lease()
    buffer.add(under, events(under, None, None))
    first, second = buffer.take(2)
    buffer.finish(first, PUBLISHED)
    ((_, outcomes),) = buffer.due(0)
    assert buffer.due(0) == [], "nobody writes them twice at a time"
    buffer.finish(second, PUBLISHED)
    buffer.put_back(under, outcomes)
    assert written(buffer) == [{1: PUBLISHED, 2: PUBLISHED}]
    assert buffer.leases == []


def test_lease_with_last_outcomes_in_progress_is_not_needed() -> None:
    buffer, under = EventBuffer(OrderPolicy.BLOCK), lease()
    buffer.add(under, events(under, None))
    (only,) = buffer.take()
    assert buffer.still_needed([under.lease_id]) == [under.lease_id]
    buffer.finish(only, PUBLISHED)
    buffer.due(0)
    assert buffer.still_needed([under.lease_id]) == []


def test_undecided_event_blocks_its_ordering_key() -> None:
    buffer, under = EventBuffer(OrderPolicy.BLOCK), lease()
    buffer.add(under, events(under, "a", "a"))
    (first,) = buffer.take()
    buffer.finish(first, None)
    assert buffer.take() == []
    assert buffer.running == set()
    first.decision = PUBLISHED
    buffer.finish(first, PUBLISHED)
    assert seqs(buffer.take()) == [2]


def test_waiting_thread_is_woken() -> None:
    buffer, under, closed = EventBuffer(OrderPolicy.BLOCK), lease(), threading.Event()
    taken: list[Received] = []
    waiting = threading.Thread(target=lambda: taken.extend(buffer.await_some(1, closed)))
    waiting.start()
    buffer.add(under, events(under, None))
    waiting.join(60)
    assert seqs(taken) == [1]
