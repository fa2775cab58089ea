"""Analysis of events with Spark: latencies, causes of failure, and a plot.

Run the file cell by cell in an editor that supports `# %%`, or as a script:

    python examples/analyse_events.py latency.png
"""

# %% Sample data: a shop's orders are published, its invoices have a broken destination
import sys
import tempfile
from pathlib import Path

import matplotlib
from pyspark.sql import functions as on

import penstock
from penstock.pipeline import RelayOptions, open_session, register, run_relay

folder = tempfile.TemporaryDirectory(prefix="analyse-")
store = f"sqlite:///{folder.name}/shop.db"
broken = Path(folder.name) / "broken"
broken.write_text("a file where the destination wants a folder")
picture = Path(sys.argv[1] if len(sys.argv) > 1 else "latency.png")

with penstock.connect(store) as outbox:
    outbox.store.initialise()
    for number in range(300):
        outbox.emit("order.placed" if number % 3 else "order.paid", {"number": number})
    for number in range(20):
        outbox.emit("invoice.sent", {"number": number}, queue="invoices", max_attempts=1)

run_relay(RelayOptions(store=store, destination=f"file://{folder.name}/out", master="local[2]", once=True))
run_relay(RelayOptions(store=store, destination=f"file://{broken}", queue="invoices", master="local[2]", once=True))

# %% Every event as a row, in any state
spark = open_session("local[2]")
register(spark)
events = spark.read.format("penstock").option("store", store).load()
events.groupBy("event_type", "state").count().orderBy("event_type", "state").show()

# %% Seconds from the emit to the settlement by the relay: in this example mostly the start of the relay
seconds = (on.unix_micros("settled_at") - on.unix_micros("created_at")) / 1e6
# The filter is evaluated in the store, which returns only published events.
published = events.where("state = 'PUBLISHED'").select("event_type", seconds.alias("seconds")).persist()
percentiles = published.groupBy("event_type").agg(
    *(on.round(on.percentile("seconds", on.lit(share)), 3).alias(f"p{share * 100:.0f}") for share in (0.5, 0.95, 0.99)),
    on.count("*").alias("events"),
)
percentiles.orderBy("event_type").show()

# %% Causes of dead events
dead = events.where("state = 'DEAD'").groupBy("event_type", "last_error").count()
dead.orderBy(on.desc("count")).show(truncate=120)

# %% Share of events published within a given number of seconds
matplotlib.use("Agg")  # renders to a file, without a screen
from matplotlib import pyplot  # noqa: E402

for kind in ("order.placed", "order.paid"):
    latencies = sorted(row.seconds for row in published.where(on.col("event_type") == kind).collect())
    pyplot.step(latencies, [(place + 1) / len(latencies) for place in range(len(latencies))], label=kind, where="post")
pyplot.xlabel("seconds from emit to published")
pyplot.ylabel("share of events")
pyplot.legend()
pyplot.savefig(picture)
sys.stdout.write(f"wrote {picture}\n")

# %% Clean up
spark.stop()
folder.cleanup()

# Output:
# +------------+---------+-----+
# |  event_type|    state|count|
# +------------+---------+-----+
# |invoice.sent|     DEAD|   20|
# |  order.paid|PUBLISHED|  100|
# |order.placed|PUBLISHED|  200|
# +------------+---------+-----+
#
# +------------+-----+-----+-----+------+
# |  event_type|  p50|  p95|  p99|events|
# +------------+-----+-----+-----+------+
# |  order.paid|8.037|8.461|  8.5|   100|
# |order.placed|8.031|8.457|8.493|   200|
# +------------+-----+-----+-----+------+
#
# +------------+-----------------------------------------------------------------------+-----+
# |  event_type|                                                             last_error|count|
# +------------+-----------------------------------------------------------------------+-----+
# |invoice.sent|FileExistsError: [Errno 17] File exists: '/tmp/analyse-h9x15afh/broken'|   20|
# +------------+-----------------------------------------------------------------------+-----+
#
# wrote latency.png
