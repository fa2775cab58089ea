"""Events as DataFrames: a streaming query that claims orders, sums them by customer, and settles them."""

import sys
import tempfile

from pyspark.sql import DataFrame, functions

import penstock
from penstock.pipeline import open_session, register, settle


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/shop.db"
        with penstock.connect(store) as outbox:
            outbox.store.initialise()
            orders = [outbox.event("order.placed", {"customer": f"c{n % 3}", "amount": n}) for n in range(300)]
            outbox.emit_many(orders)
        run(store, folder)


def run(store: str, folder: str) -> None:
    spark = open_session("local[2]")
    register(spark)
    totals: dict[str, int] = {}

    def handle(batch: DataFrame, _number: int) -> None:
        batch.persist()
        order = functions.from_json(functions.col("payload").cast("string"), "customer STRING, amount INT")
        sums = (
            batch.select(order.alias("order")).groupBy("order.customer").agg(functions.sum("order.amount").alias("sum"))
        )
        for row in sums.collect():
            totals[row.customer] = totals.get(row.customer, 0) + row["sum"]
        settle(batch, store)
        batch.unpersist()

    events = spark.readStream.format("penstock").option("store", store).option("limit", 100).load()
    query = events.writeStream.foreachBatch(handle).option("checkpointLocation", f"{folder}/checkpoint").start()
    query.processAllAvailable()
    query.stop()
    for customer, total in sorted(totals.items()):
        sys.stdout.write(f"{customer} {total}\n")
    spark.read.format("penstock").option("store", store).load().groupBy("state").count().show()


if __name__ == "__main__":
    main()


# Output:
# c0 14850
# c1 14950
# c2 15050
# +---------+-----+
# |    state|count|
# +---------+-----+
# |PUBLISHED|  300|
# +---------+-----+
