"""Settlements: outcomes, releases and progress of claimed events, and the answers to stale claimants."""

from collections.abc import Mapping
from typing import Any, NamedTuple, assert_never

from penstock.model import lifecycle
from penstock.model.lifecycle import State
from penstock.model.outcome import PUBLISHED, RELEASED, Dead, Outcome, Retry
from penstock.store.objects.document import Blob, Document, EventRow, HistoryRow, LeaseRow, require_own_objects
from penstock.store.objects.operations.claims import close_if_done, holder


class RequestedOutcome(NamedTuple):
    """An outcome in a request."""

    seq: int
    kind: str
    """Name of the field of `Settlement` that will contain the seq."""
    error: str | None = None
    delay_micros: int = 0
    result: Blob | None = None
    keep: bool = True

    def outcome(self) -> Outcome:
        match self.kind:
            case "published":
                return PUBLISHED
            case "retried":
                return Retry(self.error or "")
            case "dead":
                return Dead(self.error or "")
            case "released":
                return RELEASED
            case _:
                raise ValueError(f"unknown outcome {self.kind!r}")


def settle(document: Document, args: Mapping[str, Any]) -> dict[str, list[int]]:
    """Apply outcomes. Return the seqs by field of `Settlement`."""
    rows = [RequestedOutcome(*row) for row in args["outcomes"]]
    require_own_objects(row.result for row in rows if row.result is not None)
    lease, lease_id = holder(document, args), args["lease_id"]
    settled: dict[str, list[int]] = {}
    for row in rows:
        if lease is not None and document.claimed.get(row.seq) == lease_id:
            kind = _apply(document, lease, row)
        else:
            kind = "already_settled" if _settled_by(document.events.get(row.seq), lease_id) else "lost"
        settled.setdefault(kind, []).append(row.seq)
    if lease is not None:
        close_if_done(document, lease_id)
    return settled


def _apply(document: Document, lease: LeaseRow, row: RequestedOutcome) -> str:
    entry, outcome = document.events[row.seq], row.outcome()
    life = lifecycle.settle(entry.life(), outcome, max_attempts=lease.max_attempts)
    what = "died" if life.state is State.DEAD else row.kind
    step = HistoryRow(document.now, what, life.attempts, lease.lease_id, lease.claimant, row.error)
    match life.state:
        case State.PENDING:
            at = entry.available_at if outcome == RELEASED else document.now + row.delay_micros
            document.put(entry.living(life, step, lease_id=None, available_at=at))
            return row.kind
        case State.PUBLISHED:
            document.put(entry.living(life, settled_at=document.now, result=row.result))
        case State.DEAD:
            document.put(entry.living(life, step, settled_at=document.now))
        case State.CLAIMED:
            raise AssertionError(outcome)
        case _:
            assert_never(life.state)
    if not row.keep:
        document.drop(row.seq)
    return life.state.lower()


def _settled_by(entry: EventRow | None, lease_id: str) -> bool:
    """Return whether a lease has already settled an event or returned the event to its queue."""
    if entry is None:
        return False
    if entry.settled and entry.lease_id == lease_id:
        return True
    steps = (HistoryRow(*row) for row in entry.history)
    return any(step.lease_id == lease_id and step.what in ("retried", "released") for step in steps)


def release(document: Document, args: Mapping[str, Any]) -> int:
    """Return all events under a lease to their queue without counting an attempt. Return their number."""
    lease = holder(document, args)
    if lease is None:
        return 0
    held = document.under(lease.lease_id)
    for entry in held:
        _apply(document, lease, RequestedOutcome(entry.seq, "released"))
    close_if_done(document, lease.lease_id)
    return len(held)


def note(document: Document, args: Mapping[str, Any]) -> list[int]:
    """Store the progress of claimed events. Return the seqs that are still claimed under the lease."""
    require_own_objects(blob for _, blob in args["progress"])
    lease = holder(document, args)
    if lease is None:
        return []
    held = [(seq, blob) for seq, blob in args["progress"] if document.claimed.get(seq) == lease.lease_id]
    for seq, blob in held:
        document.put(document.events[seq]._replace(progress=blob))
    return [seq for seq, _ in held]
