"""Counts of events by outcome, and a settle that updates them."""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field

from penstock.model.lease import Lease, Settlement
from penstock.model.outcome import Outcome
from penstock.runtime.retrying import insist
from penstock.store.api import Store

MAX_ERRORS = 5
STEP_FAILED = "step failed: "


@dataclass(slots=True)
class EventCounts:
    """Counts of events by outcome."""

    claimed: int = 0
    published: int = 0
    discarded: int = 0
    """Events settled as published without being sent, because the step dropped them."""
    retried: int = 0
    dead: int = 0
    released: int = 0
    lost: int = 0
    routed: int = 0


@dataclass(slots=True)
class SliceCounts(EventCounts):
    """Counts of one slice on one task."""

    drained: bool = False
    errors: list[str] = field(default_factory=list)
    dead_errors: list[str] = field(default_factory=list)

    def count(self, settlement: Settlement, discarded: Set[int] = frozenset()) -> None:
        self.published += len(settlement.published - discarded)
        self.discarded += len(settlement.published & discarded)
        self.retried += len(settlement.retried)
        self.dead += len(settlement.dead)
        self.released += len(settlement.released)
        self.lost += len(settlement.lost)

    def note_error(self, error: Exception | str) -> None:
        _note(self.errors, str(error) or type(error).__name__)

    def explain(self, settlement: Settlement, outcomes: Mapping[int, Outcome]) -> None:
        """Note one example error of the retried and one of the dead events, for the log."""
        if settlement.retried:
            error = _first_error(settlement.retried, outcomes)
            self.note_error(error if error.startswith(STEP_FAILED) else f"publishing failed: {error}")
        if settlement.dead:
            _note(self.dead_errors, _first_error(settlement.dead, outcomes))


def settle_and_count(
    store: Store,
    lease: Lease,
    outcomes: Mapping[int, Outcome],
    counts: SliceCounts,
    stopped: Callable[[], bool],
    discarded: Set[int] = frozenset(),
) -> Settlement | None:
    """Settle and count the outcomes, retrying while the store is unavailable.

    Return None if the outage lasts longer than the lease or, once `stopped` returns True, than a few seconds.
    """
    settlement = insist(lambda: store.settle(lease, outcomes), lease.lease_seconds, stopped, counts.note_error)
    if settlement is not None:
        counts.count(settlement, discarded)
        counts.explain(settlement, outcomes)
    return settlement


def _note(errors: list[str], error: str) -> None:
    """Append an error unless it is already noted or `MAX_ERRORS` are."""
    if error not in errors and len(errors) < MAX_ERRORS:
        errors.append(error)


def _first_error(failed: frozenset[int], outcomes: Mapping[int, Outcome]) -> str:
    return next(str(getattr(outcome, "error", "")) for seq, outcome in outcomes.items() if seq in failed)
