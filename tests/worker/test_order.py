"""Ordering keys in a worker: one event per key at a time, in order, also after failures."""

import threading
import time
from collections import defaultdict

import pytest
from worker_watch import Watch, running

from penstock import Outbox, Received, RetryPolicy, Worker
from penstock.model.lifecycle import OrderPolicy

KEYS = [f"key {number}" for number in range(5)]
AT_ONCE = RetryPolicy.constant(0.01, max_attempts=50)


def emit_to_each_key(outbox: Outbox, length: int) -> None:
    outbox.emit_many([outbox.event("x", str(place), ordering_key=key) for place in range(length) for key in KEYS])


def test_events_of_ordering_key_run_in_sequence(worker: Worker, outbox: Outbox, watch: Watch) -> None:
    done: dict[str, list[int]] = defaultdict(list)
    busy: set[str] = set()
    overlaps: list[str] = []

    @worker.handler(max_workers=8, retry=AT_ONCE)
    def handle(event: Received) -> None:
        key = str(event.ordering_key)
        if key in busy:
            overlaps.append(key)
        busy.add(key)
        time.sleep(0.001)
        busy.discard(key)
        if event.attempts == 0 and int(event.text()) % 7 == 3:
            raise ConnectionError("not yet")
        done[key].append(int(event.text()))

    emit_to_each_key(outbox, 30)
    with running(worker):
        watch.until(published=150)
    assert overlaps == []
    assert done == {key: list(range(30)) for key in KEYS}


@pytest.mark.parametrize("policy", list(OrderPolicy))
def test_failure_blocks_only_its_ordering_key(outbox: Outbox, watch: Watch, url: str, policy: OrderPolicy) -> None:
    worker = Worker(url, order_policy=policy)
    done: list[str] = []
    open_again = threading.Event()

    @worker.handler(max_workers=4, retry=AT_ONCE)
    async def handle(event: Received) -> None:
        if event.text() == f"{KEYS[0]}: 0" and not open_again.is_set():
            raise ConnectionError("not yet")
        done.append(event.text())

    outbox.emit_many([outbox.event("x", f"{key}: {place}", ordering_key=key) for place in range(3) for key in KEYS])
    blocked = {f"{KEYS[0]}: {place}" for place in ("0", "1", "2") if policy is OrderPolicy.BLOCK or place == "0"}
    with running(worker):
        watch.that(lambda: len(done) == 15 - len(blocked))
        assert not blocked & set(done)
        open_again.set()
        watch.until(published=15)
    mine = [one for one in done if one.startswith(KEYS[0])]
    assert sorted(mine) == [f"{KEYS[0]}: {place}" for place in range(3)]
    assert policy is OrderPolicy.SKIP or mine == sorted(mine)


def test_batches_keep_order_of_keys(worker: Worker, outbox: Outbox, watch: Watch) -> None:
    done: dict[str, list[int]] = defaultdict(list)
    failed: set[str] = set()

    @worker.handler(batch_size=4, max_workers=6, retry=AT_ONCE)
    def handle(events: list[Received]) -> None:
        if events[0].text() == "8" and events[0].attempts == 0 and not failed:
            failed.add(str(events[0].ordering_key))
            raise ConnectionError("the whole batch")
        for event in events:
            done[str(event.ordering_key)].append(int(event.text()))

    emit_to_each_key(outbox, 20)
    with running(worker):
        watch.until(published=100)
    assert done == {key: list(range(20)) for key in KEYS}
