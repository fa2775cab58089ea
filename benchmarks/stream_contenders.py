"""Contenders of the streams benchmark. Each counts and sums the amounts of each key, from the same input.

A contender is a function of a trial. It runs until the input is processed and returns the totals and the size of its
state. It writes Spark's checkpoint to the trial's folder, because the commits in the checkpoint give the times.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.ground import Ground
from benchmarks.stream_input import Input, Totals, add_up, read
from penstock import Streams, connect
from penstock.pipeline.spark.session import settings
from penstock.runtime.store_cache import close_stores
from penstock.store.registry import open_store
from penstock.streams.arrow_json import arrow
from penstock.streams.context import Context, KeyState
from penstock.streams.engine.batch_handlers import BatchContext
from penstock.streams.engine.work import is_users
from penstock.streams.event import StreamEvent
from penstock.streams.sources import Frame
from penstock.streams.state.registry import open_state

if TYPE_CHECKING:
    from pyarrow import Table
    from pyspark.sql import SparkSession

STREAM = "total"
QUEUE = "orders"
CHUNK = 10_000
TRIGGER = "100 milliseconds"
SIZE = """
SELECT sum(pg_total_relation_size(relname::regclass)) FROM pg_stat_user_tables WHERE relname LIKE 'penstock_stream%'
"""

# Fastest settings of Spark's own state: RocksDB that writes only changes and counts no rows. `transform_with_state`
# also sets as many partitions as there are tasks.
SPARK_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
}


@dataclass(frozen=True, slots=True)
class Trial:
    """A run of a contender: its input and its folder."""

    spark: "SparkSession"
    ground: Ground
    given: Input
    folder: Path
    tasks: int

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint" / STREAM


class Outcome(NamedTuple):
    """Totals and size of the state after a run."""

    totals: Totals
    size_bytes: int


Contender = Callable[[Trial], Outcome]


def penstock(kind: str, trial: Trial, *, batches: bool = False) -> Outcome:
    """Run a Penstock stream with its state in a folder."""
    state = f"{kind}:///{trial.folder / 'state'}"
    _run(trial, Frame(trial.given.open), embedded_store(trial.folder), state, batches=batches)
    return Outcome(totals_in(state), folder_size(trial.folder / "state"))


def penstock_postgres(trial: Trial) -> Outcome:
    """Run a Penstock stream with its state in PostgreSQL."""
    import psycopg

    with trial.ground.database() as state:
        _run(trial, Frame(trial.given.open), embedded_store(trial.folder), state)
        with psycopg.connect(state) as connection:
            row = connection.execute(SIZE).fetchone()
        return Outcome(totals_in(state), int(row[0]) if row else 0)


def penstock_queue(trial: Trial) -> Outcome:
    """Run a stream over the same events from a queue in PostgreSQL, settled there, with its state in SQLite."""
    state = f"sqlite:///{trial.folder / 'state'}"
    with trial.ground.outbox() as store:
        with connect(store) as outbox:
            events = [
                outbox.event("order.placed", payload, queue=QUEUE, partition_key=key)
                for key, payload in read(trial.given)
            ]
            for start in range(0, len(events), CHUNK):
                outbox.emit_many(events[start : start + CHUNK])
        _run(trial, QUEUE, store, state)
        close_stores()
    return Outcome(totals_in(state), folder_size(trial.folder / "state"))


def transform_with_state(trial: Trial) -> Outcome:
    """Run Spark's `transformWithState` with rows, the faster of its two Python interfaces."""
    from pyspark.sql.functions import expr

    from benchmarks.stream_processor import TotalsProcessor

    with settings(trial.spark, SPARK_SETTINGS | {"spark.sql.shuffle.partitions": str(trial.tasks)}):
        keyed = trial.given.open(trial.spark).select("partition_key", "payload").groupBy("partition_key")
        totals = keyed.transformWithState(TotalsProcessor(), "partition_key STRING", "Update", "None")
        writer = totals.writeStream.format("noop").outputMode("update").trigger(processingTime=TRIGGER)
        query = writer.option("checkpointLocation", str(trial.checkpoint)).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        states = trial.spark.read.format("statestore").option("stateVarName", "totals").load(str(trial.checkpoint))
        each = states.select("key.partition_key", "value.count", "value.sum")
        mixed = expr("CAST(sum(CAST(crc32(CAST(partition_key AS BINARY)) AS DECIMAL(38)) * sum) AS DECIMAL(38))")
        row = each.agg(expr("count(*)"), expr("sum(count)"), expr("sum(sum)"), mixed).collect()[0]
        return Outcome(Totals(*map(int, row)), folder_size(trial.checkpoint / "state"))


PENSTOCK: dict[str, Contender] = {
    "SQLite": partial(penstock, "sqlite"),
    "RocksDB": partial(penstock, "rocksdb"),
    "PostgreSQL": penstock_postgres,
}
"""Contenders by state store, with a handler that is called for each event."""

BATCHES: dict[str, Contender] = {
    "SQLite, batches": partial(penstock, "sqlite", batches=True),
    "RocksDB, batches": partial(penstock, "rocksdb", batches=True),
}
"""Contenders by state store, with a handler for many events at once, over Arrow."""


def application(source: str | Frame, store: str, state: str, parts: int, *, batches: bool = False) -> Streams:
    """Return the application with the measured stream."""
    app = Streams(store, state=state)
    if batches:
        app.stream(source, name=STREAM, parts=parts, batch="arrow", fields={"amount": "int64"})(total_of_all)
    else:
        app.stream(source, name=STREAM, parts=parts)(total)
    return app


def total_of_all(events: "Table", ctx: BatchContext) -> None:
    """Count and sum the amounts by key, for many events at once."""
    pa, pc = arrow()

    sums = events.group_by("key").aggregate([("amount", "count"), ("amount", "sum")])
    before = ctx.states.table(sums["key"], {"count": "int64", "sum": "int64"})
    counts = pc.add(pc.fill_null(before["count"], 0), sums["amount_count"])
    totals = pc.add(pc.fill_null(before["sum"], 0), sums["amount_sum"])
    ctx.states.put(pa.table({"key": sums["key"], "count": counts, "sum": totals}))


def total(event: StreamEvent, ctx: Context) -> None:
    """Count and sum the amounts by key."""
    state = ctx.state
    state["count"] = state.get("count", 0) + 1
    state["sum"] = state.get("sum", 0) + event.json()["amount"]


def totals_in(state: str) -> Totals:
    """Return the totals of a stream's state."""
    opened = open_state(state)
    try:
        read_states = ((key, KeyState(saved)) for key, saved in opened.read(STREAM) if is_users(key))
        return add_up((key, one["count"], one["sum"]) for key, one in read_states)
    finally:
        opened.close()


def folder_size(folder: Path) -> int:
    """Return the size of all files in a folder, in bytes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def embedded_store(folder: Path) -> str:
    """Create a store for failed events. In this benchmark no event fails."""
    url = f"sqlite:///{folder / 'events.db'}"
    store = open_store(url)
    store.initialise()
    store.close()
    return url


def _run(trial: Trial, source: str | Frame, store: str, state: str, *, batches: bool = False) -> None:
    app = application(source, store, state, trial.tasks, batches=batches)
    app.run(spark=trial.spark, once=True, checkpoint=str(trial.checkpoint.parent))


def decode(payload: bytes) -> int:
    """Return the amount in a payload, decoded as in a typical Spark program."""
    amount: int = json.loads(payload)["amount"]
    return amount
