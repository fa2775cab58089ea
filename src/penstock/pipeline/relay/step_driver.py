"""The relay with a step: a streaming query on `format("penstock")` that passes each micro-batch through the step.

A micro-batch is processed by `penstock.pipeline.relay.step_batch`.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from penstock.model.errors import PenstockError, UsageError
from penstock.model.lease import Lease, LeaseId
from penstock.model.outcome import Dropped
from penstock.pipeline.counts import SliceCounts
from penstock.pipeline.datasource.reader import claim_query, drained, lease_of
from penstock.pipeline.datasource.sender import RelayTaskSpec
from penstock.pipeline.relay.step_batch import StepBatch, StepWork
from penstock.pipeline.spark.slices import BatchHandler, QueryOptions, run_batches
from penstock.pipeline.spark.stop_channel import open_channel
from penstock.runtime.lease_keeper import LeaseKeeper
from penstock.store.api import StoreOptions
from penstock.store.registry import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.pipeline.relay.spec import Step

# Interval of probes for new events. A batch that takes longer is followed by the next one at once.
TRIGGER = "100 milliseconds"
# Pause after a batch of which every event was released: these events would be claimed again at once.
FRUITLESS_SECONDS = 1.0
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


def run_steps(
    spark: "SparkSession",
    spec: RelayTaskSpec,
    step: "Step",
    dropped: Dropped,
    *,
    parallelism: int,
    on_batch: Callable[[int, list[SliceCounts]], bool],
    query: QueryOptions,
) -> None:
    """Run micro-batches through `step` until `on_batch` returns False, a stop is set, or a draining relay is done."""
    if spark.sparkContext.getConf().get("spark.speculation") == "true":
        raise UsageError("spark.speculation must be false, got true; speculative tasks would claim further events")
    options = StoreOptions(order_policy=spec.dispatch.order_policy)
    with ExitStack() as stack:
        store = stack.enter_context(closing(open_store(spec.store, options)))
        channel = stack.enter_context(open_channel(spark))
        lease_keeper = LeaseKeeper(store, spec.lease_seconds / 3)
        stack.callback(lease_keeper.stop)
        batches = _Batches(StepWork(spec, step, dropped, store, lease_keeper, query.stop, channel.address), parallelism)
        run_batches(
            claim_query(spark, spec, parallelism, every=TRIGGER, patient=True),
            BatchHandler(batches.handle, partial(drained, store, spec), batches.interrupt),
            channel=channel,
            on_batch=on_batch,
            options=query,
        )


class _Batches:
    """The micro-batches of a query with a step."""

    def __init__(self, work: StepWork, parallelism: int) -> None:
        self._work = work
        self._parallelism = parallelism
        self._current: StepBatch | None = None

    def handle(self, events: "DataFrame", number: int) -> list[SliceCounts]:
        """Run one micro-batch, in the thread of Spark's callback."""
        session = events.sparkSession
        if session.conf.get(SHUFFLE_PARTITIONS) == "200":  # Spark's default is for terabytes
            session.conf.set(SHUFFLE_PARTITIONS, str(self._parallelism))
        context = session.sparkContext
        query, run = context.getLocalProperty("sql.streaming.queryId"), context.getLocalProperty("spark.jobGroup.id")
        assert query is not None
        assert run is not None
        lease_ids = [lease_of(query, number + 1, index) for index in range(self._parallelism)]
        held = partial(self._held, run, lease_ids)
        self._current = batch = StepBatch(self._work, events, run, held)
        try:
            counts = batch.run()
        finally:
            self._current = None
            with suppress(PenstockError):  # after an error, unsettled events become pending when their leases expire
                for lease in () if batch.refused else held().values():
                    self._work.store.release(lease)
        settled = counts.published + counts.discarded + counts.retried + counts.dead + counts.lost
        fruitless = counts.claimed > 0 and not settled
        counts.drained = self._work.spec.until is not None and (fruitless or drained(self._work.store, self._work.spec))
        if fruitless:
            self._work.stop.wait(FRUITLESS_SECONDS)
        return [counts]

    def _held(self, run: str, lease_ids: Sequence[LeaseId]) -> dict[LeaseId, Lease]:
        """Return the leases that this run of the query holds. Claims of a newer driver have another claimant."""
        seconds = self._work.spec.lease_seconds  # the store records when a lease expires, not its duration
        leases = [one.lease for one in self._work.store.held(lease_ids) if one.claimant.startswith(f"spark:{run}:")]
        return {lease.lease_id: replace(lease, lease_seconds=seconds) for lease in leases}

    def interrupt(self) -> None:
        """Cancel the Spark jobs of a running step. Tasks that publish check for a stop request themselves."""
        if (batch := self._current) is not None:
            batch.cancel()
