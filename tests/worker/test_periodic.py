"""Periodic emits: their due times, and that many processes together emit once."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from worker_watch import Watch, running

from penstock import Outbox, Worker
from penstock.model.errors import UsageError
from penstock.model.selection import Selection
from penstock.store.sql.store import SqlStore
from penstock.worker.periodic import Periodic, PeriodicEmitter

NOON = datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC)


def periodic(cron: str, name: str = "tick", **fields: object) -> Periodic:
    timezone = fields.pop("timezone", UTC)
    return Periodic(cron, name, "tick", {"a": 1}, "ticks", timezone, fields)  # type: ignore[arg-type]


def emitted(store: SqlStore) -> list[datetime]:
    records = store.find(Selection(queue="ticks"), limit=1_000).records
    return sorted(record.available_at for record in records)


def test_one_event_is_emitted_per_due_time(store: SqlStore, outbox: Outbox) -> None:
    emitting = PeriodicEmitter(outbox, [periodic("*/5 * * * *", priority=3)], started=NOON)
    assert emitting.emit_due(NOON) == 30.0, "it looks at the clock every half minute, in case that is set"
    due = NOON.replace(minute=5, second=0)
    assert emitting.emit_due(due) == 30.0
    assert emitted(store) == [due]
    (record,) = store.find(Selection(queue="ticks")).records
    assert (record.event_type, record.payload, record.priority) == ("tick", b'{"a":1}', 3)
    assert emitting.emit_due(due + timedelta(seconds=290)) == 10.0
    emitting.emit_due(due + timedelta(minutes=5))
    assert emitted(store) == [due, due + timedelta(minutes=5)]


def test_many_processes_emit_once(store: SqlStore, outbox: Outbox) -> None:
    """Each process has a different clock, some ahead and some behind."""
    clocks = [NOON + timedelta(seconds=seconds) for seconds in (-20, -1, 0, 1, 25)] * 4
    emittings = [PeriodicEmitter(outbox, [periodic("* * * * *")], started=NOON - timedelta(minutes=1)) for _ in clocks]
    with ThreadPoolExecutor(8) as threads:
        for minute in range(3):
            list(threads.map(lambda one, now, m=minute: one.emit_due(now + timedelta(minutes=m)), emittings, clocks))
    assert emitted(store) == [NOON.replace(minute=minute, second=0) for minute in range(3)]


def test_only_last_missed_due_time_is_emitted(store: SqlStore, outbox: Outbox) -> None:
    emitting = PeriodicEmitter(outbox, [periodic("* * * * *")], started=NOON)
    emitting.emit_due(NOON + timedelta(hours=3))
    assert emitted(store) == [NOON.replace(hour=15, second=0)]


def test_due_times_follow_time_zone(store: SqlStore, outbox: Outbox) -> None:
    berlin = periodic("30 9 * * *", timezone=ZoneInfo("Europe/Berlin"))
    assert berlin.next_after(datetime(2026, 7, 1, tzinfo=UTC)) == datetime(2026, 7, 1, 7, 30, tzinfo=UTC)
    assert berlin.next_after(datetime(2026, 12, 1, tzinfo=UTC)) == datetime(2026, 12, 1, 8, 30, tzinfo=UTC)


def test_periodic_emits_are_identified_by_name(store: SqlStore, outbox: Outbox) -> None:
    both = [periodic("* * * * *", "one"), periodic("* * * * *", "other")]
    PeriodicEmitter(outbox, both, started=NOON).emit_due(NOON + timedelta(minutes=1))
    assert len(emitted(store)) == 2
    worker = Worker(store.url)
    worker.periodic("* * * * *", "tick")
    worker.periodic("* * * * *", "tick", queue="other")
    with pytest.raises(UsageError, match="another name"):
        worker.periodic("*/5 * * * *", "tick")


@pytest.mark.parametrize("cron", ["", "* * * *", "61 * * * *", "0 0 31 2 *", "@never"])
def test_invalid_cron_expression_is_refused(cron: str) -> None:
    with pytest.raises(UsageError, match="invalid cron expression"):
        Worker("sqlite:///x.db").periodic(cron, "tick")


def test_delay_of_periodic_emit_is_refused() -> None:
    with pytest.raises(UsageError, match="delay is set by the periodic emit"):
        Worker("sqlite:///x.db").periodic("* * * * *", "tick", delay=3)


def test_worker_emits_and_handles_periodic_events(worker: Worker, watch: Watch) -> None:
    """The cron expression has a sixth field for seconds, so that the event is due every second."""
    seen: list[str] = []
    worker.handler("ticks")(lambda event: seen.append(event.event_type))
    worker.periodic("* * * * * *", "tick", queue="ticks")
    with running(worker):
        watch.that(lambda: len(seen) >= 2)
    assert set(seen) == {"tick"}
