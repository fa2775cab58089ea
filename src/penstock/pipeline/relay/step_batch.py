"""A step: a user's function between claim and dispatch, run on one micro-batch.

A micro-batch with a step is `settle(batch, outcomes=publish(step(batch), to=…), dropped=…)`. This module adds the
isolation of events that make the step or a publisher fail: a failing batch is split into smaller pieces, until such an
event fails alone. The query around a batch is in `penstock.pipeline.relay.step_driver`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.model.errors import NotInitialised, StoreError, UsageError
from penstock.model.lease import Lease, LeaseId
from penstock.model.outcome import RELEASED, Dropped, Outcome
from penstock.pipeline.counts import STEP_FAILED, SliceCounts, settle_and_count
from penstock.pipeline.datasource.publish import frames_of, send_frames
from penstock.pipeline.datasource.sender import RelayTaskSpec, blocked_keys
from penstock.pipeline.datasource.settle import ClaimedEvent, claim_rows, grouped_by_lease
from penstock.pipeline.spark.errors import gone, is_sparks, root_cause
from penstock.pipeline.spark.stop_channel import StopAddress
from penstock.publish.errors import error_text, presentable
from penstock.runtime.lease_keeper import LeaseKeeper
from penstock.runtime.retrying import insist
from penstock.store.api import Store

if TYPE_CHECKING:
    import threading

    from pyspark.sql import DataFrame

    from penstock.pipeline.relay.spec import Step

SPLIT = 10
# Once this many events have failed alone, the step is considered faulty, and the batch is not split further.
MAX_GUILTY = 5


@dataclass(frozen=True, slots=True)
class StepWork:
    """The settings that all micro-batches of a relay with a step share."""

    spec: RelayTaskSpec
    step: "Step"
    dropped: Dropped
    store: Store
    lease_keeper: LeaseKeeper
    stop: "threading.Event"
    stop_address: StopAddress


class StepBatch:
    """One micro-batch: its claimed events and their outcomes so far."""

    def __init__(
        self, work: StepWork, events: "DataFrame", run: str, held: Callable[[], Mapping[LeaseId, Lease]]
    ) -> None:
        self.publishing = False
        self.counts = SliceCounts()
        self._work = work
        self._run = run
        self._held = held
        self._events = events
        self._claimed: list[ClaimedEvent] = []
        self._outcomes: dict[int, Outcome] = {}
        self._discarded: set[int] = set()
        self._guilty = 0
        self.refused = False
        """True if the store refused to settle. The leases must then expire, so that suspects are claimed alone."""

    def run(self) -> SliceCounts:
        """Claim, publish and settle the events; return their counts."""
        self._events.persist()  # each further action on the DataFrame would claim again
        try:
            self._claim()
            with ExitStack() as beating:
                for lease in self._outcomes_by_lease():
                    beating.enter_context(self._work.lease_keeper.beating(lease))
                self._publish_all()
                self._settle()
        finally:
            self._events.unpersist()
        return self.counts

    def cancel(self) -> None:
        """Cancel the running Spark job, unless it publishes."""
        if not self.publishing:
            self._events.sparkSession.sparkContext.cancelJobGroup(self._run)

    def _claim(self) -> None:
        try:
            self._claimed = claim_rows(self._events)
        except Exception as error:
            self._require_java(error)
            if self._work.stop.is_set():
                return  # the Spark job was cancelled; the query releases the events that the job had claimed
            raise
        self.counts.claimed = len(self._claimed)

    def _publish_all(self) -> None:
        """Publish the whole batch or, while the step fails, smaller pieces of it in order."""
        pieces: list[Sequence[ClaimedEvent]] = [self._claimed] if self._claimed else []
        while pieces and not self._work.stop.is_set():
            piece = self._unblocked(pieces.pop())
            try:
                self._publish(piece)
            except UsageError:
                raise
            except Exception as error:
                pieces += reversed(self._split(piece, error))
        for piece in pieces:
            self._note(piece, RELEASED)

    def _publish(self, piece: Sequence[ClaimedEvent]) -> None:
        if not piece:
            return
        self.publishing = False
        work, events = self._work, self._events if len(piece) == len(self._claimed) else self._only(piece)
        sent = send_frames(
            frames_of(work.step(events), work.spec.dispatch.destination),
            work.spec.dispatch,
            self._events,
            stop_address=work.stop_address,
            computed=lambda: setattr(self, "publishing", True),
        )
        self._outcomes.update({one.seq: sent.get(one.seq, work.dropped.outcome) for one in piece})
        if work.dropped is Dropped.DISCARD:
            self._discarded.update(one.seq for one in piece if one.seq not in sent)

    def _only(self, piece: Sequence[ClaimedEvent]) -> "DataFrame":
        from pyspark.sql import functions as on

        return self._events.where(on.col("seq").isin([one.seq for one in piece]))

    def _split(self, piece: Sequence[ClaimedEvent], error: Exception) -> list[Sequence[ClaimedEvent]]:
        """Return smaller pieces to try. If splitting would not help, record a retry for each event and return no
        pieces."""
        self._require_java(error)
        if self._work.stop.is_set() and not self.publishing:
            self._note(piece, RELEASED)  # the step's Spark job was cancelled
            return []
        self._guilty += len(piece) == 1
        if len(piece) > 1 and self._guilty < MAX_GUILTY and not _is_about_columns(error):
            size = -(-len(piece) // SPLIT)
            return [piece[start : start + size] for start in range(0, len(piece), size)]
        cause = presentable(f"{STEP_FAILED}{root_cause(str(error)) if is_sparks(error) else error_text(error)}")
        self._outcomes.update({one.seq: one.failed(cause, self._work.spec.dispatch.retry) for one in piece})
        return []

    def _unblocked(self, piece: Sequence[ClaimedEvent]) -> Sequence[ClaimedEvent]:
        """Release the events with an ordering key that an earlier piece has blocked; return the others."""
        blocked = blocked_keys(self._claimed, self._outcomes, self._work.spec.dispatch.order_policy)
        self._note([one for one in piece if one.ordering_key in blocked], RELEASED)
        return [one for one in piece if one.ordering_key not in blocked]

    def _note(self, piece: Iterable[ClaimedEvent], outcome: Outcome) -> None:
        self._outcomes.update({one.seq: outcome for one in piece})

    def _require_java(self, error: Exception) -> None:
        try:
            self._events.sparkSession.sparkContext.defaultParallelism  # noqa: B018
        except Exception:
            raise gone(error) from None

    def _outcomes_by_lease(self) -> dict[Lease, dict[int, Outcome]]:
        """Return the outcome of every claimed event; an event that was not published is released."""
        rows = ((one._asdict(), self._outcomes.get(one.seq, RELEASED)) for one in self._claimed)
        return grouped_by_lease(rows, self._work.spec.lease_seconds)

    def _settle(self) -> None:
        """Settle under the current tokens: a partition that Spark read again was claimed again, with a new token."""
        store, stopped = self._work.store, self._work.stop.is_set
        held: Mapping[LeaseId, Lease] = {}
        with self._refusals_noted():
            if self._claimed:
                held = insist(self._held, self._work.spec.lease_seconds, stopped, self.counts.note_error) or {}
        for lease, outcomes in self._outcomes_by_lease().items():
            own = held.get(lease.lease_id, lease)
            with self._refusals_noted():
                settle_and_count(store, own, outcomes, self.counts, stopped, self._discarded)

    @contextmanager
    def _refusals_noted(self) -> Iterator[None]:
        """Note an error of the store instead of raising it, so that later batches run."""
        try:
            yield
        except NotInitialised:
            raise
        except StoreError as error:
            self.refused = True
            self.counts.note_error(error)


def _is_about_columns(error: Exception) -> bool:
    """True if Spark could not plan the step, which would happen with any batch of events."""
    from pyspark.errors import AnalysisException

    return isinstance(error, AnalysisException)
