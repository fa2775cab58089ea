"""Workloads that `benchmarks.compare` runs on two versions: one workload in a separate process.

    python -m benchmarks.workloads relay postgresql://… 100000

The process prepares, prints `ready`, waits for a line, works, prints `done` and waits for the end of its input. It uses
only public names of Penstock, because the version under test may be older.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from penstock import Received, Streams, Worker, connect

EVENT_TYPE = "bench.event"
PAYLOAD = bytes(range(200))
CHUNK = 1_000
BATCH = 2_000
TASKS = 2
KEYS = 1_000


def emit(url: str, count: int) -> Iterator[None]:
    """Emit in bulk."""
    with connect(url) as outbox:
        outbox.store.now()  # connects
        yield
        for _ in range(0, count, CHUNK):
            outbox.emit_many([outbox.event(EVENT_TYPE, PAYLOAD) for _ in range(CHUNK)])


def emit_one(url: str, count: int) -> Iterator[None]:
    """Emit one event in each transaction."""
    with connect(url) as outbox:
        outbox.store.now()
        yield
        for _ in range(count):
            outbox.emit(EVENT_TYPE, PAYLOAD)


def relay(url: str, _: int) -> Iterator[None]:
    """Relay pending events to nowhere. The Spark session is started before the measurement."""
    from penstock.pipeline import RelayOptions, run_relay

    options = RelayOptions(
        store=url, destination="null:", master=f"local[{TASKS}]", parallelism=TASKS, batch=BATCH, once=True
    )
    with connect(url) as outbox:
        outbox.emit(EVENT_TYPE, PAYLOAD)
    run_relay(options)
    yield
    run_relay(options)


def worker(url: str, _: int) -> Iterator[None]:
    """Handle pending events with an async function that does nothing."""
    consumer = Worker(url)

    @consumer.handler(fetch_batch_size=CHUNK, overfetch_factor=2.0)
    async def do_nothing(event: Received) -> None:
        """Do nothing."""

    with connect(url) as outbox:
        yield
        consumer.start()
        while outbox.store.ready("outbox"):
            time.sleep(0.05)
        consumer.stop()


def stream(url: str, count: int) -> Iterator[None]:
    """Count events by key in a stream with its state in SQLite.

    The Spark session is started before the measurement.
    """
    from penstock.pipeline import open_session

    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, connect(url) as outbox:
        streams = Streams(url, state=f"sqlite:///{folder}/state")

        @streams.stream("outbox", name="counts", parts=TASKS)
        def count_one(_: Any, ctx: Any) -> None:
            """Count the event."""
            ctx.state["count"] = ctx.state.get("count", 0) + 1

        spark = open_session(f"local[{TASKS}]")
        outbox.emit(EVENT_TYPE, PAYLOAD, partition_key="0")
        streams.run(spark=spark, once=True, checkpoint=f"{folder}/checkpoint")
        for start in range(0, count, CHUNK):
            outbox.emit_many(
                [
                    outbox.event(EVENT_TYPE, PAYLOAD, partition_key=str(number % KEYS))
                    for number in range(start, min(start + CHUNK, count))
                ]
            )
        yield
        streams.run(spark=spark, once=True, checkpoint=f"{folder}/checkpoint")


WORKLOADS: Mapping[str, Callable[[str, int], Iterator[None]]] = {
    "emit": emit,
    "emit one": emit_one,
    "relay": relay,
    "worker": worker,
    "stream": stream,
}


def main(name: str, url: str, count: int) -> None:
    """Run one workload in step with the parent process."""
    steps = WORKLOADS[name](url, count)
    next(steps)
    print("ready", flush=True)
    sys.stdin.readline()
    next(steps, None)
    print("done", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
