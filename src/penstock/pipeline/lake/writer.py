"""The relay to a lake: a streaming query claims events, Spark writes their files, and then the events are settled.

Files are in place before their events are settled, so no event is lost. A note lists the files of a lease: after a
crash, `penstock.pipeline.lake.recovery` asks the store about the lease, settles the events of complete files, and
deletes files with events that will be written again.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from penstock.model.errors import NotInitialised, StoreError
from penstock.model.lease import DEFAULT_LEASE_SECONDS, Lease, LeaseId, Settlement, Token
from penstock.model.lifecycle import overdelivered, weight
from penstock.model.outcome import PUBLISHED, Dead, Outcome
from penstock.pipeline.counts import SliceCounts, settle_and_count
from penstock.pipeline.datasource.reader import claim_query, drained
from penstock.pipeline.datasource.sender import RelayTaskSpec
from penstock.pipeline.datasource.settle import ClaimedEvent, claim_rows
from penstock.pipeline.lake.files import HIDDEN, LakeFolder, LakeNote, StagedFile
from penstock.pipeline.lake.layout import Lake
from penstock.pipeline.lake.recovery import Sweep, cause_of
from penstock.pipeline.spark.session import is_local
from penstock.pipeline.spark.slices import BatchHandler, Patience, QueryOptions, run_batches
from penstock.pipeline.spark.stop_channel import open_channel
from penstock.runtime.lease_keeper import LeaseKeeper
from penstock.runtime.starvation import any_starving
from penstock.store.api import Store, StoreOptions
from penstock.store.registry import open_store
from penstock.telemetry import log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Longer than the default: a lease has no heartbeats while Spark is still claiming the events of its micro-batch.
LEASE_SECONDS = 300.0
PROBE_INTERVAL = "500 milliseconds"
GRACE_SECONDS = 30.0
PATIENCE = Patience(failures=5, through_outages=True)


def run_lake(
    spark: "SparkSession",
    spec: RelayTaskSpec,
    *,
    parallelism: int,
    on_batch: Callable[[int, list[SliceCounts]], bool],
    query: QueryOptions,
) -> None:
    """Fill the lake until a stop is set or, if `spec` has an end, until the events from before it are in the lake."""
    lake = Lake.parse(spec.dispatch.destination)
    own_lease = LEASE_SECONDS if spec.lease_seconds == DEFAULT_LEASE_SECONDS else spec.lease_seconds
    spec = replace(spec, batch=lake.batch_events, lease_seconds=own_lease)
    options = StoreOptions(order_policy=spec.dispatch.order_policy)
    with ExitStack() as stack:
        store = stack.enter_context(closing(open_store(spec.store, options)))
        checkpoint = stack.enter_context(_checkpoint(query.checkpoint, spark, lake))
        channel = stack.enter_context(open_channel(spark))
        relay = stack.enter_context(closing(LakeRelay(spec, lake, store, LakeFolder(spark, lake.path), query.stop)))
        relay.sweep.now()
        run_batches(
            claim_query(spark, spec, parallelism, every=PROBE_INTERVAL, patient=False),
            BatchHandler(relay.handle, partial(drained, store, spec)),
            channel=channel,
            on_batch=on_batch,
            options=replace(
                query,
                checkpoint=checkpoint,
                grace_seconds=GRACE_SECONDS,
                patience=PATIENCE,
                on_failure=relay.failed,
                repeats=True,
            ),
        )
        relay.sweep.now()


@dataclass(frozen=True, slots=True)
class ClaimedRows:
    """Events of a micro-batch that were claimed under one lease."""

    lease: Lease
    rows: Sequence[ClaimedEvent]

    def full(self, limit: int) -> bool:
        """Return whether the claim was full, so that more events may be ready. A suspect counts as several events."""
        weights = [weight(row.suspect, limit) for row in self.rows]
        return sum(weights) + max(weights) > limit


class LakeRelay:
    """The driver's handler of the micro-batches of one run."""

    def __init__(
        self, spec: RelayTaskSpec, lake: Lake, store: Store, folder: LakeFolder, ending: threading.Event
    ) -> None:
        self.sweep = Sweep(store, folder)
        self._spec = spec
        self._lake = lake
        self._store = store
        self._folder = folder
        self._ending = ending
        self._lease_keeper = LeaseKeeper(store, spec.lease_seconds / 3)
        self._not_before = 0.0

    def close(self) -> None:
        self._lease_keeper.stop()

    def failed(self, cause: str, seconds: float) -> None:
        log.warn("batch_failed", retry_in=seconds, error=cause)
        self.sweep.now()

    def handle(self, events: "DataFrame", _number: int) -> list[SliceCounts]:
        """Deliver one micro-batch and return its counts; no counts if the relay is stopped before it begins."""
        # Small batches make small files: let events accumulate, unless the last claim was full.
        self._ending.wait(max(0.0, self._not_before - time.monotonic()))
        if self._ending.is_set():
            return []
        began = time.monotonic()
        counts, full = self._deliver(events)
        draining = self._spec.until is not None
        self._not_before = 0.0 if full or draining else began + self._lake.every_seconds
        self.sweep.if_due()
        return [counts]

    def _deliver(self, events: "DataFrame") -> tuple[SliceCounts, bool]:
        """Claim, write and settle one micro-batch; return its counts and whether a claim was full."""
        counts = SliceCounts()
        # Persist the rows: reading the batch again would claim again, and so would a retry of a task that writes.
        events.persist()
        try:
            claims = _by_lease(claim_rows(events), self._spec.queue, self._spec.lease_seconds)
            counts.claimed = sum(len(claim.rows) for claim in claims)
            with ExitStack() as beating:
                for claim in claims:
                    beating.enter_context(self._lease_keeper.beating(claim.lease))
                if claims:
                    self._carry(events, claims, counts)
        finally:
            events.unpersist()
        full = any(claim.full(self._lake.batch_events) for claim in claims)
        until = self._spec.until
        counts.drained = until is not None and bool(claims) and not self._any_left(claims, full, until)
        return counts, full

    def _any_left(self, claims: list[ClaimedRows], full: bool, until: datetime) -> bool:
        if any(row.created_micros <= until.timestamp() * 1e6 for claim in claims for row in claim.rows):
            return True
        return full and any_starving(self._store, self._spec.queue, until)

    def _carry(self, events: "DataFrame", claims: list[ClaimedRows], counts: SliceCounts) -> None:
        limit = self._spec.dispatch.max_deliveries
        wanted = events if limit is None else events.where(events.deliveries <= limit)
        staging = None
        try:
            staging, files = self._folder.stage(wanted)
        except Exception as error:
            cause = cause_of(error)
            for claim in claims:
                self._fail(claim, cause, counts)
        else:
            for claim in claims:
                self._bring_in(claim, files, counts)
        finally:
            if staging is not None:
                self.sweep.tidy(lambda: self._folder.delete([staging]))

    def _bring_in(self, claim: ClaimedRows, files: list[StagedFile], counts: SliceCounts) -> None:
        """Move the files of one lease in, then settle its events."""
        own = [file for file in files if file.token == str(claim.lease.token)]
        written = [row for row in claim.rows if not overdelivered(row.deliveries, self._spec.dispatch.max_deliveries)]
        if written and not own:
            # The executor that had claimed these events is lost, and Spark has claimed them again under a new token.
            # They will be delivered again.
            counts.lost += len(claim.rows)
            return
        note = LakeNote(
            claim.lease, [row.seq for row in written], claim.rows[0].event_id, [file.target for file in own]
        )
        try:
            for older in self._folder.notes(claim.lease.lease_id):
                # The note of an earlier attempt, which the new token of the lease has fenced.
                self.sweep.discard(older)
            self._folder.put(note)
            for file in own:
                self._folder.move(file)
        except Exception as error:
            settlement = self._fail(claim, cause_of(error), counts)
            self.sweep.tidy(lambda: self.sweep.forget(note, settlement))
            return
        settlement = self._settle(claim, {row.seq: self._outcome(row) for row in claim.rows}, counts)
        if settlement is not None:
            self.sweep.tidy(lambda: self.sweep.forget(note, settlement))

    def _outcome(self, row: ClaimedEvent) -> Outcome:
        """Return PUBLISHED for a written event; Dead for one that was delivered too often and therefore not written."""
        if overdelivered(row.deliveries, self._spec.dispatch.max_deliveries):
            return Dead(f"delivered {row.deliveries} times; the limit is {self._spec.dispatch.max_deliveries}")
        return PUBLISHED

    def _fail(self, claim: ClaimedRows, cause: str, counts: SliceCounts) -> Settlement | None:
        error, policy = f"cannot write to the lake: {cause}", self._spec.dispatch.retry
        return self._settle(claim, {row.seq: row.failed(error, policy) for row in claim.rows}, counts)

    def _settle(self, claim: ClaimedRows, outcomes: Mapping[int, Outcome], counts: SliceCounts) -> Settlement | None:
        """Settle, retrying while the store is unavailable.

        Return None if the outage lasts too long or the store refuses: the note stays, and the next sweep settles again.
        """
        try:
            settlement = settle_and_count(self._store, claim.lease, outcomes, counts, self._ending.is_set)
        except NotInitialised:
            raise
        except StoreError as error:  # other batches go on
            counts.note_error(error)
            return None
        if settlement is not None and settlement.lost:
            log.warn("lease_lost", count=len(settlement.lost), hint="increase --lease-seconds")
        return settlement


def _by_lease(events: Sequence[ClaimedEvent], queue: str, lease_seconds: float) -> list[ClaimedRows]:
    rows: dict[tuple[str, str], list[ClaimedEvent]] = {}
    for row in events:
        rows.setdefault((row.lease, row.token), []).append(row)
    return [
        ClaimedRows(Lease(LeaseId(UUID(lease)), Token(UUID(token)), queue, lease_seconds), own)
        for (lease, token), own in sorted(rows.items())
    ]


@contextmanager
def _checkpoint(given: str | None, spark: "SparkSession", lake: Lake) -> Iterator[str]:
    """Provide the checkpoint folder from which a failed query resumes: the user's, or one for this run only."""
    if given is not None:
        yield given
    elif is_local(spark.sparkContext.master or ""):
        with TemporaryDirectory(prefix="penstock-lake-", ignore_cleanup_errors=True) as folder:
            yield folder
    else:
        yield f"{lake.path}/{HIDDEN}/checkpoints/{uuid4().hex}"
