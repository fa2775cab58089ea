"""Settling what a streaming DataFrame claimed: outcomes by (lease, token), and the worst outcome of an event wins.

A step between may have copied, moved or failed rows; the columns seq, lease and token must survive it.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from penstock.config import store_url
from penstock.errors import UsageError
from penstock.event import DEFAULT_QUEUE
from penstock.lifecycle import PUBLISHED, RELEASED, Dead, Outcome, Published, Released, Retry
from penstock.pipeline.stores import store_of
from penstock.store.base import Lease, LeaseId, Settlement, Token

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NEEDED = ("seq", "lease", "token")
OPTIONAL = ("outcome", "error", "delay_seconds")
_SEVERITY: Mapping[type[Outcome], int] = {Published: 0, Released: 1, Retry: 2, Dead: 3}


def settle(batch: "DataFrame", store: str | None = None) -> Settlement:
    """Settle the events of a micro-batch, inside `foreachBatch`.

    Without a column `outcome` (PUBLISHED, RETRY, DEAD or RELEASED; with `error` and `delay_seconds` beside it) all of
    them were published. Reading a batch twice claims it anew: persist it if you read it before.
    """
    missing = [name for name in NEEDED if name not in batch.columns]
    if missing:
        raise UsageError(f"settling needs the columns {', '.join(NEEDED)}; a step dropped {', '.join(missing)}")
    rows = batch.select(*NEEDED, *(name for name in OPTIONAL if name in batch.columns)).collect()
    target = store_of(store_url(store))
    done = [target.settle(lease, outcomes) for lease, outcomes in by_lease(row.asDict() for row in rows).items()]
    return _sum(done)


def by_lease(rows: Iterable[Mapping[str, Any]]) -> dict[Lease, dict[int, Outcome]]:
    """Outcomes by seq under the lease that each row names."""
    named: dict[tuple[str, str], dict[int, Outcome]] = {}
    for row in rows:
        outcomes = named.setdefault((row["lease"], row["token"]), {})
        outcomes[row["seq"]] = worst(outcomes.get(row["seq"], PUBLISHED), _outcome(row))
    leases: dict[Lease, dict[int, Outcome]] = {}
    for (lease, token), outcomes in named.items():
        leases[Lease(LeaseId(UUID(lease)), Token(UUID(token)), DEFAULT_QUEUE)] = outcomes
    return leases


def worst(one: Outcome, other: Outcome) -> Outcome:
    return other if _SEVERITY[type(other)] > _SEVERITY[type(one)] else one


def _outcome(row: Mapping[str, Any]) -> Outcome:
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
            raise UsageError(f"{unknown!r} is not an outcome; there are PUBLISHED, RETRY, DEAD and RELEASED")


def _sum(settlements: Iterable[Settlement]) -> Settlement:
    parts: dict[str, frozenset[int]] = {}
    for settlement in settlements:
        for name in Settlement.__slots__:
            parts[name] = parts.get(name, frozenset()) | getattr(settlement, name)
    return Settlement(**parts)
