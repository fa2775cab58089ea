"""Wake-up of idle workers: by NOTIFY on PostgreSQL, by polling behind a pooler and elsewhere."""

import itertools
import threading
from collections.abc import Iterator

import psycopg
import pytest
from worker_watch import Watch, running

from penstock import Outbox, Received, Worker
from penstock.store.registry import open_store
from penstock.store.sql.store import SqlStore
from penstock.worker.notifier import CHANNEL, MAX_REMINDER_SECONDS, Notifier, Reminder, open_notifier
from tests.support.processes import wait_until
from tests.support.servers import PgBouncer

SECONDS = 60.0
FAR_AWAY = 3_600.0


@pytest.fixture
def url(postgres_url: str) -> str:
    return postgres_url


@pytest.fixture
def notifier(store: SqlStore) -> Iterator[Notifier]:
    made = open_notifier(store, [("outbox", threading.Event())])
    assert made is not None
    yield made
    made.close()


def test_emit_wakes_idle_worker(worker: Worker, outbox: Outbox, watch: Watch) -> None:
    """The fetch interval is an hour, so only wake-ups can deliver the events in time."""
    seen: list[str] = []
    worker.handler(max_fetch_interval=FAR_AWAY)(lambda event: seen.append(event.text()))
    with running(worker):
        for number in range(5):
            outbox.emit("x", str(number))
            watch.until(published=number + 1)
    assert seen == [str(number) for number in range(5)]


def test_due_delayed_event_wakes_worker(worker: Worker, outbox: Outbox, watch: Watch) -> None:
    worker.handler(max_fetch_interval=FAR_AWAY)(lambda event: None)
    with running(worker):
        outbox.emit("x", delay=0.3)
        watch.until(published=1)


def test_emit_wakes_processes_that_do_not_probe(store: SqlStore, url: str, notifier: Notifier) -> None:
    woken = threading.Event()
    other = open_notifier(store, [("outbox", woken), ("elsewhere", threading.Event())])
    assert other is not None
    notifier.step()
    other.step()
    assert (notifier.probed_queues, other.probed_queues) == ({"outbox"}, {"elsewhere"})
    Outbox(store).emit("x")
    notifier.step()
    other.step()
    assert woken.is_set()
    other.close()


def test_process_takes_over_probing_after_close(
    store: SqlStore, notifier: Notifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.worker.notifier.ELECTION_SECONDS", 0.0)
    other = open_notifier(store, [("outbox", threading.Event())])
    assert other is not None
    notifier.step()
    other.step()
    assert (notifier.probed_queues, other.probed_queues) == ({"outbox"}, set())
    notifier.close()

    def took_over() -> bool:
        other.step()
        return other.probed_queues == {"outbox"}

    assert wait_until(took_over, SECONDS), "a closed connection gives its locks back"
    other.close()


def test_notification_for_unserved_queue_is_ignored(store: SqlStore, url: str, notifier: Notifier) -> None:
    notifier.step()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_notify(%s, 'unheard of')", [CHANNEL])
    notifier.step()


def test_prober_survives_lost_connection(worker: Worker, outbox: Outbox, watch: Watch, url: str) -> None:
    worker.handler(max_fetch_interval=FAR_AWAY)(lambda event: None)
    with running(worker):
        outbox.emit("x")
        watch.until(published=1)
        with psycopg.connect(url, autocommit=True) as connection:
            ended = connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'penstock lookout'"
                " AND datname = current_database()"
            ).fetchall()
        assert ended == [(True,)]
        outbox.emit("x")
        watch.until(published=2)


def test_workers_poll_behind_pooler(pgbouncer: PgBouncer, url: str, store: SqlStore) -> None:
    outbox, watch = Outbox(store), Watch(store)
    pooled = pgbouncer.url_for(url)
    worker = Worker(pooled)

    @worker.handler(fetch_batch_size=3)
    def handle(event: Received) -> None:
        with event.transaction():
            pass

    with running(worker):
        runtime = worker.runtime
        assert runtime is not None
        for _ in range(10):
            outbox.emit_many([outbox.event("x") for _ in range(5)])
        watch.until(published=50)
        lookout = next(loop for loop in runtime.loops if loop.name == "lookout")
        assert wait_until(lambda: not lookout.alive, SECONDS), "there is nothing to listen to"
    through = open_store(pooled)
    Outbox(through).emit_many([outbox.event("x") for _ in range(30)])
    assert len(through.claim("outbox", limit=100, claimant="me")) == 30
    through.close()


def test_sqlite_store_has_no_notifier(tmp_path: object) -> None:
    store = open_store(f"sqlite:///{tmp_path}/x.db")
    assert open_notifier(store, [("outbox", threading.Event())]) is None


class TestReminders:
    def test_new_events_are_due_at_once(self) -> None:
        reminder = Reminder()
        assert not reminder.is_due(False, 0.0)
        assert reminder.is_due(True, 1.0)
        assert not reminder.is_due(False, 1.001)
        assert reminder.is_due(True, 1.002)

    def test_pauses_grow_while_events_stay_ready(self) -> None:
        reminder = Reminder()
        reminders = [now / 1000 for now in range(10_000) if reminder.is_due(True, now / 1000)]
        pauses = [later - earlier for earlier, later in itertools.pairwise(reminders)]
        assert len(reminders) < 25
        assert pauses[0] < 0.02
        assert pauses[-1] == pytest.approx(MAX_REMINDER_SECONDS, abs=0.01)
