"""`format("penstock-valkey")` in Spark queries: failed batches, lost checkpoints, and unavailable servers."""

import socket
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from valkey_env import GROUP, SECONDS, ValkeyGround

from penstock.pipeline.spark.errors import root_cause
from penstock.pipeline.streams.sources.valkey.datasource import register
from penstock.pipeline.streams.sources.valkey.entries import COLUMNS
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark

Handle = Callable[["DataFrame", int], Any]


class Queries:
    """Streaming queries over the server's streams. `stop` stops all of them."""

    def __init__(self, spark: "SparkSession", valkey: ValkeyGround, folder: Path) -> None:
        self.valkey = valkey
        self.seen: list[Row] = []
        self._spark = spark
        self._folder = folder
        self._started: list[StreamingQuery] = []

    def load(self, **options: object) -> "DataFrame":
        given = {"url": self.valkey.url, "stream": "orders", "group": GROUP, **options}
        return self._spark.readStream.format("penstock-valkey").options(**given).load()

    def start(self, handle: Handle, checkpoint: str = "checkpoint", **options: object) -> "StreamingQuery":
        writer = self.load(**options).writeStream.foreachBatch(handle)
        query = writer.option("checkpointLocation", str(self._folder / checkpoint)).start()
        self._started.append(query)
        return query

    def run(self, handle: Handle, checkpoint: str = "checkpoint", **options: object) -> None:
        """Run batches until no entries are available."""
        query = self.start(handle, checkpoint, **options)
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    def work(self, batch: "DataFrame", _number: int) -> None:
        """Record the rows of the batch, and acknowledge them."""
        rows = batch.collect()
        self.seen += rows
        self.valkey.acknowledge([row.event_id for row in rows])

    def seen_ids(self) -> list[str]:
        return [row.event_id for row in self.seen]

    def stop(self) -> None:
        for query in self._started:
            query.stop()


@pytest.fixture
def queries(spark: "SparkSession", valkey: ValkeyGround, tmp_path: Path) -> Iterator[Queries]:
    register(spark)
    made = Queries(spark, valkey, tmp_path)
    yield made
    made.stop()


def die(batch: "DataFrame", _number: int) -> None:
    batch.collect()
    raise LookupError("died here")


def test_query_returns_entries_with_all_columns(queries: Queries) -> None:
    added = queries.valkey.add(3, event_type="order.placed", partition_key="ada", tenant="shop")
    assert queries.load().columns == list(COLUMNS)
    queries.run(queries.work)
    assert queries.seen_ids() == added
    row = queries.seen[0]
    assert (row.event_type, row.payload, row.headers) == ("order.placed", bytearray(b"0"), {"tenant": "shop"})
    assert (row.partition_key, row.attempts) == ("ada", 0)
    assert queries.valkey.pending() == 0


def test_failed_batch_is_repeated_before_new_entries(queries: Queries) -> None:
    added = queries.valkey.add(3)
    with pytest.raises(Exception, match="died here"):
        queries.run(die)
    added += queries.valkey.add(2)
    queries.run(queries.work)
    assert queries.seen_ids() == added
    assert [row.attempts for row in queries.seen] == [1, 1, 1, 0, 0]


def test_query_without_checkpoint_loses_no_entry(queries: Queries) -> None:
    added = queries.valkey.add(3)
    with pytest.raises(Exception, match="died here"):
        queries.run(die, "lost")
    queries.start(queries.work, "another", min_idle_time_ms=300)
    assert wait_until(lambda: len(queries.seen) == 3, SECONDS)
    assert queries.seen_ids() == added
    assert queries.valkey.pending() == 0


def test_batch_evaluated_twice_has_same_entries(queries: Queries) -> None:
    queries.valkey.add(5)
    counts = []

    def twice(batch: "DataFrame", number: int) -> None:
        counts.append(batch.count())
        queries.work(batch, number)

    queries.run(twice)
    assert counts == [5]
    assert sorted(queries.seen_ids()) == sorted(set(queries.seen_ids()))
    assert queries.valkey.pending() == 0


def test_patient_query_survives_server_restart(queries: Queries) -> None:
    valkey = queries.valkey
    first = valkey.add(3)
    query = queries.start(queries.work, patient=True)
    assert wait_until(lambda: len(queries.seen) == 3 and valkey.pending() == 0, SECONDS)
    valkey.server.kill()
    await_connection(valkey.server.port)
    valkey.server.start()
    second = valkey.add(3)
    assert wait_until(lambda: len(queries.seen) == 6, SECONDS), query.exception()
    assert queries.seen_ids() == first + second


def await_connection(port: int) -> None:
    """Wait until a client tries to connect to the port of the stopped server."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.settimeout(SECONDS)
        listener.accept()[0].close()


def test_two_queries_of_group_share_entries(queries: Queries) -> None:
    queries.start(queries.work, "one", limit=20)
    queries.start(queries.work, "other", limit=20, partitions=2)
    added = queries.valkey.add(500)
    assert wait_until(lambda: len(queries.seen) >= 500, SECONDS)
    assert Counter(queries.seen_ids()) == dict.fromkeys(added, 1)
    assert wait_until(lambda: queries.valkey.pending() == 0, SECONDS)


def test_invalid_option_is_refused_at_load(queries: Queries) -> None:
    with pytest.raises(Exception, match="unknown option 'topic' for format penstock-valkey") as refused:
        queries.load(topic="orders")
    assert root_cause(str(refused.value)).startswith(
        "penstock.model.errors.UsageError: unknown option 'topic' for format penstock-valkey"
    )


def test_query_error_has_one_line_root_cause(queries: Queries) -> None:
    queries.valkey.client.set("orders", "text")
    with pytest.raises(Exception, match="is not a stream") as refused:
        queries.run(queries.work)
    assert root_cause(str(refused.value)).startswith("penstock.model.errors.UsageError: key 'orders' at valkey://")
