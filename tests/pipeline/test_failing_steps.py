"""Relays with a step that fails, is slow, is stopped, or loses its leases."""

import json
import logging
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from relay_processes import assert_delivered, emit, lines
from relay_threads import running
from step_env import Ground
from step_functions import unchanged

from penstock.model.errors import StoreUnavailable
from penstock.model.lease import LeaseId
from penstock.model.lifecycle import State
from penstock.model.outcome import Dropped
from penstock.model.retry import RetryPolicy
from penstock.outbox import connect
from tests.support.processes import wait_until
from tests.support.servers import PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

WAIT_SECONDS = 180.0
STOP_SECONDS = 60.0
# A lease is lost if a heartbeat is late by two thirds of this time, which is longer than a busy machine stalls.
LEASE_SECONDS = 6.0


def with_number(number: int) -> str:
    return f"get_json_object(CAST(payload AS STRING), '$.number') = {number}"


# Failing steps


def test_failing_step_leaves_retries_with_reason(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    emit(ground.outbox, 200)

    def fail(_: "DataFrame") -> "DataFrame":
        raise OSError("the table of prices is gone")

    with caplog.at_level(logging.WARNING, "penstock"):
        report = ground.relay(fail, retry=RetryPolicy.constant(3_600))
    assert (report.retried, report.published) == (200, 0)
    error = "step failed: OSError: the table of prices is gone"
    assert f'delivery_failed queue=outbox error="{error}"' in caplog.text
    assert {(one.state, one.attempts, one.last_error) for one in ground.records()} == {(State.PENDING, 1, error)}
    assert not ground.files.exists()
    ground.assert_nothing_held()


def test_unplannable_step_error_is_one_line_in_dead_letters(ground: Ground) -> None:
    emit(ground.outbox, 20)
    report = ground.relay(lambda events: events.where("colour = 'red'"), retry=RetryPolicy.constant(0, max_attempts=2))
    assert (report.retried, report.dead) == (20, 20)
    (error,) = {one.last_error for one in ground.records()}
    assert error is not None
    assert error.startswith("step failed: ")
    assert "colour" in error
    assert "\n" not in error


def test_event_refused_by_store_does_not_end_relay(embedded: Ground) -> None:
    emit(embedded.outbox, 6)
    with embedded.outbox.store.transaction() as connection:
        connection.exec_driver_sql(
            "CREATE TRIGGER refusing BEFORE INSERT ON penstock_archive WHEN NEW.seq = 1 AND NEW.state = 'PUBLISHED' "
            "BEGIN SELECT RAISE(ABORT, 'not this one'); END"
        )
    policy = RetryPolicy.constant(0, max_attempts=2)
    wanted = {State.PUBLISHED: 5, State.DEAD: 1}
    longest = 0.0

    def done() -> bool:
        nonlocal longest
        records = embedded.records()
        now = embedded.outbox.store.now()  # read last: no lease was extended after it
        ends = [one.lease_expires_at for one in records if one.lease_expires_at is not None]
        longest = max([longest, *((end - now).total_seconds() for end in ends)])
        return embedded.states() == wanted

    with running(embedded.options(unchanged, once=False, batch=3, lease_seconds=LEASE_SECONDS, retry=policy)):
        assert wait_until(done, WAIT_SECONDS), embedded.states()
    assert 0 < longest <= LEASE_SECONDS, "a heartbeat extends a lease by its own length"
    (dead,) = embedded.in_state(State.DEAD)
    assert (dead.seq, dead.last_error) == (1, "lease expired")


def test_event_failing_in_step_is_retried_alone(ground: Ground) -> None:
    """No event of the batch is published twice, because the step fails before the first is published."""
    emit(ground.outbox, 300)

    def divide(events: "DataFrame") -> "DataFrame":
        return events.withColumn("partition_key", _expression(f"IF({with_number(123)}, raise_error('bad'), 'ok')"))

    ground.relay(divide, retry=RetryPolicy.constant(3_600))
    assert ground.numbers() == [number for number in range(300) if number != 123]
    (left,) = [one for one in ground.records() if one.state is not State.PUBLISHED]
    assert json.loads(left.payload)["number"] == 123
    assert left.attempts == 1
    assert left.last_error is not None
    assert left.last_error.startswith("step failed: ")
    assert "bad" in left.last_error
    ground.assert_nothing_held()


def test_later_events_of_key_wait_for_failed_event(ground: Ground) -> None:
    outbox = ground.outbox
    outbox.emit_many(outbox.event("x", {"number": number}, ordering_key=f"k{number % 10}") for number in range(100))

    def fail_at_33(events: "DataFrame") -> "DataFrame":
        return events.withColumn("partition_key", _expression(f"IF({with_number(33)}, raise_error('bad'), 'ok')"))

    ground.relay(fail_at_33, retry=RetryPolicy.constant(3_600))
    assert ground.numbers() == [number for number in range(100) if number % 10 != 3 or number < 33]
    waiting = [one for one in ground.records() if one.state is State.PENDING]
    assert {(one.attempts, one.ordering_key) for one in waiting} == {(0, "k3"), (1, "k3")}
    ground.assert_nothing_held()


def test_row_without_seq_is_step_failure(ground: Ground) -> None:
    emit(ground.outbox, 1)
    ground.relay(lambda events: events.withColumn("seq", _expression("NULL")), retry=RetryPolicy.constant(3_600))
    (record,) = ground.records()
    assert record.last_error == "step failed: ValueError: step returned a row with NULL in seq"


def _expression(text: str) -> Any:
    from pyspark.sql import functions as on

    return on.expr(text)


# Leases


def test_heartbeats_extend_leases_of_slow_batch(ground: Ground) -> None:
    """During the slow batch, the relay and the test reap expired leases. The batch must keep its leases."""
    ids = emit(ground.outbox, 100)
    reaped: list[int] = []
    left: list[float] = []

    def take_long(events: "DataFrame") -> "DataFrame":
        until = time.monotonic() + LEASE_SECONDS * 1.5
        while time.monotonic() < until:
            reaped.append(ground.outbox.store.reap())
            expiries = {one.lease_expires_at for one in ground.in_state(State.CLAIMED)} - {None}
            now = ground.outbox.store.now()  # read last: no lease was extended after it
            left.extend((expiry - now).total_seconds() for expiry in expiries if expiry is not None)
            time.sleep(0.05)
        return events

    report = ground.relay(take_long, lease_seconds=LEASE_SECONDS)
    assert 0 < max(left) <= LEASE_SECONDS
    assert sum(reaped) == report.reaped == 0
    assert (report.claimed, report.published, report.lost) == (100, 100, 0)
    assert_delivered(ids, ground.published(), repeats=0)


@pytest.mark.parametrize("dropped", list(Dropped))
def test_events_claimed_by_newer_driver_are_not_settled(ground: Ground, dropped: Dropped) -> None:
    emit(ground.outbox, 100)
    taken: set[int] = set()

    def lose(events: "DataFrame") -> "DataFrame":
        for row in events.select("lease").distinct().collect() if not taken else ():
            taken.update(take_over(ground, row.lease))
        return events.where(with_number(7))

    report = ground.relay(lose, dropped=dropped)
    assert report.lost == 100
    held = {one.seq: one.claimed_by for one in ground.in_state(State.CLAIMED)}
    assert held == dict.fromkeys(taken, "spark:newer:0")
    # The repeated claims hold fewer events: suspects that did not fit into them became pending again.
    assert len(held) < 100


def take_over(ground: Ground, lease: str) -> set[int]:
    """Repeat a claim, as another driver would that runs the same batch; return the claimed seqs."""
    claim = ground.outbox.store.claim(
        "outbox", limit=500, claimant="spark:newer:0", lease_seconds=60.0, lease_id=LeaseId(UUID(lease))
    )
    assert claim.repeated
    return {event.seq for event in claim.events}


def test_recomputed_partition_is_settled_under_new_token(ground: Ground) -> None:
    """A lost executor with cached rows has the same effect: the run claims again, and the old tokens become invalid."""
    from penstock.runtime.store_cache import close_stores

    ids = emit(ground.outbox, 50)

    def read_again(events: "DataFrame") -> "DataFrame":
        events.unpersist(blocking=True)
        return events

    report = ground.relay(read_again)
    assert (report.published, report.dead, report.lost) == (50, 0, 0)
    assert_delivered(ids, ground.published(), repeats=0)
    close_stores()


# Stopping


def test_stop_during_step_releases_all_events(ground: Ground) -> None:
    emit(ground.outbox, 100)
    started = threading.Event()

    def never_end(events: "DataFrame") -> "DataFrame":
        started.set()
        return events.withColumn("x", _expression("reflect('java.lang.Thread', 'sleep', 60000L)"))

    with running(ground.options(never_end, once=False)) as reports:
        assert started.wait(WAIT_SECONDS)
        asked = time.monotonic()
    assert time.monotonic() - asked < STOP_SECONDS
    assert reports[0].published == 0
    assert {(one.state, one.attempts, one.deliveries) for one in ground.records()} == {(State.PENDING, 0, 0)}
    ground.assert_nothing_held()


def test_stop_during_dispatch_settles_published_events(ground: Ground) -> None:
    emit(ground.outbox, 20_000)
    with running(ground.options(unchanged, once=False, batch=10_000)) as reports:
        assert wait_until(lambda: ground.files.is_dir() and bool(lines(ground.files)), WAIT_SECONDS)
    published = {str(one.event_id) for one in ground.in_state(State.PUBLISHED)}
    assert set(ground.published()) == published
    assert reports[0].published == len(published)
    assert {(one.attempts, one.deliveries) for one in ground.in_state(State.PENDING)} <= {(0, 0)}
    ground.assert_nothing_held()


def test_idle_relay_wakes_for_new_event(ground: Ground) -> None:
    with running(ground.options(unchanged, once=False)) as reports:
        for count in range(1, 4):
            emit(ground.outbox, 1)
            assert wait_until(lambda: ground.outbox.store.stats().total("published") == count, WAIT_SECONDS)  # noqa: B023
    assert reports[0].published == 3


@pytest.mark.slow
@pytest.mark.usefixtures("postgres_server")
def test_relay_waits_for_store_between_and_within_batches(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with PostgresServer(fsync=False) as server, connect(url := server.create_database()) as outbox:
        outbox.store.initialise()
        ground = Ground(url, outbox, tmp_path)
        outages: list[float] = []

        def lose_the_store(events: "DataFrame") -> "DataFrame":
            if not outages:
                server.kill()
                threading.Timer(2.0, server.start).start()
                outages.append(time.monotonic())
            return events

        with running(ground.options(lose_the_store, once=False, lease_seconds=30.0)) as reports:
            ids = emit(outbox, 100)
            assert wait_until(lambda: published(ground) == 100, WAIT_SECONDS)
            server.kill()
            logged = len(caplog.records)
            assert wait_until(lambda: len(caplog.records) > logged, WAIT_SECONDS)  # after many failed probes
            server.start()
            assert wait_until(lambda: published(ground) == 100, WAIT_SECONDS)
            ids += emit(outbox, 100)
            assert wait_until(lambda: published(ground) == 200, WAIT_SECONDS)
        assert_delivered(ids, ground.published(), repeats=0)
        assert (reports[0].published, reports[0].lost) == (200, 0)


def published(ground: Ground) -> int:
    with suppress(StoreUnavailable):
        return ground.outbox.store.stats().total("published")
    return -1


def test_draining_relay_ends_while_events_keep_arriving(ground: Ground) -> None:
    ids = emit(ground.outbox, 500)

    def emit_more(events: "DataFrame") -> "DataFrame":
        emit(ground.outbox, 500)
        return events

    ground.relay(emit_more, batch=100)
    found = ground.published()
    assert all(found[str(event_id)] == 1 for event_id in ids)
    assert ground.outbox.store.stats().total("pending") > 0
