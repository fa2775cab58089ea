"""Operator controls (pause, resume, cancel, replay), and the announcements of relays and workers."""

from collections.abc import Mapping
from typing import Any

from penstock.model import lifecycle
from penstock.store.objects.document import Document, HistoryRow, RelayRow
from penstock.store.objects.operations.claims import close_if_done
from penstock.store.objects.operations.selections import chosen


def pause(document: Document, args: Mapping[str, Any]) -> None:
    """Pause a queue. Time and operator of an earlier pause are kept."""
    if args["queue"] not in document.paused:
        document.paused[args["queue"]] = (document.now, args["by"])
        document.changed = True


def resume(document: Document, args: Mapping[str, Any]) -> bool:
    """End a pause. Return whether the queue was paused."""
    found = document.paused.pop(args["queue"], None) is not None
    document.changed = document.changed or found
    return found


def cancel(document: Document, args: Mapping[str, Any]) -> int:
    """Make the unsettled events of a selection dead. Return their number."""
    unsettled = [entry for entry in chosen(document, args["selection"]) if not entry.settled]
    for entry in unsettled:
        life = lifecycle.cancel(entry.life(), args["reason"])
        step = HistoryRow(document.now, "cancelled", life.attempts, entry.lease_id, args["by"], args["reason"])
        # Without the lease id, so that the claimant's settle reports the event as lost, not as already settled.
        document.put(entry.living(life, step, settled_at=document.now, lease_id=None))
        if entry.lease_id is not None:
            close_if_done(document, entry.lease_id)
    return len(unsettled)


def replay(document: Document, args: Mapping[str, Any]) -> int:
    """Make the settled events of a selection pending. Return their number."""
    settled = [entry for entry in chosen(document, args["selection"]) if entry.settled]
    for entry in settled:
        why = f"was {entry.state}" if entry.last_error is None else f"was {entry.state}: {entry.last_error}"
        step = HistoryRow(document.now, "replayed", entry.attempts, None, args["by"], why)
        fresh = {"available_at": document.now, "settled_at": None, "lease_id": None, "progress": None, "result": None}
        document.put(entry.living(lifecycle.replay(entry.life()), step, **fresh))
    return len(settled)


def beat(document: Document, args: Mapping[str, Any]) -> bool:
    """Record the heartbeat of a relay. Return whether the relay has been asked to stop."""
    row = RelayRow(**args, started_at=document.now, seen_at=document.now)
    known = document.relays.get(row.relay_id)
    if known is not None:
        row = known._replace(seen_at=document.now, stopping=known.stopping or row.stopping)
    document.relays[row.relay_id] = row
    document.changed = True
    return row.stopping


def forget(document: Document, args: Mapping[str, Any]) -> None:
    """Delete the announcement of a relay that has ended."""
    if document.relays.pop(args["relay_id"], None) is not None:
        document.changed = True
