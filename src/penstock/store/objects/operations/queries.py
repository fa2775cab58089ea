"""Queries: read a document without changing it."""

from collections import Counter
from collections.abc import Mapping
from heapq import nlargest
from typing import Any

from penstock.model.dead_letters import count_by_kind
from penstock.model.error_kinds import BEGINNING
from penstock.model.lifecycle import State
from penstock.store.objects.document import Document, EventRow
from penstock.store.objects.operations import claims
from penstock.store.objects.operations.selections import chosen

ERROR_LENGTH = 200
TOP_ERRORS = 5


def find(document: Document, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return a page of entries, newest first, each with its lease if it is claimed."""
    before = float("inf") if args["after"] is None else args["after"]
    found = nlargest(args["limit"] + 1, (one for one in chosen(document, args["selection"]) if one.seq < before))
    page = found[: args["limit"]]
    return {
        "records": [(entry._replace(history=()), _holder(document, entry)) for entry in page],
        "after": page[-1].seq if len(found) > len(page) else None,
    }


def _holder(document: Document, entry: EventRow) -> tuple[int, str, int] | None:
    if entry.state != State.CLAIMED:
        return None
    row = document.leases[entry.lease_id or ""]
    return row.claimed_at, row.claimant, row.expires_at


def history(document: Document, args: Mapping[str, Any]) -> Any:
    """Return the history of an event, oldest transition first."""
    seq = document.ids.get(args["event_id"])
    return () if seq is None else document.events[seq].history


def counts(document: Document, args: Mapping[str, Any]) -> list[tuple[str, str, str, int]]:
    """Count the settled or the unsettled events of a selection by state, queue and type, largest count first."""
    entries = (entry for entry in chosen(document, args["selection"]) if entry.settled == args["settled"])
    found = Counter((entry.state, entry.queue, entry.event_type) for entry in entries)
    return sorted(((*kind, count) for kind, count in found.items()), key=lambda row: (-row[3], row[:3]))


def deaths(document: Document, args: Mapping[str, Any]) -> list[EventRow]:
    """Return up to `limit` + 1 dead events, latest death first, without payloads and with shortened errors."""
    before = (float("inf"), 0) if args["after"] is None else tuple(args["after"])
    marked = ((entry.settled_at or 0, entry.seq, entry) for entry in chosen(document, args["selection"]))
    found = nlargest(args["limit"] + 1, (row for row in marked if row[:2] < before))
    return [
        entry._replace(payload="", headers=None, history=(), last_error=(entry.last_error or "")[:BEGINNING])
        for *_, entry in found
    ]


def death_counts(document: Document, args: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """Count dead events by queue and kind of error, largest count first."""
    found = count_by_kind((entry.queue, entry.last_error, 1) for entry in chosen(document, args["selection"]))
    return [(one.queue, one.error, one.count) for one in found]


def bounds(document: Document, _: Mapping[str, Any]) -> tuple[int, int]:
    return (min(document.events), max(document.events)) if document.events else (1, 0)


def stats(document: Document, _: Mapping[str, Any]) -> dict[str, Any]:
    dead = (entry.last_error or "" for entry in document.events.values() if entry.state == State.DEAD)
    return {
        "queues": sorted(_queues(document).items()),
        "open_leases": len(document.leases),
        "expired_leases": sum(row.expires_at < document.now for row in document.leases.values()),
        "relays": sorted(document.relays.values(), key=lambda relay: relay.started_at),
        "dead_errors": Counter(error[:ERROR_LENGTH] for error in dead).most_common(TOP_ERRORS),
        "purged": document.purged,
        "now": document.now,
    }


def _queues(document: Document) -> dict[str, dict[str, Any]]:
    """Return the counts of `QueueStats` by queue, and the time of the oldest pending event."""
    queues: dict[str, dict[str, Any]] = {}
    for entry in document.events.values():
        found = queues.setdefault(entry.queue, {})
        state = entry.state.lower()
        found[state] = found.get(state, 0) + 1
        if entry.state == State.PENDING:
            found["ready"] = found.get("ready", 0) + (entry.available_at <= document.now)
            found["oldest"] = min(entry.available_at, found.get("oldest", entry.available_at))
    return queues


def ready(document: Document, args: Mapping[str, Any]) -> bool:
    """Return whether a claim would take an event now."""
    return any(True for _ in claims.ready(document, args["queue"], args["types"]))


def heads(document: Document, args: Mapping[str, Any]) -> list[tuple[int, int, int, str]]:
    """Return rank, time, seq and queue of the first claimable event of each queue, sorted."""
    queues = (queue for queue in document.ready if queue.startswith(args["prefix"]))
    wanted = (queue for queue in queues if args["queues"] is None or queue in args["queues"])
    found = (next(claims.ready(document, queue), None) for queue in wanted)
    return sorted((-one.priority, one.available_at, one.seq, one.queue) for one in found if one is not None)


def held(document: Document, args: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return id, token, queue and claimant of the open leases among those requested."""
    rows = (document.leases.get(lease_id) for lease_id in dict.fromkeys(args["lease_ids"]))
    return [(row.lease_id, row.token, row.queue, row.claimant) for row in rows if row is not None]


def notes(document: Document, args: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return id, progress and result of these events; omit events with neither progress nor result."""
    found = (document.events[document.ids[one]] for one in set(args["ids"]) if one in document.ids)
    return [(one.event_id, one.progress, one.result) for one in found if one.progress or one.result]


def paused(document: Document, _: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    """Return the paused queues by name, with the time of the pause and its operator."""
    return [(queue, at, by) for queue, (at, by) in sorted(document.paused.items())]


def stopping(document: Document, args: Mapping[str, Any]) -> bool:
    relay = document.relays.get(args["relay_id"])
    return relay is not None and relay.stopping


def now(document: Document, _: Mapping[str, Any]) -> int:
    return document.now
