"""The relay with a user's step: a streaming query that claims, and whose every micro-batch goes through the step.

What a batch does is in `penstock.pipeline.step_batches`. Beside it a thread extends the leases of the batch in hand,
cuts a step short that would keep a relay from stopping, and ends a relay that drains when there is nothing left.
"""

import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC
from typing import TYPE_CHECKING

from penstock.errors import PenstockError, UsageError
from penstock.lifecycle import Dropped
from penstock.pipeline import carry
from penstock.pipeline.carry import Errand, Tally
from penstock.pipeline.slices import OnFailure, Patience, StopLine, run_batches
from penstock.pipeline.step_batches import Batch, Own, Work
from penstock.store import Store, StoreOptions, open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from penstock.pipeline.steps import Step

# How often the source is asked for new events; a batch that takes longer is followed by the next one at once.
TRIGGER = "100 milliseconds"
LOOK_SECONDS = 0.1
# What a step gets to come to its end when the relay is to stop.
STEP_GRACE_SECONDS = 2.0
# A batch of which everything was released would be claimed again at once, and again.
FRUITLESS_SECONDS = 1.0
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


def run_steps(
    spark: "SparkSession",
    errand: Errand,
    step: "Step",
    dropped: Dropped,
    *,
    parallelism: int,
    on_batch: Callable[[int, list[Tally]], bool],
    destination_for_workers: Callable[[str], str],
    checkpoint: str | None,
    name: str,
    stop: threading.Event,
    grace_seconds: float,
    patience: Patience,
    on_failure: OnFailure,
) -> None:
    """Run micro-batches through `step` until `on_batch` returns False, or `stop` is set."""
    _require_no_speculation(spark)
    host = spark.sparkContext.getConf().get("spark.driver.host") or "127.0.0.1"
    options = StoreOptions(order_policy=errand.order_policy)
    with (
        closing(open_store(errand.store, options)) as store,
        StopLine(host, spark.sparkContext.getConf().get("spark.driver.bindAddress") or host) as line,
    ):
        work = Work(errand, step, dropped, store, parallelism, stop, line.address, destination_for_workers)
        with _Watch(work) as watch:
            run_batches(
                _claims(spark, errand, parallelism),
                watch.handle,
                line=line,
                on_batch=on_batch,
                checkpoint=checkpoint,
                name=name,
                stop=stop,
                grace_seconds=grace_seconds,
                patience=patience,
                on_failure=on_failure,
            )


def _claims(spark: "SparkSession", errand: Errand, parallelism: int) -> "DataStreamWriter":
    from penstock.pipeline.source import register

    register(spark)
    source = spark.readStream.format("penstock").options(
        store=errand.store,
        queue=errand.queue,
        limit=errand.batch,
        partitions=parallelism,
        lease_seconds=errand.lease_seconds,
        max_attempts=errand.retry.max_attempts,
        patient=True,
    )
    return source.load().writeStream.trigger(processingTime=TRIGGER)


def _require_no_speculation(spark: "SparkSession") -> None:
    if spark.sparkContext.getConf().get("spark.speculation") == "true":
        raise UsageError("a second copy of a task would claim a second time: set spark.speculation to false")


class _Watch:
    """What runs beside the batches, in a thread of its own, and what it knows of the one in hand."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._store: Store = work.store
        self._hand: tuple[Batch, Own] | None = None
        self._cancel: Callable[[], object] = bool
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-steps", daemon=True)

    def __enter__(self) -> "_Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=1.0)
        if hand := self._hand:  # it didn't end in time: what it has not begun is not its to begin any more
            try:
                hand[1].release()
            except PenstockError:
                return  # its leases will be over

    def handle(self, events: "DataFrame", number: int) -> list[Tally]:
        """A micro-batch, in the thread that Spark calls back in."""
        from penstock.pipeline.source import lease_of

        context = events.sparkSession.sparkContext
        query, run = context.getLocalProperty("sql.streaming.queryId"), context.getLocalProperty("spark.jobGroup.id")
        assert query is not None
        assert run is not None
        if events.sparkSession.conf.get(SHUFFLE_PARTITIONS) == "200":  # Spark's default is for terabytes
            events.sparkSession.conf.set(SHUFFLE_PARTITIONS, str(self._work.parallelism))
        lease_ids = [lease_of(query, number + 1, index) for index in range(self._work.parallelism)]
        own = Own(self._store, run, lease_ids, self._work.errand.lease_seconds)
        batch = Batch(self._work, own, events)
        self._cancel = lambda: context.cancelJobGroup(run)
        self._hand = batch, own
        try:
            batch.run()
        finally:
            self._hand = None
        batch.tally.drained = self._work.errand.until is not None and not self._any_left(batch)
        if _fruitless(batch.tally):
            self._work.stop.wait(FRUITLESS_SECONDS)
        return [batch.tally]

    def _any_left(self, batch: Batch) -> bool:
        """Whether events from before the end of a relay that drains may be waiting."""
        errand = self._work.errand
        assert errand.until is not None
        if not batch.claimed or _fruitless(batch.tally):
            return False
        if any(one.created_at.astimezone(UTC) <= errand.until for one in batch.claimed):
            return True
        full = len(batch.claimed) >= errand.batch * self._work.parallelism
        return full and carry.any_starving(self._store, errand.queue, errand.until)

    def _run(self) -> None:
        beaten = time.monotonic()
        stopped_at: float | None = None
        while not self._over.wait(LOOK_SECONDS):
            now = time.monotonic()
            try:
                if self._hand is None:
                    self._end_if_drained()
                elif now - beaten >= self._work.errand.lease_seconds / 3:
                    beaten = now
                    self._hand[1].extend()
            except PenstockError:
                pass  # the next look tries again
            if self._work.stop.is_set():
                stopped_at = stopped_at or now
                self._cut_short(now - stopped_at)

    def _cut_short(self, stopping_seconds: float) -> None:
        """Dispatching sees by itself that it is to stop; a step knows nothing of it."""
        hand = self._hand
        if hand is not None and not hand[0].dispatching and stopping_seconds > STEP_GRACE_SECONDS:
            self._cancel()

    def _end_if_drained(self) -> None:
        if self._work.errand.until is None or self._work.stop.is_set():
            return
        self._store.look_at_all()
        if not self._store.ready(self._work.errand.queue) and self._hand is None:
            self._work.stop.set()


def _fruitless(tally: Tally) -> bool:
    """Events came, and all of them went back."""
    return tally.claimed > 0 and not (tally.published or tally.retried or tally.dead or tally.lost)
