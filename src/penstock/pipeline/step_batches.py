"""One micro-batch with a user's step in it, on the driver: claim, run the step, dispatch, settle, and leave nothing.

The step's result is worked out in full before any of it is published, so that a step that fails publishes nothing. Then
the executors hand it over (`penstock.pipeline.handing`), and the driver settles, by lease, with the worst outcome of
each event; what the step has dropped is settled in the same go. A failing step is tried on ever smaller pieces of its
batch: an event that it can't take fails alone.
"""

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from uuid import UUID

from penstock.errors import PenstockError, StoreConflict, StoreUnavailable, UsageError
from penstock.lifecycle import PUBLISHED, RELEASED, Dropped, OrderPolicy, Outcome, Released, Retry
from penstock.pipeline.carry import Errand, Tally
from penstock.pipeline.handing import OUTCOMES, hand_over
from penstock.pipeline.slices import gone, is_sparks, root_cause
from penstock.pipeline.steps import as_deliveries, routes_of
from penstock.publish.failure import error_text, storable
from penstock.store import Store
from penstock.store.base import Lease, LeaseId, Settlement, Token

if TYPE_CHECKING:
    import threading

    from pyspark.sql import DataFrame, Row

    from penstock.pipeline.steps import Step

SPLIT = 10
# After so many events that fail alone, it is not the events.
MAX_GUILTY = 5
LAST_SETTLE_SECONDS = 3.0
STEP_FAILED = "step failed: "
Result = TypeVar("Result")


class Claimed(NamedTuple):
    """What the driver keeps of a claimed event."""

    seq: int
    lease: str
    token: str
    ordering_key: str | None
    created_at: datetime
    attempts: int
    max_attempts: int | None


@dataclass(frozen=True, slots=True)
class Work:
    """What all batches of a relay with a step have in common."""

    errand: Errand
    step: "Step"
    dropped: Dropped
    store: Store
    parallelism: int
    stop: "threading.Event"
    line: tuple[str, int]
    destination_for_workers: Callable[[str], str]


class Own:
    """The leases of a batch, as far as they are this run's: what a newer driver has claimed again is not touched."""

    def __init__(self, store: Store, run: str, lease_ids: Iterable[LeaseId], lease_seconds: float) -> None:
        self._store = store
        self._claimants = f"spark:{run}:"
        self._lease_seconds = lease_seconds
        self.lease_ids = list(lease_ids)

    def know(self, claimed: Iterable[Claimed]) -> None:
        """The batch may come from an earlier run, with more partitions than this one has."""
        seen = (LeaseId(UUID(lease)) for lease in {one.lease for one in claimed})
        self.lease_ids = list(dict.fromkeys([*self.lease_ids, *seen]))

    def leases(self) -> dict[LeaseId, Lease]:
        held = self._store.held(self.lease_ids)
        return {
            one.lease.lease_id: replace(one.lease, lease_seconds=self._lease_seconds)
            for one in held
            if one.claimant.startswith(self._claimants)
        }

    def extend(self) -> None:
        """A heartbeat. If none gets through, settling says what was lost."""
        if leases := list(self.leases().values()):
            self._store.extend(leases)

    def release(self) -> int:
        return sum(self._store.release(lease) for lease in self.leases().values())


class Batch:
    """A micro-batch in hand."""

    def __init__(self, work: Work, own: Own, events: "DataFrame") -> None:
        self.dispatching = False
        self.claimed: list[Claimed] = []
        self.tally = Tally()
        self._work = work
        self._own = own
        self._events = events
        self._outcomes: dict[int, Outcome] = {}
        self._guilty = 0

    def run(self) -> None:
        """Whatever happens, what is not settled goes back: at once here, or when its lease is over."""
        self._events.persist()  # a second action would claim a second time
        try:
            self._claim()
            self._carry()
            self._settle()
        finally:
            self._tidy_up()

    def _claim(self) -> None:
        try:
            rows = self._events.select(*Claimed._fields).collect()
        except Exception as error:
            self._require_java(error)
            if self._work.stop.is_set():
                return  # cut short: what was claimed all the same goes back
            raise
        self.claimed = sorted(Claimed(*row) for row in rows)
        self.tally.claimed = len(self.claimed)
        self._own.know(self.claimed)

    def _carry(self) -> None:
        """The whole batch, or, as long as the step fails, pieces of it in order."""
        pieces: list[Sequence[Claimed]] = [self.claimed] if self.claimed else []
        whole = True
        while pieces and not self._work.stop.is_set():
            piece = self._unblocked(pieces.pop())
            try:
                self._attempt(piece, whole=whole)
            except UsageError:
                raise
            except Exception as error:
                if smaller := self._failed(piece, error):
                    pieces += reversed(smaller)
            whole = False
        for piece in pieces:
            self._note(piece, RELEASED)

    def _attempt(self, piece: Sequence[Claimed], *, whole: bool) -> None:
        """Step and dispatch. Nothing is published before all of the step's result is there."""
        if not piece:
            return
        self.dispatching = False
        events = self._events if whole else self._only(piece)
        routes = routes_of(self._work.step(events), self._work.errand.destination)
        keyed = any(one.ordering_key is not None for one in piece)
        partitions = self._work.parallelism if keyed else None
        frames = {url: as_deliveries(frame, self._events, partitions) for url, frame in routes.items()}
        try:
            for frame in frames.values():
                frame.persist().count()
            self.dispatching = True
            self._enter(piece, [row for url, frame in frames.items() for row in self._dispatch(url, frame)])
        finally:
            for frame in frames.values():
                frame.unpersist()

    def _only(self, piece: Sequence[Claimed]) -> "DataFrame":
        from pyspark.sql import functions as on

        return self._events.where(on.col("seq").isin([one.seq for one in piece]))

    def _dispatch(self, url: str, frame: "DataFrame") -> "list[Row]":
        errand = replace(self._work.errand, destination=self._work.destination_for_workers(url))
        return frame.mapInArrow(partial(hand_over, errand, self._work.line), OUTCOMES).collect()

    def _enter(self, piece: Sequence[Claimed], rows: "Sequence[Row]") -> None:
        from penstock.pipeline.settling import by_lease, worst

        for outcomes in by_lease(row.asDict() for row in rows).values():
            for seq, outcome in outcomes.items():
                self._outcomes[seq] = worst(self._outcomes.get(seq, PUBLISHED), outcome)
        self._note([one for one in piece if one.seq not in self._outcomes], self._work.dropped.outcome)

    def _failed(self, piece: Sequence[Claimed], error: Exception) -> list[Sequence[Claimed]]:
        """Smaller pieces to try next; or, where it can't be narrowed down, all of this one is retried."""
        self._require_java(error)
        if self._work.stop.is_set() and not self.dispatching:
            self._note(piece, RELEASED)  # the step was cut short
            return []
        self._guilty += len(piece) == 1
        if len(piece) > 1 and self._guilty < MAX_GUILTY and not _is_about_columns(error):
            size = -(-len(piece) // SPLIT)
            return [piece[start : start + size] for start in range(0, len(piece), size)]
        cause = f"{STEP_FAILED}{root_cause(str(error)) if is_sparks(error) else error_text(error)}"
        for one in piece:
            self._outcomes[one.seq] = self._retry(one, storable(cause))
        return []

    def _retry(self, one: Claimed, error: str) -> Outcome:
        age_seconds = (datetime.now(UTC) - one.created_at.astimezone(UTC)).total_seconds()
        return self._work.errand.retry.decide(
            error,
            attempts=one.attempts,
            age_seconds=age_seconds,
            roll=random.random(),
            event_max_attempts=one.max_attempts,
        )

    def _unblocked(self, piece: Sequence[Claimed]) -> Sequence[Claimed]:
        """Without the events of ordering keys that an earlier piece of the batch left unfinished."""
        kinds = Released if self._work.errand.order_policy is OrderPolicy.SKIP else Retry | Released
        keys = {one.seq: one.ordering_key for one in self.claimed}
        blocked = {keys.get(seq) for seq, outcome in self._outcomes.items() if isinstance(outcome, kinds)} - {None}
        self._note([one for one in piece if one.ordering_key in blocked], RELEASED)
        return [one for one in piece if one.ordering_key not in blocked]

    def _note(self, piece: Iterable[Claimed], outcome: Outcome) -> None:
        self._outcomes.update({one.seq: outcome for one in piece})

    def _require_java(self, error: Exception) -> None:
        try:
            self._events.sparkSession.sparkContext.defaultParallelism  # noqa: B018
        except Exception:
            raise gone(error) from None

    def _settle(self) -> None:
        """Under the token that counts now, if it is this run's: a partition that had to be read again has a new one."""
        by_lease: dict[Lease, dict[int, Outcome]] = {}
        own = self._patiently(self._own.leases) if self.claimed else {}
        for one in self.claimed:
            lease_id = LeaseId(UUID(one.lease))
            lease = (own or {}).get(lease_id) or Lease(lease_id, Token(UUID(one.token)), self._work.errand.queue)
            by_lease.setdefault(lease, {})[one.seq] = self._outcomes.get(one.seq, RELEASED)
        for lease, outcomes in by_lease.items():
            settlement = self._patiently(partial(self._work.store.settle, lease, outcomes)) or Settlement()
            self.tally.count(settlement)
            self._explain(settlement, outcomes)

    def _patiently(self, verb: Callable[[], Result]) -> Result | None:
        """Through an outage if need be: what was published must not be published again for want of patience."""
        began, backoff, lease_seconds = time.monotonic(), 0.05, self._work.errand.lease_seconds
        while True:
            try:
                return verb()
            except (StoreUnavailable, StoreConflict) as error:
                self.tally.trouble(error)
                patience = min(lease_seconds, LAST_SETTLE_SECONDS) if self._work.stop.is_set() else lease_seconds
                if time.monotonic() - began > patience:
                    return None
                time.sleep(backoff * (1 + random.random()))
                backoff = min(backoff * 2, 1.0)

    def _explain(self, settlement: Settlement, outcomes: dict[int, Outcome]) -> None:
        """Examples of why events failed, for the log."""
        self.tally.explain(replace(settlement, retried=frozenset()), outcomes)
        for error in {str(getattr(outcomes[seq], "error", "")) for seq in settlement.retried}:
            self.tally.trouble(error if error.startswith(STEP_FAILED) else f"publishing failed: {error}")

    def _tidy_up(self) -> None:
        self._events.unpersist()
        try:
            self._own.release()
        except PenstockError as error:
            self.tally.trouble(error)


def _is_about_columns(error: Exception) -> bool:
    """Spark could not even plan it: whatever the events, it never will."""
    from pyspark.errors import AnalysisException

    return isinstance(error, AnalysisException)
