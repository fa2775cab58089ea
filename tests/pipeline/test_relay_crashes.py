"""Relays in separate processes, killed at critical steps: no event is lost, and only claimed ones are delivered twice.

One long-running relay, `steady`, serves all tests that a relay must survive.
"""

import os
import re
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from relay_processes import (
    BATCH,
    IN_HAND,
    LEASE_SECONDS,
    RelayProcess,
    SlowReader,
    assert_delivered,
    await_settled,
    delivered,
    emit,
    emitting,
)
from valkey import Valkey

from penstock.model.event import EventId
from penstock.model.lifecycle import State
from penstock.model.selection import Selection
from penstock.outbox import Outbox, connect
from penstock.pipeline.relay.driver import run_relay
from penstock.pipeline.relay.spec import RelayOptions
from penstock.pipeline.spark.installation import spark_home
from tests.support.files import write_whole
from tests.support.processes import command_of, wait_until
from tests.support.servers import PostgresServer, ValkeyServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.slow]

WAIT_SECONDS = 180.0
# A cluster of three JVMs starts slowly on a busy machine.
START_SECONDS = 180.0
END_SECONDS = 60.0


@pytest.fixture(scope="module")
def server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """A separate server to restart and kill. It is skipped together with the shared server, which must stay up."""
    with PostgresServer(fsync=False) as own:
        yield own


@dataclass(frozen=True)
class Ground:
    """An outbox, and a folder with the events that were delivered from it."""

    url: str
    outbox: Outbox
    folder: Path

    @property
    def files(self) -> Path:
        return self.folder / "out"

    def relay(self, **options: object) -> RelayProcess:
        given = {"store": self.url, "destination": f"file://{self.files}", **options}
        return RelayProcess(self.folder, **given)  # type: ignore[arg-type]

    def drain(self, **options: object) -> None:
        """Wait for the leases of killed relays to expire; deliver the remaining events by a relay in this process."""
        assert wait_until(self._all_leases_are_over, WAIT_SECONDS)
        given = {"store": self.url, "destination": f"file://{self.files}", "lease_seconds": LEASE_SECONDS}
        run_relay(RelayOptions(once=True, batch=BATCH, **(given | options)))  # type: ignore[arg-type]

    def _all_leases_are_over(self) -> bool:
        stats = self.outbox.store.stats()
        return stats.open_leases == stats.expired_leases

    def in_state(self, state: State) -> Counter[str]:
        found = self.outbox.store.find(Selection(states=frozenset({state})), limit=100_000)
        return Counter(str(record.event_id) for record in found.records)


@pytest.fixture
def ground(server: PostgresServer, tmp_path: Path) -> Iterator[Ground]:
    url = server.create_database()
    with connect(url) as outbox:
        outbox.store.initialise()
        yield Ground(url, outbox, tmp_path)


@dataclass(frozen=True)
class Steady(Ground):
    """A relay that must survive all crashes and outages of the tests."""

    process: RelayProcess

    def strike(self, crash: str) -> Callable[[], bool]:
        """Plan a crash; return a predicate that is true once the crash has happened."""
        plan = self.folder / "plan"
        fired = plan.with_name("plan.fired")
        fired.unlink(missing_ok=True)
        write_whole(plan, crash)
        return fired.exists


@pytest.fixture(scope="module")
def steady(server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Steady]:
    folder, url = tmp_path_factory.mktemp("steady"), server.create_database()
    with connect(url) as outbox:
        outbox.store.initialise()
        given = {"crash": f"poison:arsenic,@{folder}/plan", "checkpoint": f"{folder}/checkpoint"}
        with Ground(url, outbox, folder).relay(**given) as process:
            yield Steady(url, outbox, folder, process)


@pytest.mark.parametrize(
    ("crash", "repeats"),
    [
        ("in-claim:2", 0),
        ("after-claim", 0),
        ("in-publish", BATCH),
        ("after-publish", BATCH),
        ("in-settle:2", BATCH),
        ("in-settle:3", BATCH),
        ("after-settle", 0),
    ],
)
def test_no_event_is_lost_if_worker_is_killed(steady: Steady, crash: str, repeats: int) -> None:
    struck = steady.strike(crash)
    ids = emit(steady.outbox, 2_000)
    assert wait_until(struck, WAIT_SECONDS), steady.process.log
    await_settled(steady.outbox.store, steady.process)
    assert_delivered(ids, delivered(steady.files), repeats=repeats)
    assert not steady.in_state(State.DEAD)


@pytest.mark.parametrize("how", ["restarted", "killed"])
def test_relay_waits_for_postgres_outage_under_load(steady: Steady, server: PostgresServer, how: str) -> None:
    log_length = len(steady.process.log)
    with emitting(steady.url) as ids:
        assert wait_until(lambda: len(ids) > 500, WAIT_SECONDS)
        ids.extend(emit(steady.outbox, 5_000))
        if how == "restarted":
            server.restart()
        else:
            server.kill()
            steady.process.await_log("WARNING .*cannot reach postgresql", after=log_length)
            server.start()
            steady.process.await_log("store_available", after=log_length)
        before = len(ids)
        assert wait_until(lambda: len(ids) > before + 1_000, WAIT_SECONDS)
    await_settled(steady.outbox.store, steady.process)
    assert_delivered(ids, delivered(steady.files), repeats=IN_HAND)
    assert not steady.in_state(State.DEAD)


def test_running_relay_survives_deleted_checkpoint(steady: Steady) -> None:
    shutil.rmtree(steady.folder / "checkpoint")
    ids = emit(steady.outbox, 1_000)
    assert wait_until(lambda: any((steady.folder / "checkpoint").glob("commits/[0-9]*")), WAIT_SECONDS)
    await_settled(steady.outbox.store, steady.process)
    assert_delivered(ids, delivered(steady.files), repeats=0)


def test_poison_events_become_dead_letters_alone(steady: Steady) -> None:
    """The test uses more poison events than the failures that Spark allows a task in one slice."""
    outbox = steady.outbox
    poison = [outbox.event("poison", {"dose": "arsenic"}, max_attempts=4) for _ in range(5)]
    food = [outbox.event("food", {"number": number}) for number in range(1_000)]
    ids = outbox.emit_many([*food[:500], *poison, *food[500:]])
    await_settled(outbox.store, steady.process, 120)
    assert steady.in_state(State.DEAD) == Counter(str(event_id) for event_id in ids[500:505])
    assert_delivered(ids[:500] + ids[505:], delivered(steady.files), repeats=4 * IN_HAND)
    assert not delivered(steady.files).keys() & {str(event_id) for event_id in ids[500:505]}
    assert steady.process.running


def test_ctrl_c_ends_busy_relay_without_open_leases(steady: Steady) -> None:
    emit(steady.outbox, 20_000)
    before = steady.in_state(State.PUBLISHED).total()
    assert wait_until(lambda: steady.outbox.store.stats().total("published") > before, WAIT_SECONDS)
    started = time.monotonic()
    steady.process.interrupt()
    assert steady.process.wait() == 0, steady.process.log
    assert time.monotonic() - started < END_SECONDS
    assert steady.outbox.store.stats().total("claimed") == 0
    assert steady.outbox.store.stats().open_leases == 0
    assert steady.in_state(State.PUBLISHED).keys() == delivered(steady.files).keys()
    assert steady.process.report["published"] > 0


@pytest.mark.parametrize(
    "crash", ["after-claim:2:family", "after-publish:2:driver", "in-settle:5:family", "after-settle:2:family"]
)
def test_no_event_is_lost_if_driver_is_killed(ground: Ground, spark: "SparkSession", crash: str) -> None:
    """A crash after a settle comes before the entry in Spark's commit log. The next relay has the same checkpoint."""
    checkpoint = f"{ground.folder}/checkpoint"
    ids = emit(ground.outbox, 3_000)
    with ground.relay(crash=crash, checkpoint=checkpoint) as process:
        assert process.wait() == -signal.SIGKILL, process.log
    assert ground.in_state(State.PUBLISHED).total() < 3_000
    ground.drain(checkpoint=checkpoint)
    assert_delivered(ids, delivered(ground.files), repeats=IN_HAND)
    assert ground.in_state(State.PUBLISHED).total() == 3_000
    assert ground.outbox.store.stats().open_leases == 0


def test_killed_jvm_is_reported_and_no_event_is_lost(ground: Ground, spark: "SparkSession") -> None:
    with ground.relay() as process, emitting_to(ground, process) as ids:
        (java,) = [pid for pid in process.processes() if b"pyspark-shell" in command_of(pid)]
        os.kill(java, signal.SIGKILL)
        assert process.wait() == 1
    assert re.search(
        r"^PipelineError: lost the connection to Spark's JVM \(\w+\); start again$", process.log, re.MULTILINE
    )
    ground.drain()
    assert_delivered(ids, delivered(ground.files), repeats=IN_HAND)


def test_relay_stopped_during_spark_start_ends_promptly(ground: Ground) -> None:
    with ground.relay() as process:
        process.await_log("relay_started")
        process.terminate()
        started = time.monotonic()
        assert process.wait() == 0, process.log
        assert time.monotonic() - started < END_SECONDS


def test_relay_ends_despite_slow_stdout_reader(
    ground: Ground,
    spark: "SparkSession",
) -> None:
    ids = emit(ground.outbox, 5_000)
    reader, writer = os.pipe()
    with SlowReader(reader) as slow, ground.relay(destination="stdout:", output=writer) as process:
        os.close(writer)
        assert wait_until(lambda: slow.lines() > 100, WAIT_SECONDS), process.log
        started = time.monotonic()
        process.interrupt()
        assert process.wait() == 0, process.log
        assert time.monotonic() - started < END_SECONDS
    assert "stopping hint=" in process.log
    printed = slow.event_ids()
    assert 0 < len(printed) < 5_000
    assert printed == ground.in_state(State.PUBLISHED)
    assert ground.in_state(State.CLAIMED).total() == 0
    given_back = ground.outbox.store.find(Selection(states=frozenset({State.PENDING})), limit=10_000).records
    assert {(record.attempts, record.deliveries) for record in given_back} == {(0, 0)}
    ground.drain()
    assert_delivered(ids, printed + delivered(ground.files), repeats=0)


def test_relay_survives_destination_outage_and_slowness(ground: Ground, spark: "SparkSession") -> None:
    with ValkeyServer(fsync=False) as valkey, ground.relay(destination=valkey.url(), topic="all") as process:
        emit(ground.outbox, 1)
        assert wait_until(lambda: length(valkey) == 1, WAIT_SECONDS), process.log
        with emitting(ground.url) as ids:
            assert wait_until(lambda: length(valkey) > 500, WAIT_SECONDS), process.log
            valkey.stop()
            process.await_log('delivery_failed queue=outbox error="publishing failed: ConnectionError')
            valkey.start()
        await_settled(ground.outbox.store, process)
        assert_delivered(ids, stream(valkey), repeats=IN_HAND)
        with slowed(valkey):
            before = length(valkey)
            ids = emit(ground.outbox, 5_000)
            assert wait_until(lambda: length(valkey) > before, WAIT_SECONDS), process.log
            started = time.monotonic()
            process.terminate()
            assert process.wait() == 0, process.log
            assert time.monotonic() - started < END_SECONDS
        assert stream(valkey).keys() == ground.in_state(State.PUBLISHED).keys()
        assert ground.in_state(State.PENDING).total() > 0
        ground.drain(destination=valkey.url(), topic="all")
        assert_delivered(ids, stream(valkey), repeats=0)


def length(valkey: ValkeyServer) -> int:
    with Valkey(port=valkey.port) as client:
        return int(client.xlen("all"))


def stream(valkey: ValkeyServer) -> Counter[str]:
    with Valkey(port=valkey.port) as client:
        return Counter(fields[b"event_id"].decode() for _, fields in client.xrange("all"))


@contextmanager
def slowed(valkey: ValkeyServer) -> Iterator[None]:
    """Block the server's writes for most of the time, and let some through at short intervals."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(0.4):
            client.client_unpause()
            over.wait(0.01)
            client.client_pause(10_000, all=False)

    with Valkey(port=valkey.port) as client:
        client.client_pause(10_000, all=False)
        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            client.client_unpause()


def test_no_event_is_lost_if_executor_is_killed(ground: Ground) -> None:
    apps = spark_home() / "work"  # log folder of a local-cluster
    before = set(apps.glob("app-*"))
    try:
        with ground.relay(master="local-cluster[2,1,1024]") as process:
            with emitting_to(ground, process) as ids:
                executors = [pid for pid in process.processes() if b"CoarseGrainedExecutorBackend" in command_of(pid)]
                os.kill(executors[0], signal.SIGKILL)
                process.await_log("Lost executor")
                emitted = len(ids)
                assert wait_until(lambda: len(ids) > emitted + 1_000, WAIT_SECONDS)
            await_settled(ground.outbox.store, process)
            assert_delivered(ids, delivered(ground.files), repeats=IN_HAND)
            process.terminate()
            assert process.wait() == 0, process.log
    finally:
        for app in set(apps.glob("app-*")) - before:
            shutil.rmtree(app)


@contextmanager
def emitting_to(ground: Ground, process: RelayProcess) -> Iterator[list[EventId]]:
    """Emit events once the relay delivers, like `emitting`."""
    emit(ground.outbox, 1)
    assert wait_until(lambda: ground.files.is_dir() and bool(delivered(ground.files)), START_SECONDS), process.log
    with emitting(ground.url) as ids:
        assert wait_until(lambda: len(delivered(ground.files)) > 1_000, WAIT_SECONDS), process.log
        yield ids
