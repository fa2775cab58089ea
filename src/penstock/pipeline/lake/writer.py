"""The relay to a lake: a streaming query claims events, Spark writes them, and only then are they settled.

The order decides. Files are in place before their events are settled, so nothing is lost. A note says which files
belong to which lease: after a crash `penstock.pipeline.lake.recovery` asks the store what became of it, settles what is
complete, and takes away what others will write again.
"""

import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from penstock.model.errors import NotInitialised, PipelineError, StoreConflict, StoreError, StoreUnavailable
from penstock.model.lease import DEFAULT_LEASE_SECONDS, Lease, LeaseId, Settlement, Token
from penstock.model.lifecycle import overdelivered, weight
from penstock.model.outcome import PUBLISHED, Dead, Outcome
from penstock.pipeline.counts import SliceCounts
from penstock.pipeline.datasource.reader import register_events
from penstock.pipeline.datasource.sender import Dispatch
from penstock.pipeline.lake.files import HIDDEN, LakeFolder, LakeNote, StagedFile
from penstock.pipeline.lake.layout import Lake
from penstock.pipeline.lake.recovery import Sweep, cause_of
from penstock.pipeline.spark.errors import gone, java_is_gone, readable, root_cause, state_of, stop_query
from penstock.pipeline.spark.session import DEFAULT_MASTER, is_local
from penstock.pipeline.spark.slices import Patience
from penstock.runtime.lease_keeper import LeaseKeeper
from penstock.runtime.starvation import any_starving
from penstock.store.api import Store, StoreOptions
from penstock.store.registry import open_store
from penstock.telemetry import log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

OnBatch = Callable[[int, list[SliceCounts]], bool]

# Nobody beats for a lease while Spark is still claiming under it and others.
LEASE_SECONDS = 300.0
LOOK_SECONDS = 0.2
PROBE_SECONDS = 0.5
GRACE_SECONDS = 30.0
PATIENCE = Patience(failures=5)
_OUTAGES = re.compile(r"\b(?:StoreUnavailable|StoreConflict)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeOptions:
    """Options of a relay to a lake."""

    store: str
    queue: str
    lease_seconds: float
    dispatch: Dispatch
    master: str | None
    checkpoint: str | None


def run_lake(
    spark: "SparkSession",
    options: LakeOptions,
    until: datetime | None,
    parallelism: int,
    ending: threading.Event,
    on_batch: OnBatch,
) -> None:
    """Fill the lake until `ending` is set, or, with `until`, until what was emitted before is in it."""
    register_events(spark)
    with closing(open_store(options.store, StoreOptions(order_policy=options.dispatch.order_policy))) as store:
        relay = LakeRelay(spark, options, store, until, parallelism, ending, on_batch)
        with closing(relay), _checkpoint(options, relay.lake) as checkpoint:
            relay.run(checkpoint)


@dataclass(frozen=True, slots=True)
class ClaimedRows:
    """The events of a batch that one lease holds."""

    lease: Lease
    rows: "list[Row]"

    def full(self, limit: int) -> bool:
        """Whether more might have come if more could: suspects come in small company."""
        weights = [weight(row.suspect, limit) for row in self.rows]
        return sum(weights) + max(weights) > limit

    def outcomes(self, outcome: Callable[["Row"], Outcome]) -> dict[int, Outcome]:
        return {row.seq: outcome(row) for row in self.rows}


class LakeRelay:
    """The driver of one run: keeps a query going, and does what each of its batches is for."""

    def __init__(
        self,
        spark: "SparkSession",
        options: LakeOptions,
        store: Store,
        until: datetime | None,
        parallelism: int,
        ending: threading.Event,
        on_batch: OnBatch,
    ) -> None:
        self.lake = Lake.parse(options.dispatch.destination)
        self._spark = spark
        self._options = options
        self._store = store
        self._until = until
        self._parallelism = parallelism
        self._ending = ending
        self._on_batch = on_batch
        given = options.lease_seconds
        self._lease_seconds = LEASE_SECONDS if given == DEFAULT_LEASE_SECONDS else given
        self._folder = LakeFolder(spark, self.lake.path)
        self._lease_keeper = LeaseKeeper(store, self._lease_seconds / 3)
        self._busy = threading.Lock()
        self._failures = 0
        self._not_before = 0.0
        self._sweep = Sweep(store, self._folder)

    def close(self) -> None:
        self._lease_keeper.stop()

    # -- the query --------------------------------------------------------------------------------------------

    def run(self, checkpoint: str) -> None:
        """Until all is over. A query that failed starts again where it was: its batch repeats its claims."""
        while not self._ending.is_set():
            self._sweep.now()
            query = self._start(checkpoint)
            failure: BaseException | None = None
            try:
                failure = self._watch(query)
            finally:
                failure = self._end(query) or failure
            if failure is not None:
                self._bear(failure)
        self._sweep.now()

    def _start(self, checkpoint: str) -> "StreamingQuery":
        options = self._options
        source = self._spark.readStream.format("penstock").options(
            store=options.store,
            queue=options.queue,
            limit=self.lake.batch_events,
            partitions=self._parallelism,
            lease_seconds=self._lease_seconds,
            max_attempts=options.dispatch.retry.max_attempts,
        )
        writer = source.load().writeStream.foreachBatch(self._batch).option("checkpointLocation", checkpoint)
        writer = writer.queryName(f"penstock-lake-{options.queue}-{uuid4().hex[:8]}")
        try:
            return writer.trigger(processingTime=f"{PROBE_SECONDS} seconds").start()
        except Exception as error:
            raise readable(error, "a batch") from None

    def _watch(self, query: "StreamingQuery") -> BaseException | None:
        while not self._ending.wait(LOOK_SECONDS):
            active, error = state_of(query)
            if error is not None:
                return error
            if not active or (self._until is not None and self._drained(query)):
                self._ending.set()
        return None

    def _drained(self, query: "StreamingQuery") -> bool:
        """Whether the query rests, having repeated what it died of before, and there is nothing more to claim."""
        if self._busy.locked() or not query.status["message"].startswith("Waiting"):
            return False
        try:
            self._store.scan_everything()
            return not self._store.ready(self._options.queue)
        except (StoreUnavailable, StoreConflict):
            return False

    def _end(self, query: "StreamingQuery") -> BaseException | None:
        """Let the batch in hand finish, and stop the query."""
        if not self._busy.acquire(timeout=GRACE_SECONDS):
            stop_query(query)
            return PipelineError(f"a batch went on for {GRACE_SECONDS:g} s after it was to end, and was cut short")
        self._busy.release()
        return stop_query(query)

    def _bear(self, error: BaseException) -> None:
        """Pause, if trying again may help; an outage of the store is waited for, however long."""
        if java_is_gone(error):
            raise gone(error)
        cause = root_cause(str(error))
        self._failures += 1
        outage = _OUTAGES.search(cause) is not None
        if self._ending.is_set() or not (outage or self._failures < PATIENCE.failures):
            raise readable(error, "a batch")
        pause = PATIENCE.pause_seconds(self._failures)
        log.warn("a batch failed, trying again", in_seconds=pause, cause=cause)
        self._ending.wait(pause)

    # -- a batch ----------------------------------------------------------------------------------------------

    def _batch(self, events: "DataFrame", number: int) -> None:
        with self._busy:
            # Small batches make small files: unless events are waiting in line, they gather for a while.
            self._ending.wait(max(0.0, self._not_before - time.monotonic()))
            if self._ending.is_set():
                return
            began = time.monotonic()
            counts, full = self._deliver(events)
            self._failures = 0
            self._not_before = 0.0 if full or self._until is not None else began + self.lake.every_seconds
            self._sweep.if_due()
            if not self._on_batch(number, [counts]):
                self._ending.set()

    def _deliver(self, events: "DataFrame") -> tuple[SliceCounts, bool]:
        """Claim, write, settle; return the counts, and whether a claim was full."""
        counts = SliceCounts()
        # Kept: reading it again would claim anew, and a task that failed to write claims nothing twice.
        events.persist()
        try:
            claims = _claims(events, self._options.queue, self._lease_seconds)
            counts.claimed = sum(len(claim.rows) for claim in claims)
            with ExitStack() as beating:
                for claim in claims:
                    beating.enter_context(self._lease_keeper.beating(claim.lease))
                if claims:
                    self._carry(events, claims, counts)
        finally:
            events.unpersist()
        full = any(claim.full(self.lake.batch_events) for claim in claims)
        counts.drained = self._until is not None and bool(claims) and not self._any_left(claims, full, self._until)
        return counts, full

    def _any_left(self, claims: list[ClaimedRows], full: bool, until: datetime) -> bool:
        end = (until - datetime.fromtimestamp(0, UTC)).total_seconds() * 1e6
        if any(row.created <= end for claim in claims for row in claim.rows):
            return True
        return full and any_starving(self._store, self._options.queue, until)

    def _carry(self, events: "DataFrame", claims: list[ClaimedRows], counts: SliceCounts) -> None:
        limit = self._options.dispatch.max_deliveries
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
                self._sweep.tidy(lambda: self._folder.delete([staging]))

    def _bring_in(self, claim: ClaimedRows, files: list[StagedFile], counts: SliceCounts) -> None:
        """Move the files of one lease in, then settle its events."""
        own = [file for file in files if file.token == str(claim.lease.token)]
        written = [
            row for row in claim.rows if not overdelivered(row.deliveries, self._options.dispatch.max_deliveries)
        ]
        if written and not own:
            # The executor that had claimed them is gone, and another claimed anew: those come again.
            counts.lost += len(claim.rows)
            return
        note = LakeNote(
            claim.lease, [row.seq for row in written], claim.rows[0].event_id, [file.target for file in own]
        )
        try:
            for older in self._folder.notes(claim.lease.lease_id):
                # Of an attempt that this lease's new token has put an end to.
                self._sweep.discard(older)
            self._folder.put(note)
            for file in own:
                self._folder.move(file)
        except Exception as error:
            settlement = self._fail(claim, cause_of(error), counts)
            self._sweep.tidy(lambda: self._sweep.forget(note, settlement))
            return
        settlement = self._settle(claim, claim.outcomes(self._outcome), counts)
        if settlement is not None:
            self._sweep.tidy(lambda: self._sweep.forget(note, settlement))

    def _outcome(self, row: "Row") -> Outcome:
        """Of an event that is in the lake; or of one that was handed out too often, and is not."""
        if overdelivered(row.deliveries, self._options.dispatch.max_deliveries):
            return Dead(f"delivered more than {self._options.dispatch.max_deliveries} times without an outcome")
        return PUBLISHED

    def _fail(self, claim: ClaimedRows, cause: str, counts: SliceCounts) -> Settlement | None:
        now = time.time()

        def outcome(row: "Row") -> Outcome:
            return self._options.dispatch.retry.decide(
                f"the lake can't be written: {cause}",
                attempts=row.attempts,
                age_seconds=now - row.created / 1e6,
                roll=random.random(),
                event_max_attempts=row.max_attempts,
            )

        return self._settle(claim, claim.outcomes(outcome), counts)

    def _settle(self, claim: ClaimedRows, outcomes: Mapping[int, Outcome], counts: SliceCounts) -> Settlement | None:
        """Settle, through an outage if need be.

        If the outage lasts too long, or the store refuses, the note stays and the next sweep asks again.
        """
        began, pause = time.monotonic(), 0.05
        while True:
            try:
                settlement = self._store.settle(claim.lease, outcomes)
            except (StoreUnavailable, StoreConflict) as error:
                counts.note_error(error)
                if time.monotonic() - began > self._lease_seconds or self._ending.wait(pause):
                    return None
                pause = min(pause * 2, 1.0)
                continue
            except NotInitialised:
                raise
            except StoreError as error:  # other batches go on
                counts.note_error(error)
                return None
            counts.count(settlement)
            counts.explain(settlement, outcomes)
            if settlement.lost:
                log.warn(
                    "a lease ran out before its events were settled; they come again. Is --lease-seconds too short?",
                    events=len(settlement.lost),
                )
            return settlement


def _claims(events: "DataFrame", queue: str, lease_seconds: float) -> list[ClaimedRows]:
    """Claim, and see what was: by lease, without payloads."""
    from pyspark.sql import functions as on

    seen = events.select(
        *("seq", "event_id", "lease", "token", "attempts", "deliveries", "max_attempts", "suspect"),
        on.unix_micros("created_at").alias("created"),
    )
    rows: dict[tuple[str, str], list[Any]] = {}
    for row in seen.collect():
        rows.setdefault((row.lease, row.token), []).append(row)
    return [
        ClaimedRows(Lease(LeaseId(UUID(lease)), Token(UUID(token)), queue, lease_seconds), own)
        for (lease, token), own in sorted(rows.items())
    ]


@contextmanager
def _checkpoint(options: LakeOptions, lake: Lake) -> Iterator[str]:
    """The folder that lets a query go on where it failed; for this run only, unless the user names a lasting one."""
    if options.checkpoint is not None:
        yield options.checkpoint
    elif is_local(options.master or DEFAULT_MASTER):
        with TemporaryDirectory(prefix="penstock-lake-", ignore_cleanup_errors=True) as folder:
            yield folder
    else:
        yield f"{lake.path}/{HIDDEN}/checkpoints/{uuid4().hex}"
