"""Emits: add new events, after a check of deduplication windows and event ids."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock.model.errors import InvalidEvent, StoreError
from penstock.store.objects.document import Document, EventRow, require_own_objects

DOCUMENT_LIMIT = 64 * 1024 * 1024


class NewEvent(NamedTuple):
    """An event in a request. Its entry has no seq and no times yet."""

    entry: Sequence[Any]
    given: bool
    """True if the caller chose the event id, so that an event in the document may already have it."""
    delay_micros: int | None
    """Delay in microseconds; None if the entry has its own `available_at`."""
    dedupe_key: str | None
    dedupe_micros: int


def append(document: Document, args: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Add all events or none. Return the duplicates: place in the batch, and id of the event already emitted."""
    if document.size > DOCUMENT_LIMIT:
        raise StoreError(
            f"queue document must be at most {DOCUMENT_LIMIT // 2**20} MB to accept events, "
            f"got {document.size // 2**20} MB; settle events or purge dead ones"
        )
    events = [(NewEvent(*row), EventRow(*row[0])) for row in args["events"]]
    require_own_objects(blob for _, entry in events for blob in entry.blobs)
    duplicates, windows = _duplicates(document, events)
    skipped = dict(duplicates)
    fresh = [row for place, row in enumerate(events) if place not in skipped]
    if any(event.given and entry.event_id in document.ids for event, entry in fresh):
        raise InvalidEvent("an event with this event_id already exists; use another event_id")
    for event, entry in fresh:
        document.last_seq += 1
        at = entry.available_at if event.delay_micros is None else document.now + event.delay_micros
        document.put(entry._replace(seq=document.last_seq, created_at=document.now, available_at=at))
    document.windows.update(windows)
    return duplicates


def _duplicates(
    document: Document, events: Sequence[tuple[NewEvent, EventRow]]
) -> tuple[list[tuple[int, str]], dict[tuple[str, str], tuple[str, int]]]:
    """Return the events whose deduplication window is open, and the windows that the remaining events open."""
    duplicates: list[tuple[int, str]] = []
    windows: dict[tuple[str, str], tuple[str, int]] = {}
    for place, (event, entry) in enumerate(events):
        if event.dedupe_key is None:
            continue
        key = (entry.queue, event.dedupe_key)
        first = windows.get(key) or document.windows.get(key)
        if first is not None and first[1] > document.now:
            duplicates.append((place, first[0]))
        else:
            windows[key] = (entry.event_id, document.now + event.dedupe_micros)
    return duplicates, windows
