"""A Spark application, run by `test_cluster.py`, that reads, claims, settles and writes events on a cluster."""

import json
import sys
from typing import TYPE_CHECKING

from penstock.pipeline import open_session, register, settle
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def main(master: str, store: str, folder: str) -> None:
    spark = open_session(master, "formats")
    register(spark)
    events = spark.read.format("penstock").option("store", store)
    read = events.load().count()
    settled = 0

    def take(batch: "DataFrame", _: int) -> None:
        nonlocal settled
        settled += len(settle(batch, store).published)

    claims = spark.readStream.format("penstock").option("store", store).option("limit", 100).load()
    query = claims.writeStream.foreachBatch(take).option("checkpointLocation", f"{folder}/checkpoint").start()
    wait_until(lambda: settled >= read or not query.isActive, 100)
    query.stop()
    if (failure := query.exception()) is not None:
        raise failure
    written = write(spark, store, folder)
    left = events.option("state", "PENDING,CLAIMED").load().count()
    print(json.dumps({"read": read, "settled": settled, "written": written, "left": left}))
    spark.stop()


def write(spark: "SparkSession", store: str, folder: str) -> int:
    """Write a DataFrame and a stream as events; return the number of these events in the store."""
    rows = spark.range(60).selectExpr("'made' AS event_type", "CAST(id AS STRING) AS payload")
    rows.write.format("penstock").option("store", store).mode("append").save()
    rows.write.json(f"{folder}/rows")
    stream = spark.readStream.schema(rows.schema).json(f"{folder}/rows")
    sink = stream.writeStream.format("penstock").option("store", store).trigger(availableNow=True)
    query = sink.option("checkpointLocation", f"{folder}/sink").start()
    query.awaitTermination()
    made = spark.read.format("penstock").option("store", store).option("event_type", "made").load()
    return made.count()


if __name__ == "__main__":
    main(*sys.argv[1:])
