"""Claims and their leases: new and repeated claims, heartbeats and reaping."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from penstock.model import lifecycle
from penstock.model.lifecycle import State, fitting
from penstock.store.objects.document import Document, EventRow, HistoryRow, LeaseRow

# UUID version of the lease ids that the store generates. Such an id without an open lease is known to be closed, so
# closed ids of this version need not be stored.
OWN_VERSION = "8"


def claim(document: Document, args: Mapping[str, Any]) -> dict[str, Any]:
    """Claim events, or repeat a claim whose lease id is known. Return the seqs of the events under the lease."""
    lease_id = args["lease_id"]
    row = document.leases.get(lease_id)
    if row is not None:
        seqs = _repeat(document, row, args)
    elif args["given"] and (lease_id in document.closed or lease_id[12] == OWN_VERSION):
        return {"seqs": [], "repeated": True}
    else:
        seqs = _begin(document, args)
    if lease_id in document.leases:
        close_if_done(document, lease_id)
    return {"seqs": seqs, "repeated": row is not None}


def claimed(document: Document, args: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a claim, with those events that are still claimed under its token."""
    lease = holder(document, args)
    held = [] if lease is None else [seq for seq in answer["seqs"] if document.claimed.get(seq) == lease.lease_id]
    events = sorted(
        (document.events[seq] for seq in held), key=lambda entry: (-entry.priority, entry.available_at, entry.seq)
    )
    return {"events": events, "repeated": answer["repeated"]}


def holder(document: Document, args: Mapping[str, Any]) -> LeaseRow | None:
    """Return the lease that a request names; None if the lease is closed or the token is not the newest."""
    row = document.leases.get(args["lease_id"])
    return row if row is not None and row.token == args["token"] else None


def ready(document: Document, queue: str, types: Sequence[str] | None = None) -> Iterator[EventRow]:
    """Yield the due events of a queue by priority, time and seq; none if the queue is paused."""
    ranks, place = [] if queue in document.paused else document.ready.get(queue, []), 0
    while place < len(ranks):
        rank, at, seq = ranks[place]
        if at > document.now:
            place = bisect_left(ranks, (rank + 1,))  # the later events of this priority are not due either
            continue
        entry = document.events[seq]
        if types is None or entry.event_type in types:
            yield entry
        place += 1


def _begin(document: Document, args: Mapping[str, Any]) -> list[int]:
    chosen = list(islice(ready(document, args["queue"], args["types"]), args["limit"]))
    chosen = chosen[: fitting((entry.suspect for entry in chosen), args["limit"])]
    if chosen or args["given"]:
        times = {"claimed_at": document.now, "expires_at": document.now + args["lease_micros"]}
        named = {name: args[name] for name in ("lease_id", "queue", "claimant", "token", "max_attempts", "given")}
        document.leases[args["lease_id"]] = LeaseRow(**named, **times)
        document.changed = True
    for entry in chosen:
        document.put(entry.living(lifecycle.claim(entry.life()), lease_id=args["lease_id"]))
    return [entry.seq for entry in chosen]


def _repeat(document: Document, row: LeaseRow, args: Mapping[str, Any]) -> list[int]:
    """Give a repeated claim a new token and more time. A different claimant counts as a lost attempt."""
    expires_at = max(row.expires_at, document.now + args["lease_micros"])
    new_claimant = row.claimant != args["claimant"]
    row = row._replace(token=args["token"], claimant=args["claimant"], expires_at=expires_at)
    document.leases[row.lease_id] = row
    document.changed = True
    if new_claimant:
        _count_lost(document, row, args["limit"])
    return [entry.seq for entry in document.under(row.lease_id)]


def _count_lost(document: Document, row: LeaseRow, limit: int) -> None:
    """Count a lost attempt for each event of a lease. Events that no longer fit, as suspects, return to the queue."""
    held = sorted(document.under(row.lease_id), key=lambda entry: (entry.available_at, entry.seq))
    dead = [entry for entry in held if lifecycle.exhausted(entry.life(), row.max_attempts)]
    alive = [entry for entry in held if not lifecycle.exhausted(entry.life(), row.max_attempts)]
    stay = fitting((min(entry.suspect + 1, lifecycle.MAX_SUSPECT) for entry in alive), limit)
    for entry in dead + alive[stay:]:
        _lose(document, entry, row, what="lost", error="attempt lost")
    for entry in alive[:stay]:
        life = lifecycle.expire(entry.life(), max_attempts=row.max_attempts, error="attempt lost")
        step = HistoryRow(document.now, "lost", life.attempts, row.lease_id, row.claimant, "attempt lost")
        document.put(entry.living(lifecycle.claim(life), step))


def _lose(document: Document, entry: EventRow, row: LeaseRow, *, what: str, error: str) -> None:
    """Return an event of a lost lease to its queue; make it dead if that was its last attempt."""
    life = lifecycle.expire(entry.life(), max_attempts=row.max_attempts, error=error)
    died = life.state is State.DEAD
    what = "died" if died else what
    step = HistoryRow(document.now, what, life.attempts, row.lease_id, row.claimant, error)
    changes = {"settled_at": document.now} if died else {"lease_id": None}
    document.put(entry.living(life, step, **changes))


def close_if_done(document: Document, lease_id: str) -> None:
    """Close a lease without claimed events. Remember the lease id for a day if the claimant chose the id."""
    if lease_id in document.held:
        return
    if document.leases.pop(lease_id).given:
        document.closed[lease_id] = document.now
    document.changed = True


def extend(document: Document, args: Mapping[str, Any]) -> list[int]:
    """Extend leases up to their maximum age. Return the positions, in the request, of the extended leases."""
    held: list[int] = []
    for place, (lease_id, token, micros) in enumerate(args["leases"]):
        row = document.leases.get(lease_id)
        if row is None or row.token != token or row.claimed_at + args["max_age"] <= document.now:
            continue
        expires_at = max(row.expires_at, min(document.now + micros, row.claimed_at + args["max_age"]))
        document.leases[lease_id] = row._replace(expires_at=expires_at)
        document.changed = True
        held.append(place)
    return held


def reap(document: Document, args: Mapping[str, Any]) -> int:
    """Return the events of expired leases to their queues, whole leases, longest expired first. Return their number."""
    total = 0
    expired = [row for row in document.leases.values() if row.expires_at < document.now]
    for row in sorted(expired, key=lambda row: row.expires_at):
        count = document.held.get(row.lease_id, 0)
        if total and total + count > args["limit"]:
            break
        for entry in document.under(row.lease_id):
            _lose(document, entry, row, what="reaped", error="lease expired")
        close_if_done(document, row.lease_id)
        total += count
    return total
