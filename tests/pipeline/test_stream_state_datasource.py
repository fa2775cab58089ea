"""State as a DataFrame: the keys of all state partitions, also while the stream runs."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from step_env import Ground

from penstock import Streams
from penstock.model.errors import UsageError
from penstock.pipeline.formats import register
from penstock.pipeline.streams.driver import run_streams
from penstock.pipeline.streams.state_datasource import StateDataSource, StateOptions, StateReader, read
from penstock.runtime.store_cache import close_stores
from penstock.streams.app import part_of
from penstock.streams.context import Context
from penstock.streams.event import StreamEvent
from penstock.streams.state.api import Saved
from penstock.streams.state.registry import open_state
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTS = 3
KEYS = [f"customer {number}" for number in range(20)] + ["水"]
LATER = 4_000_000_000.5
SECONDS = 300.0


@pytest.fixture(params=["sqlite", "rocksdb", "postgresql"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Write a stream's state: numbered keys, a key that expires later, an expired key, and an internal key."""
    url: str = (
        request.getfixturevalue("postgres_url")
        if request.param == "postgresql"
        else f"{request.param}:///{tmp_path / 'state'}"
    )
    keep(url, {key: Saved(b'{"number":%d}' % number) for number, key in enumerate(KEYS)})
    keep(url, {"later": Saved(b"{}", LATER), "gone": Saved(b"{}", time.time() - 1), "\x01failed/1/0": Saved(b"2")})
    return url


def keep(url: str, kept: dict[str, Saved]) -> None:
    with closing(open_state(url)) as store:
        started = store.start("total", PARTS)
        for number in range(PARTS):
            part = store.open_part(started, number)
            with part.transaction() as transaction:
                transaction.save({key: saved for key, saved in kept.items() if part_of(key, PARTS) == number})
            part.close()


# Without Spark


def test_only_state_partitions_of_keys_are_read(state: str) -> None:
    everything = StateReader(StateOptions("total", state))
    assert [partition.number for partition in everything.partitions()] == [0, 1, 2]
    reader = StateReader(StateOptions("total", state, frozenset({KEYS[7]})))
    (partition,) = reader.partitions()
    assert partition.number == part_of(KEYS[7], PARTS)
    (batch,) = reader.read(partition)
    assert batch.to_pylist() == [
        {"key": KEYS[7], "part": partition.number, "state": '{"number":7}', "expires_at": None}
    ]
    (nobody,) = StateReader(StateOptions("total", state, frozenset())).partitions()
    assert list(StateReader(StateOptions("total", state, frozenset())).read(nobody)) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "missing option 'stream'"),
        (
            {"stream": "total", "colour": "red"},
            "unknown option 'colour' for format penstock-state; supported: stream, state, keys",
        ),
        ({"stream": "total", "keys": "ada"}, "invalid keys 'ada'; expected a JSON array"),
        ({"stream": "total", "keys": "[1]"}, "expected a JSON array of strings"),
    ],
)
def test_invalid_options_are_usage_errors(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        StateDataSource(options)


# With Spark


def by_key(frame: "DataFrame") -> dict[str, tuple[Any, ...]]:
    return {row.key: (row.part, row.state, row.expires_at) for row in frame.collect()}


@pytest.mark.spark
def test_state_can_be_read_as_dataframe(spark: "SparkSession", state: str) -> None:
    frame = read(spark, "total", state=state)
    assert frame.schema.simpleString() == "struct<key:string,part:int,state:string,expires_at:timestamp>"
    assert frame.rdd.getNumPartitions() == PARTS
    found = by_key(frame)
    assert {key: row[:2] for key, row in found.items() if key != "later"} == {
        key: (part_of(key, PARTS), f'{{"number":{number}}}') for number, key in enumerate(KEYS)
    }
    moment = found["later"][2]
    assert moment.astimezone(UTC) == datetime.fromtimestamp(LATER, UTC)
    assert by_key(frame.where("key = '水'")) == {"水": found["水"]}
    assert frame.where("get_json_object(state, '$.number') > 17").count() == 3
    assert frame.count() == len(found), "what one query asks for, the next one doesn't"
    chosen = read(spark, "total", state=state, keys=["customer 3", "水", "gone", "nobody"])
    assert by_key(chosen) == {key: found[key] for key in ("customer 3", "水")}


@pytest.mark.spark
def test_registered_format_reads_state(spark: "SparkSession", state: str) -> None:
    register(spark)
    frame = spark.read.format("penstock-state").option("stream", "total").option("state", state).load()
    assert frame.count() == len(KEYS) + 1
    with pytest.raises(UsageError, match=r"stream 'totl' does not exist in .*; existing streams: total"):
        read(spark, "totl", state=state)
    missing = spark.read.format("penstock-state").option("stream", "totl").option("state", state)
    with pytest.raises(Exception, match="stream 'totl' does not exist"):
        missing.load().count()


@contextmanager
def running(app: Streams, spark: "SparkSession") -> Iterator["Future[Any]"]:
    """Run the application's streams in a separate thread."""
    stop = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(run_streams, app, spark=spark, stop=stop)
        try:
            yield done
        finally:
            stop.set()
    close_stores()


@pytest.mark.spark
@pytest.mark.parametrize("scheme", ["sqlite", "rocksdb", "postgresql"])
def test_state_can_be_read_while_stream_runs(
    spark: "SparkSession", ground: Ground, tmp_path: Path, scheme: str
) -> None:
    app = Streams(ground.url, state=ground.url if scheme == "postgresql" else f"{scheme}:///{tmp_path / 'state'}")

    @app.stream("orders", parts=PARTS)
    def total(event: StreamEvent, ctx: Context) -> None:
        ctx.state["sum"] = ctx.state.get("sum", 0) + event.json()["amount"]

    with running(app, spark) as done, closing(open_state(app.state)) as store:
        assert wait_until(lambda: done.done() or bool(store.streams()), SECONDS)
        frame = read(spark, "total", state=app.state)
        for amount, due in [(1, ['{"sum":1}']), (10, ['{"sum":11}'])]:
            ground.outbox.emit("order", {"amount": amount}, queue="orders", partition_key="ada")
            found: list[str] = []
            while found != due and not done.done():
                found = [row.state for row in frame.collect()]
            assert found == due, done.exception()
