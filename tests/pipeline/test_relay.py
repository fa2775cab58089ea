"""The relay in this process, on the shared Spark session."""

import json
import logging
import os
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from relay_processes import assert_delivered, delivered, emit, lines
from relay_threads import running
from valkey import Valkey

from penstock.model.errors import PipelineError
from penstock.model.event import EventId
from penstock.model.lifecycle import State
from penstock.model.records import Record
from penstock.model.retry import RetryPolicy
from penstock.model.selection import Selection
from penstock.outbox import Outbox, connect
from penstock.pipeline.relay import driver as relaying
from penstock.pipeline.relay.driver import run_relay
from penstock.pipeline.relay.spec import RelayOptions
from tests.support.processes import wait_until
from tests.support.servers import ValkeyServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

WAIT_SECONDS = 180.0
Options = Callable[..., RelayOptions]


@pytest.fixture
def outbox(postgres_url: str) -> Iterator[Outbox]:
    with connect(postgres_url) as opened:
        opened.store.initialise()
        yield opened


@pytest.fixture
def options(postgres_url: str, tmp_path: Path) -> Options:
    """A factory of relay options that drain the queue into files, unless a test overrides them."""
    usual = {"store": postgres_url, "destination": f"file://{tmp_path}/out", "once": True}
    usual |= {"slice_seconds": 1.0, "lease_seconds": 5.0, "batch": 500}
    return lambda **given: RelayOptions(**(usual | given))


def in_state(outbox: Outbox, state: State) -> list[Record]:
    return list(outbox.store.find(Selection(states=frozenset({state})), limit=10_000).records)


def test_pending_events_are_delivered_once_and_counted(outbox: Outbox, options: Options, tmp_path: Path) -> None:
    ids = emit(outbox, 2_500)
    seen: list[int] = []
    report = run_relay(options(), progress=lambda so_far: seen.append(so_far.published))
    assert_delivered(ids, delivered(tmp_path / "out"), repeats=0)
    assert (report.claimed, report.published) == (2_500, 2_500)
    assert (report.retried, report.dead, report.released, report.lost, report.reaped) == (0, 0, 0, 0, 0)
    assert report.slices == len(seen)
    assert seen[-1] == 2_500
    assert len(in_state(outbox, State.PUBLISHED)) == 2_500
    assert outbox.store.stats().open_leases == 0
    assert run_relay(options()).claimed == 0


def test_embedded_store_is_drained(options: Options, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/penstock.db"
    with connect(url) as outbox:
        outbox.store.initialise()
        ids = emit(outbox, 1_000)
        assert run_relay(options(store=url)).published == 1_000
    assert_delivered(ids, delivered(tmp_path / "out"), repeats=0)


def test_relay_publishes_only_selected_queue(outbox: Outbox, options: Options, tmp_path: Path) -> None:
    ids = emit(outbox, 10, queue="mail")
    emit(outbox, 10)
    assert run_relay(options(queue="mail")).published == 10
    assert delivered(tmp_path / "out").keys() == {str(event_id) for event_id in ids}


def test_failing_destination_leaves_retries_and_logs_reason(
    outbox: Outbox, options: Options, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ids = emit(outbox, 100)
    (tmp_path / "out").write_text("in the way")
    with caplog.at_level(logging.WARNING, "penstock"):
        report = run_relay(options(retry=RetryPolicy.constant(0.5)))
    tries = report.retried // 100  # on a slow machine a retry may fall due before the relay has drained
    assert (report.retried, report.published, report.dead) == (100 * tries, 0, 0)
    assert "publishing failed: NotADirectoryError" in caplog.text or "FileExistsError" in caplog.text
    assert {record.attempts for record in in_state(outbox, State.PENDING)} == {tries}

    (tmp_path / "out").unlink()
    assert wait_until(lambda: outbox.store.stats().total("ready") == 100, WAIT_SECONDS)
    assert run_relay(options()).published == 100
    assert_delivered(ids, delivered(tmp_path / "out"), repeats=0)


def test_exhausted_event_is_dead_letter_with_history(
    outbox: Outbox, options: Options, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (first, *_) = emit(outbox, 10)
    (tmp_path / "out").write_text("in the way")
    with caplog.at_level(logging.WARNING, "penstock"):
        report = run_relay(options(retry=RetryPolicy.constant(0.0, max_attempts=3)))
    assert "events_dead queue=outbox error=" in caplog.text
    assert (report.retried, report.dead) == (20, 10)
    assert {record.attempts for record in in_state(outbox, State.DEAD)} == {3}
    assert [entry.what for entry in outbox.store.history(first)] == ["retried", "retried", "died"]


def test_events_of_key_arrive_in_order_under_topic_of_key(
    outbox: Outbox, options: Options, valkey_server: ValkeyServer
) -> None:
    keys = [f"customer-{number}" for number in range(20)]
    outbox.emit_many(
        outbox.event("order.changed", {"step": step}, ordering_key=key) for step in range(30) for key in keys
    )
    run_relay(options(destination=valkey_server.url(3), topic="{queue}.{ordering_key}", batch=100))
    with Valkey(port=valkey_server.port, db=3) as client:
        for key in keys:
            entries = client.xrange(f"outbox.{key}")
            assert [json.loads(fields[b"payload"])["step"] for _, fields in entries] == list(range(30))
        client.flushdb()


def test_highest_priority_is_published_first(outbox: Outbox, options: Options, tmp_path: Path) -> None:
    for priority in (0, -5, 10):
        emit(outbox, 30, priority=priority)
    run_relay(options(parallelism=1, batch=20))
    assert [line["priority"] for line in lines(tmp_path / "out")] == [10] * 30 + [0] * 30 + [-5] * 30


def test_topic_is_rendered_from_template(outbox: Outbox, options: Options, tmp_path: Path) -> None:
    emit(outbox, 5, event_type="order.placed", partition_key="eu")
    run_relay(options(topic="{partition_key}/{event_type}"))
    assert {line["topic"] for line in lines(tmp_path / "out")} == {"eu/order.placed"}


def test_delayed_events_are_not_claimed(outbox: Outbox, options: Options) -> None:
    emit(outbox, 3, delay=3_600)
    assert run_relay(options()).claimed == 0
    assert len(in_state(outbox, State.PENDING)) == 3


def test_stdout_destination_writes_to_driver_stdout(
    outbox: Outbox, options: Options, capfd: pytest.CaptureFixture[str]
) -> None:
    ids = emit(outbox, 50)
    run_relay(options(destination="stdout:"))
    printed = [json.loads(line)["event_id"] for line in capfd.readouterr().out.splitlines()]
    assert_delivered(ids, Counter(printed), repeats=0)


def test_concurrent_tasks_write_whole_lines_to_pipe(outbox: Outbox, options: Options, tmp_path: Path) -> None:
    ids = emit(outbox, 6_000)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []

    def reader() -> None:
        # Open the pipe for writing too, so that reading does not end whenever no task is writing.
        with os.fdopen(os.open(pipe, os.O_RDWR)) as output:
            read.extend(iter(output.readline, "end\n"))

    thread = threading.Thread(target=reader)
    thread.start()
    run_relay(options(destination=f"stdout:?path={pipe}", batch=1_000, parallelism=2))
    pipe.write_text("end\n")
    thread.join(WAIT_SECONDS)
    assert_delivered(ids, Counter(json.loads(line)["event_id"] for line in read), repeats=0)


def test_draining_relay_ends_while_events_keep_arriving(outbox: Outbox, options: Options, tmp_path: Path) -> None:
    ids = emit(outbox, 1_000)
    over = threading.Event()

    def emit_on() -> None:
        with connect(options().store) as other:
            while not over.is_set():
                emit(other, 50)

    thread = threading.Thread(target=emit_on)
    thread.start()
    try:
        started = time.monotonic()
        run_relay(options(batch=100))
        assert time.monotonic() - started < WAIT_SECONDS
    finally:
        over.set()
        thread.join()
    assert_delivered(ids, delivered(tmp_path / "out"), repeats=0)


def test_draining_relay_delivers_low_priority_despite_burst(
    outbox: Outbox, options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = emit(outbox, 5, priority=-10)
    run_lanes = relaying._run_lanes

    def flood_first(*given: Any) -> None:
        emit(outbox, 400, priority=10)
        run_lanes(*given)

    monkeypatch.setattr(relaying, "_run_lanes", flood_first)
    run_relay(options(batch=50, parallelism=1))
    assert_delivered(ids, delivered(tmp_path / "out"), repeats=0)


def test_events_of_expired_lease_are_drained(outbox: Outbox, options: Options, tmp_path: Path) -> None:
    ids = emit(outbox, 100)
    outbox.store.claim("outbox", limit=100, claimant="dead", lease_seconds=0.2)
    assert wait_until(lambda: outbox.store.stats().expired_leases == 1, WAIT_SECONDS)
    assert run_relay(options()).published == 100
    assert_delivered(ids, delivered(tmp_path / "out"), repeats=0)


def test_idle_relay_is_registered_and_wakes_for_new_event(outbox: Outbox, options: Options, tmp_path: Path) -> None:
    def relays() -> list[tuple[str, str]]:
        return [(relay.queue, relay.destination) for relay in outbox.store.stats().relays]

    with running(options(once=False, destination=f"file://{tmp_path}/out?fsync=false")) as reports:
        assert wait_until(lambda: relays() == [("outbox", f"file://{tmp_path}/out?fsync=false")], WAIT_SECONDS)
        for _ in range(5):
            (event_id,) = emit(outbox, 1)
            assert wait_until(lambda: delivered(tmp_path / "out")[str(event_id)] == 1, WAIT_SECONDS)  # noqa: B023
    assert relays() == []
    assert reports[0].published == 5


def test_two_relays_share_queue(outbox: Outbox, options: Options, tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "other"]
    one, other = (options(once=False, destination=f"file://{folder}", parallelism=1, batch=100) for folder in folders)
    ids: list[EventId] = []

    def both_at_work() -> bool:
        ids.extend(emit(outbox, 500))
        return all(folder.is_dir() and delivered(folder) for folder in folders)

    with running(one), running(other):
        assert wait_until(both_at_work, WAIT_SECONDS)
        assert wait_until(lambda: outbox.store.stats().total("published") == len(ids), WAIT_SECONDS)
    assert_delivered(ids, delivered(folders[0]) + delivered(folders[1]), repeats=0)


def test_stopped_relay_releases_unpublished_events(
    outbox: Outbox, options: Options, tmp_path: Path, spark: "SparkSession"
) -> None:
    emit(outbox, 20_000)
    with running(options(once=False, batch=5_000)) as reports:
        assert wait_until(lambda: bool((tmp_path / "out").is_dir() and delivered(tmp_path / "out")), WAIT_SECONDS)
    published = {str(record.event_id) for record in in_state(outbox, State.PUBLISHED)}
    assert delivered(tmp_path / "out") == Counter(published)
    assert outbox.store.stats().total("claimed") == 0
    assert {(record.attempts, record.deliveries) for record in in_state(outbox, State.PENDING)} <= {(0, 0)}
    assert reports[0].published == len(published)
    assert not spark.streams.active


def test_lost_commit_or_checkpoint_causes_no_loss_or_repeat(outbox: Outbox, options: Options, tmp_path: Path) -> None:
    checkpoint, ids = tmp_path / "checkpoint", list[EventId]()

    def commits() -> list[Path]:
        return sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))

    def relay_for_two_commits() -> None:
        before = [path.name for path in commits()]
        with running(options(once=False, checkpoint=str(checkpoint), slice_seconds=0.2)):
            ids.extend(emit(outbox, 500))
            assert wait_until(lambda: len([path for path in commits() if path.name not in before]) > 1, WAIT_SECONDS)
            assert wait_until(lambda: outbox.store.stats().total("published") == len(ids), WAIT_SECONDS)

    relay_for_two_commits()
    commits()[-1].unlink()
    relay_for_two_commits()
    shutil.rmtree(checkpoint)
    relay_for_two_commits()
    assert_delivered(ids, delivered(tmp_path / "out"), repeats=0)


def test_import_failure_in_workers_is_one_line_error(
    outbox: Outbox, options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "known_to_the_driver_only.py").write_text("def deliver(spec, current): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    import known_to_the_driver_only  # type: ignore[import-not-found]

    monkeypatch.setattr(relaying, "deliver", known_to_the_driver_only.deliver)
    monkeypatch.setattr(relaying, "FAILED_SLICES", 3)
    missing = "ModuleNotFoundError: No module named 'known_to_the_driver_only'"
    with caplog.at_level(logging.WARNING, "penstock"), pytest.raises(PipelineError) as raised:
        run_relay(options())
    assert str(raised.value) == f"slice failed: {missing}"
    assert [f'slice_failed retry_in={seconds} error="{missing}"' for seconds in (0.5, 1.0)] == [
        record.getMessage() for record in caplog.records if record.name == "penstock"
    ]
    del sys.modules["known_to_the_driver_only"]
