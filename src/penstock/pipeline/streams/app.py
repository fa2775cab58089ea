"""`penstock.Streams`: the streams of an application, and the method that runs them."""

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock import pipeline
from penstock.streams.app import StreamSet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.streams.run import Counts


class Streams(StreamSet):
    """Streams of an application, with one event store and one state store.

        app = penstock.Streams("postgresql://…")

        @app.stream("orders", key=lambda event: event.partition_key)
        def total(event, ctx):
            ctx.state["sum"] = ctx.state.get("sum", 0) + event.json()["amount"]
            ctx.emit("totals.updated", {"sum": ctx.state["sum"]})

        app.run()

    Streams can be defined without Spark; `run` needs Spark.
    """

    def run(
        self,
        *,
        spark: "SparkSession | None" = None,
        master: str | None = None,
        names: Sequence[str] | None = None,
        once: bool = False,
        checkpoint: str | None = None,
        stop: threading.Event | None = None,
        jars: str | None = None,
    ) -> "Mapping[str, Counts]":
        """Run all streams, or the named ones, until `stop` is set; with `once`, until nothing is ready.

        Without `spark`, a session is opened on `master`, by default on all cores of this machine. If a stream
        reads Kafka, `jars` may name a folder with the jars of Spark's Kafka connector.
        """
        return pipeline.run_streams(
            self, spark=spark, master=master, names=names, once=once, checkpoint=checkpoint, stop=stop, jars=jars
        )
