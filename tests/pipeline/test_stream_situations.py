"""Situations in which a stream on Spark could lose, duplicate or delay events."""

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from stream_processes import EVENTS, check, emit_orders, start, unsettled

from penstock import Outbox, Streams, connect
from penstock.model.errors import PipelineError
from penstock.model.lease import Claim
from penstock.model.lifecycle import State
from penstock.model.outcome import PUBLISHED
from penstock.model.records import Record
from penstock.model.selection import Selection
from penstock.pipeline.streams.driver import run_streams
from penstock.pipeline.streams.sources.base import COLUMNS
from penstock.pipeline.streams.task import assign, process
from penstock.pipeline.streams.task_spec import StreamTaskSpec
from penstock.runtime.store_cache import close_stores
from penstock.streams.context import Context, KeyState
from penstock.streams.event import StreamEvent
from penstock.streams.sources import Frame, Source
from penstock.streams.state.api import Superseded
from penstock.streams.state.registry import open_state
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SECONDS = 300.0
LEASE_SECONDS = 1.0
KILLED = "the process is killed"


@pytest.fixture
def state(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'state'}"


@pytest.fixture
def outbox(postgres_url: str) -> Iterator[Outbox]:
    with connect(postgres_url) as made:
        made.store.initialise()
        yield made
    close_stores()


def adding(url: str, state: str, source: str | Source = "orders", **options: Any) -> Streams:
    """Return a stream that sums numbers. The number 13 kills its process, and negative numbers fail once."""
    app = Streams(url, state=state)

    @app.stream(source, key=lambda event: "a", name="total", parts=2, retry_seconds=0.01, **options)
    def total(event: StreamEvent, ctx: Context) -> None:
        number = event.json()["number"]
        if number == 13:
            os._exit(1)
        if number < 0 and event.attempts == 0:
            raise ConnectionError("not yet")
        ctx.state["sum"] = ctx.state.get("sum", 0) + number
        ctx.emit("added", {"number": number}, queue="added")

    return app


def emit(outbox: Outbox, *numbers: int) -> None:
    outbox.emit_many(outbox.event("number", {"number": number}, queue="orders") for number in numbers)


def total(state: str) -> int:
    found = dict(open_state(state).read("total", ["a"]))
    return int(KeyState(found["a"])["sum"]) if found else 0


def found(outbox: Outbox, queue: str, state: State | None = None) -> list[Record]:
    states = None if state is None else frozenset({state})
    return list(outbox.store.find(Selection(queue=queue, states=states), limit=1_000).records)


def added(outbox: Outbox) -> list[int]:
    return sorted(json.loads(record.payload)["number"] for record in found(outbox, "added"))


def folder_of(tmp_path: Path, *numbers: int) -> Callable[["SparkSession"], Any]:
    """Write one file per number; return a function that opens the folder as a streaming DataFrame."""
    folder = str(tmp_path / "numbers")
    os.makedirs(folder, exist_ok=True)
    for number in numbers:
        (tmp_path / "numbers" / f"{number}.json").write_text(json.dumps({"event_id": f"n{number}", "number": number}))
    return lambda spark: spark.readStream.schema("event_id STRING, number INT").json(folder)


def drain(spark: "SparkSession", app: Streams, outbox: Outbox, **options: Any) -> None:
    """Run repeatedly until all emitted events are settled: failed events are ready again only after their delay."""

    def done() -> bool:
        run_streams(app, spark=spark, once=True, **options)
        return not unsettled(outbox)

    assert wait_until(done, SECONDS)


@pytest.mark.crash
@pytest.mark.slow
def test_core_count_change_keeps_exact_sums(outbox: Outbox, postgres_url: str, state: str) -> None:
    emit_orders(outbox)
    for cores, left in ((1, EVENTS - 1), (3, 0)):
        driver = start(postgres_url, state, cores)
        try:
            assert wait_until(lambda left=left: unsettled(outbox) <= left, SECONDS)
        finally:
            driver.kill()
            driver.wait()
    check(outbox, state)


def test_superseded_driver_stops_with_reason(
    spark: "SparkSession", outbox: Outbox, postgres_url: str, state: str
) -> None:
    app = adding(postgres_url, state, lease_seconds=5.0)
    errors: list[BaseException] = []

    def drive() -> None:
        try:
            run_streams(app, spark=spark)
        except BaseException as error:
            errors.append(error)

    driver = threading.Thread(target=drive)
    driver.start()
    emit(outbox, 1)
    assert wait_until(lambda: added(outbox) == [1], SECONDS)
    open_state(state).start("total", 2)
    emit(outbox, 2)
    driver.join(SECONDS)
    assert not driver.is_alive()
    (error,) = errors
    assert isinstance(error, Superseded)
    assert "another driver has started stream 'total'" in str(error)
    assert total(state) == 1
    drain(spark, app, outbox)
    assert (total(state), added(outbox)) == (3, [1, 2])


def test_expired_lease_returns_events_to_queue(
    spark: "SparkSession", outbox: Outbox, postgres_url: str, state: str
) -> None:
    """The new driver reaps the lease itself, because no other process runs."""
    emit(outbox, 1, 2, 3)
    outbox.store.claim("orders", limit=2, claimant="dead", lease_seconds=0.2)
    app, stop = adding(postgres_url, state, lease_seconds=1.0), threading.Event()
    driver = threading.Thread(target=run_streams, args=(app,), kwargs={"spark": spark, "stop": stop})
    driver.start()
    came = wait_until(lambda: added(outbox) == [1, 2, 3], SECONDS)
    stop.set()
    driver.join()
    assert came
    assert total(state) == 6


def test_lost_checkpoint_does_not_repeat_events(
    spark: "SparkSession", outbox: Outbox, postgres_url: str, state: str, tmp_path: Path
) -> None:
    """Without a checkpoint a DataFrame is read from its beginning; the inbox ignores the applied events."""
    app = adding(postgres_url, state, Frame(folder_of(tmp_path, 1, 2, -3)))
    for numbers in ((), (4, 5), (6,)):
        folder_of(tmp_path, *numbers)
        run_streams(app, spark=spark, once=True, checkpoint=str(tmp_path / "checkpoint"))
        shutil.rmtree(tmp_path / "checkpoint")
    drain(spark, app, outbox)
    assert (total(state), added(outbox)) == (15, [-3, 1, 2, 4, 5, 6])


def test_incomplete_checkpoint_is_refused(
    spark: "SparkSession", outbox: Outbox, postgres_url: str, state: str, tmp_path: Path
) -> None:
    (tmp_path / "checkpoint" / "total" / "offsets").mkdir(parents=True)
    (tmp_path / "checkpoint" / "total" / "offsets" / "2").write_text("v1")
    emit(outbox, 1)
    with pytest.raises(PipelineError, match=r"cannot start stream 'total': .*metadata"):
        run_streams(adding(postgres_url, state), spark=spark, once=True, checkpoint=str(tmp_path / "checkpoint"))
    drain(spark, adding(postgres_url, state), outbox)
    assert (total(state), added(outbox)) == (1, [1])


@pytest.mark.crash
def test_poison_event_becomes_dead_letter_alone(
    spark: "SparkSession", outbox: Outbox, postgres_url: str, state: str
) -> None:
    """The other events of the batch are settled without waiting for the expiry of their lease."""
    emit(outbox, *range(8, 20), -1)
    run_streams(adding(postgres_url, state), spark=spark, once=True)
    assert len(found(outbox, "orders", State.PUBLISHED)) >= 11
    drain(spark, adding(postgres_url, state), outbox)
    applied = [number for number in [-1, *range(8, 20)] if number != 13]
    assert (total(state), added(outbox)) == (sum(applied), applied)
    (dead,) = found(outbox, "orders", State.DEAD)
    assert json.loads(dead.payload) == {"number": 13}
    assert "died" in (dead.last_error or "")
    emit(outbox, 100)
    drain(spark, adding(postgres_url, state), outbox)
    assert total(state) == sum(applied) + 100


@pytest.mark.crash
def test_poison_event_of_dataframe_becomes_dead_letter_alone(
    spark: "SparkSession", outbox: Outbox, postgres_url: str, state: str, tmp_path: Path
) -> None:
    app = adding(postgres_url, state, Frame(folder_of(tmp_path, *range(10, 16))))
    run_streams(app, spark=spark, once=True, checkpoint=str(tmp_path / "checkpoint"))
    folder_of(tmp_path, 16)
    run_streams(app, spark=spark, once=True, checkpoint=str(tmp_path / "checkpoint"))
    assert (total(state), added(outbox)) == (10 + 11 + 12 + 14 + 15 + 16, [10, 11, 12, 14, 15, 16])
    (dead,) = found(outbox, "streams/total", State.DEAD)
    assert json.loads(dead.payload) == {"number": 13}
    assert "died" in (dead.last_error or "")
    assert found(outbox, "streams/total") == [dead]


def test_leases_are_extended_during_slow_handler(outbox: Outbox, postgres_url: str, state: str) -> None:
    """The handler runs three times as long as the lease, and a reap finds nothing. The task is run without Spark."""
    reaped: list[int] = []
    app = Streams(postgres_url, state=state)

    @app.stream("orders", key=lambda event: "a", name="total", parts=1, lease_seconds=LEASE_SECONDS)
    def slowly(event: StreamEvent, ctx: Context) -> None:
        until = time.monotonic() + 3 * LEASE_SECONDS
        wait_until(lambda: time.monotonic() > until, 4 * LEASE_SECONDS)
        reaped.append(outbox.store.reap())
        ctx.state["sum"] = event.json()["number"]

    emit(outbox, 7)
    started = open_state(state).start("total", 1)
    spec = StreamTaskSpec(app.streams["total"], started, postgres_url, state)
    claim = outbox.store.claim("orders", limit=1, claimant="task", lease_seconds=LEASE_SECONDS)
    (result,) = process(spec)(assign(spec)(iter([claimed(claim)])))
    assert result.column("outcome").to_pylist() == ["PUBLISHED"]
    assert reaped == [0]
    assert outbox.store.settle(claim.lease, {claim.events[0].seq: PUBLISHED}).published
    assert total(state) == 7


def claimed(claim: Claim) -> Any:
    """Return a claim as the record batch that a task receives."""
    import pyarrow as pa

    kinds = {"BIGINT": pa.int64(), "INT": pa.int32(), "STRING": pa.string(), "BINARY": pa.binary()}
    others = {"TIMESTAMP": pa.timestamp("us", tz="UTC"), "MAP<STRING, STRING>": pa.map_(pa.string(), pa.string())}
    schema = pa.schema([(name, (kinds | others)[kind]) for name, kind in COLUMNS.items()])
    lease = {"lease": str(claim.lease.lease_id), "token": str(claim.lease.token)}
    rows = [{**event._asdict(), **lease, "event_id": str(event.event_id), "headers": []} for event in claim.events]
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def flaky_source(folder: Path, message: str) -> type:
    """Return a source of three events. Its first read raises an error or, for KILLED, kills its process."""
    from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

    class Reader(SimpleDataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:  # noqa: N802
            return {"offset": 0}

        def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[str, str, str]], dict[str, int]]:
            if not (folder / "failed").exists():
                (folder / "failed").touch()
                if message == KILLED:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise RuntimeError(message)
            numbers = range(start["offset"], 3)
            return iter([(str(n), "a", '{"amount": 1}') for n in numbers]), {"offset": 3}

        def readBetweenOffsets(self, start: Any, end: Any) -> Iterator[Any]:  # noqa: N802
            return iter([(str(n), "a", '{"amount": 1}') for n in range(start["offset"], end["offset"])])

    class Flaky(DataSource):
        @classmethod
        def name(cls) -> str:
            return "flaky"

        def schema(self) -> str:
            return "event_id STRING, partition_key STRING, payload STRING"

        def simpleStreamReader(self, schema: object) -> Reader:  # noqa: N802
            return Reader()

    return Flaky


@pytest.mark.parametrize("message", ["Python worker failed to connect back.", KILLED, "something else"])
def test_query_is_restarted_after_transient_failure(spark: "SparkSession", tmp_path: Path, message: str) -> None:
    spark.dataSource.register(flaky_source(tmp_path, message))
    with connect(f"sqlite:///{tmp_path / 'events.db'}") as outbox:
        outbox.store.initialise()
    app = Streams(f"sqlite:///{tmp_path / 'events.db'}", state=f"sqlite:///{tmp_path / 'state'}")

    @app.stream(Frame(lambda session: session.readStream.format("flaky").load()), name="flaky", parts=2)
    def count(event: StreamEvent, ctx: Context) -> None:
        ctx.state["sum"] = ctx.state.get("sum", 0) + event.json()["amount"]

    try:
        if message == "something else":
            with pytest.raises(PipelineError, match="something else"):
                run_streams(app, spark=spark, once=True)
        else:
            assert run_streams(app, spark=spark, once=True)["flaky"].applied == 3
    finally:
        close_stores()
