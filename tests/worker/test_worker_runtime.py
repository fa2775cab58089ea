"""Runtime of a worker: graceful shutdown, heartbeats, reaping of expired leases, and outages of the store."""

import asyncio
import threading

from worker_watch import Watch, running

from penstock import Outbox, Received, RetryPolicy, Worker
from penstock.model.lifecycle import State
from penstock.store.registry import open_store
from penstock.store.sql.store import SqlStore
from tests.support.servers import PostgresServer


def test_stop_releases_unstarted_events_uncounted(worker: Worker, outbox: Outbox, watch: Watch) -> None:
    begun, finish = threading.Event(), threading.Event()

    @worker.handler(max_workers=1, fetch_batch_size=10)
    def handle(event: Received) -> None:
        begun.set()
        finish.wait(60)

    outbox.emit_many([outbox.event("x", str(number)) for number in range(8)])
    worker.start()
    assert begun.wait(60)
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    finish.set()
    stopping.join()
    assert watch.states() == {State.PENDING: 7, State.PUBLISHED: 1}
    waiting = [record for record in watch.records().values() if record.state is State.PENDING]
    assert {(record.deliveries, record.attempts) for record in waiting} == {(0, 0)}


def test_run_returns_after_all_outcomes_are_written(worker: Worker, outbox: Outbox, watch: Watch) -> None:
    returned, stopping = threading.Event(), threading.Event()

    def stop() -> None:
        stopping.set()
        worker.stop()

    @worker.handler(max_workers=1)
    def handle(event: Received) -> None:
        threading.Thread(target=stop, daemon=True).start()
        watch.that(lambda: not worker.running)
        returned.wait(0.5)  # expected to time out: `run` must not return while this handler runs

    outbox.emit("x")
    worker.run()
    returned.set()
    assert stopping.is_set()
    assert watch.states() == {State.PUBLISHED: 1}


def test_stop_leaves_hanging_handler_to_its_lease(outbox: Outbox, watch: Watch, url: str) -> None:
    worker = Worker(url, graceful_timeout=0.2)
    begun, finish = threading.Event(), threading.Event()

    @worker.handler()
    def handle(event: Received) -> None:
        begun.set()
        finish.wait(60)

    outbox.emit("x")
    worker.start()
    assert begun.wait(60)
    worker.stop()
    assert watch.states() == {State.CLAIMED: 1}
    finish.set()


def test_stop_cancels_hanging_async_handler_as_failed(outbox: Outbox, watch: Watch, url: str) -> None:
    worker = Worker(url, graceful_timeout=0.2)
    begun = threading.Event()
    cleaned: list[str] = []

    @worker.handler(retry=RetryPolicy.none())
    async def handle(event: Received) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append("up")

    outbox.emit("x", "1")
    worker.start()
    assert begun.wait(60)
    worker.stop()
    assert cleaned == ["up"]
    assert watch.states() == {State.DEAD: 1}
    assert "the worker stopped" in str(watch.records()["1"].last_error)


def test_slow_handler_keeps_its_lease(worker: Worker, outbox: Outbox, watch: Watch, store: SqlStore) -> None:
    calls: list[int] = []

    @worker.handler(release_stuck_timeout=3.0, release_stuck_interval=0.1)
    def handle(event: Received) -> None:
        calls.append(event.deliveries)
        until = store.now().timestamp() + 4.0
        while store.now().timestamp() < until:
            threading.Event().wait(0.05)

    outbox.emit("x", "1")
    with running(worker):
        watch.until(published=1)
    assert calls == [1]
    assert watch.records()["1"].attempts == 0


def test_expired_lease_returns_events_to_queue(worker: Worker, outbox: Outbox, watch: Watch, store: SqlStore) -> None:
    outbox.emit("x", "1")
    assert store.claim("outbox", limit=1, claimant="dead", lease_seconds=0.3)
    seen: list[tuple[int, int]] = []
    worker.handler(release_stuck_interval=0.1)(lambda event: seen.append((event.deliveries, event.suspect)))
    with running(worker):
        watch.until(published=1)
    assert seen == [(2, 1)]


def test_worker_settles_nothing_after_losing_lease(
    worker: Worker, outbox: Outbox, watch: Watch, store: SqlStore
) -> None:
    """Another claimant takes over the event while its handler runs: this worker's outcome is rejected."""
    again, lost = threading.Event(), []

    @worker.handler(release_stuck_timeout=3.0)
    def handle(event: Received) -> None:
        taken = store.claim(event.queue, limit=1, claimant="another", lease_seconds=60, lease_id=event.lease.lease_id)
        watch.that(lambda: event.lost)
        lost.append(event.lost)
        again.set()
        assert len(taken) == 1
        raise RuntimeError("void")

    outbox.emit("x")
    with running(worker):
        assert again.wait(60)
    assert lost == [True]
    assert watch.states() == {State.CLAIMED: 1}


def test_worker_survives_database_restart() -> None:
    with PostgresServer(fsync=False) as server:
        url = server.create_database()
        store = open_store(url)
        store.initialise()
        outbox, watch = Outbox(store), Watch(store)
        worker = Worker(url)
        held, go_on = threading.Event(), threading.Event()

        @worker.handler(max_workers=2)
        def handle(event: Received) -> None:
            if event.text() == "held":
                held.set()
                go_on.wait(60)

        outbox.emit("x", "held")
        with running(worker):
            assert held.wait(60)
            server.stop()
            go_on.set()
            server.start()
            store.engine.dispose()
            outbox.emit("x", "after")
            watch.until(published=2)
            assert watch.records()["held"].deliveries == 1, "its outcome waited for the database"
        store.close()
