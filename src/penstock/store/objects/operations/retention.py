"""Retention of settled events and bookkeeping in the document, and `purge`."""

from collections.abc import Callable, Mapping
from typing import Any

from penstock.model.lifecycle import State
from penstock.store.objects.document import MICROS, Document, EventRow
from penstock.store.objects.operations.selections import chosen

# Settled events are kept so that repeated settles are recognised and results can be read. Each write contains all of
# them, so only the newest 1,000 are kept, and up to 4,000 of those settled in the last minute. A busy queue settles
# 4,000 events in a few seconds, and therefore keeps its events for a few seconds only.
KEPT_EVENTS, MOST_EVENTS = 1_000, 4_000
KEPT_MICROS = 60 * MICROS
MOST_CHARACTERS = 4 * 1024 * 1024

LEASE_RETENTION = 86_400 * MICROS
RELAY_RETENTION = 300 * MICROS
SESSION_RETENTION = 900 * MICROS
CLOSED_KEPT = 5_000
SESSIONS_KEPT = 10_000
TEND_EVERY = 100


def purge(document: Document, args: Mapping[str, Any]) -> int:
    """Delete the settled events of a selection. Return their number."""
    settled = [entry for entry in chosen(document, args["selection"]) if entry.settled]
    for entry in settled:
        _delete(document, entry)
    return len(settled)


def _delete(document: Document, entry: EventRow) -> None:
    """Delete an event. Deleted PUBLISHED events remain in the count of their queue."""
    if entry.state == State.PUBLISHED:
        document.purged[entry.queue] = document.purged.get(entry.queue, 0) + 1
    document.drop(entry.seq)


def _surplus(document: Document) -> list[EventRow]:
    """Return the PUBLISHED events to delete. DEAD events are kept until they are replayed or purged."""
    count, size, found = len(document.published), document.published_size, []
    for seq in document.published:
        entry = document.events[seq]
        recent = (entry.settled_at or 0) > document.now - KEPT_MICROS
        if count <= (MOST_EVENTS if recent else KEPT_EVENTS) and size <= MOST_CHARACTERS:
            break
        found.append(entry)
        count, size = count - 1, size - entry.weight
    return found


def prune(document: Document) -> None:
    """Delete events and bookkeeping past their retention, in every commit pass that writes, even without `maintain`."""
    for entry in _surplus(document):
        _delete(document, entry)
    if document.version % TEND_EVERY == 0:
        tend(document, {})
    bounded: list[tuple[dict[str, Any], int]] = [(document.closed, CLOSED_KEPT), (document.sessions, SESSIONS_KEPT)]
    for kept, most in bounded:
        for name in list(kept)[: max(len(kept) - most, 0)]:
            del kept[name]


def tend(document: Document, _: Mapping[str, Any]) -> None:
    """Delete the closed leases, deduplication windows, relays and sessions whose retention has ended."""
    now = document.now
    _forget(document, document.closed, lambda at: at < now - LEASE_RETENTION)
    _forget(document, document.windows, lambda window: window[1] < now)
    _forget(document, document.relays, lambda relay: relay.seen_at < now - RELAY_RETENTION)
    _forget(document, document.sessions, lambda session: session.at < now - SESSION_RETENTION)


def _forget(document: Document, kept: dict[Any, Any], over: Callable[[Any], bool]) -> None:
    for name in [name for name, value in kept.items() if over(value)]:
        del kept[name]
        document.changed = True
