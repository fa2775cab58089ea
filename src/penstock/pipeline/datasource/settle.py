"""Settlement of events that a streaming DataFrame claimed: groups their outcomes by (lease, token).

Transformations may have copied, moved or failed rows: the worst outcome of an event wins. Transformations must keep the
columns seq, lease and token.
"""

import random
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from penstock.config.urls import store_url
from penstock.model.errors import UsageError
from penstock.model.event import DEFAULT_QUEUE
from penstock.model.lease import DEFAULT_LEASE_SECONDS, Lease, LeaseId, Settlement, Token
from penstock.model.outcome import PUBLISHED, RELEASED, Dead, Dropped, Outcome, Published, Released, Retry
from penstock.model.retry import RetryPolicy
from penstock.runtime.store_cache import store_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NEEDED = ("seq", "lease", "token")
OPTIONAL = ("outcome", "error", "delay_seconds")
_SEVERITY: Mapping[type[Outcome], int] = {Published: 0, Released: 1, Retry: 2, Dead: 3}


class ClaimedEvent(NamedTuple):
    """Columns of a claimed event that the driver of a relay reads."""

    seq: int
    event_id: str
    lease: str
    token: str
    ordering_key: str | None
    attempts: int
    deliveries: int
    max_attempts: int | None
    suspect: int
    created_micros: int

    def failed(self, error: str, policy: RetryPolicy) -> Outcome:
        """Return the outcome of one more failed attempt, according to the retry policy."""
        return policy.decide(
            error,
            attempts=self.attempts,
            age_seconds=time.time() - self.created_micros / 1e6,
            roll=random.random(),
            event_max_attempts=self.max_attempts,
        )


def claim_rows(batch: "DataFrame") -> list[ClaimedEvent]:
    """Claim the events of a micro-batch; return them ordered by seq, without payloads. Persist the batch first."""
    from pyspark.sql import functions as on

    rows = batch.select(*ClaimedEvent._fields[:-1], on.unix_micros("created_at")).collect()
    return sorted(ClaimedEvent(*row) for row in rows)


def settle(
    batch: "DataFrame",
    store: str | None = None,
    *,
    outcomes: Mapping[int, Outcome] | None = None,
    dropped: Dropped | str = Dropped.DEAD,
) -> Settlement:
    """Settle the events of a micro-batch, inside `foreachBatch`.

    With `outcomes`, as returned by `publish`, `batch` is the batch as it was claimed. Events without an outcome were
    dropped by a transformation and get the outcome that `dropped` selects. Without `outcomes`, the column `outcome`
    decides (PUBLISHED, RETRY, DEAD or RELEASED; with the optional columns `error` and `delay_seconds`), and without
    that column every event of the batch is published. Reading a batch again claims again: persist a batch that is read
    before it is settled.
    """
    missing = [name for name in NEEDED if name not in batch.columns]
    if missing:
        raise UsageError(f"missing columns: {', '.join(missing)}; a step must keep {', '.join(NEEDED)}")
    otherwise = _dropped(dropped).outcome
    optional = () if outcomes is not None else (name for name in OPTIONAL if name in batch.columns)
    rows = (row.asDict() for row in batch.select(*NEEDED, *optional).collect())
    target = store_of(store_url(store))
    if outcomes is None:
        grouped = by_lease(rows)
    else:
        grouped = grouped_by_lease((row, outcomes.get(row["seq"], otherwise)) for row in rows)
    return _sum(target.settle(lease, given) for lease, given in grouped.items())


def by_lease(rows: Iterable[Mapping[str, Any]]) -> dict[Lease, dict[int, Outcome]]:
    """Group the outcomes in the rows by lease, then by seq."""
    return grouped_by_lease((row, outcome_of(row)) for row in rows)


def grouped_by_lease(
    rows: Iterable[tuple[Mapping[str, Any], Outcome]], lease_seconds: float = DEFAULT_LEASE_SECONDS
) -> dict[Lease, dict[int, Outcome]]:
    """Group outcomes by the lease in their row, then by seq; the worst outcome of an event wins."""
    named: dict[tuple[str, str], dict[int, Outcome]] = {}
    for row, outcome in rows:
        outcomes = named.setdefault((row["lease"], row["token"]), {})
        outcomes[row["seq"]] = worst(outcomes.get(row["seq"], PUBLISHED), outcome)
    return {
        Lease(LeaseId(UUID(lease)), Token(UUID(token)), DEFAULT_QUEUE, lease_seconds): outcomes
        for (lease, token), outcomes in named.items()
    }


def _dropped(given: Dropped | str) -> Dropped:
    try:
        return Dropped(given)
    except ValueError:
        raise UsageError(f"unknown value {given!r} for dropped; expected one of {', '.join(Dropped)}") from None


def worst(one: Outcome, other: Outcome) -> Outcome:
    return other if _SEVERITY[type(other)] > _SEVERITY[type(one)] else one


def outcome_of(row: Mapping[str, Any]) -> Outcome:
    """Return the outcome in the columns `outcome`, `error` and `delay_seconds` of a row."""
    error = row.get("error") or "failed in a pipeline step"
    match (row.get("outcome") or "PUBLISHED").upper():
        case "PUBLISHED":
            return PUBLISHED
        case "RELEASED":
            return RELEASED
        case "RETRY":
            return Retry(error, row.get("delay_seconds"))
        case "DEAD":
            return Dead(error)
        case unknown:
            raise UsageError(f"unknown outcome {unknown!r}; expected one of PUBLISHED, RETRY, DEAD, RELEASED")


def fields_of(outcome: Outcome) -> tuple[str, str | None, float | None]:
    """Return the values of the columns `outcome`, `error` and `delay_seconds` for an outcome."""
    match outcome:
        case Published():
            return "PUBLISHED", None, None
        case Released():
            return "RELEASED", None, None
        case Retry(error=error, delay_seconds=delay):
            return "RETRY", error, delay
        case Dead(error=error):
            return "DEAD", error, None


def _sum(settlements: Iterable[Settlement]) -> Settlement:
    parts: dict[str, frozenset[int]] = {}
    for settlement in settlements:
        for name in Settlement.__slots__:
            parts[name] = parts.get(name, frozenset()) | getattr(settlement, name)
    return Settlement(**parts)
