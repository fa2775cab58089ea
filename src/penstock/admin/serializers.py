"""JSON-ready forms of events and their timelines, shared by the command line, HTTP and the dashboard."""

from collections.abc import Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any

from penstock.model.lifecycle import State
from penstock.model.records import HistoryEntry, Note, Record
from penstock.model.text import payload_text, plain_fields
from penstock.store.api import CANCELLED

Document = dict[str, Any]


def event_document(record: Record) -> Document:
    """Return every field of the event. A payload that is not UTF-8 is in base64, as `payload_encoding` states."""
    document = plain_fields(record, without="payload")
    document["payload"], document["payload_encoding"] = payload_text(record.payload)
    return document


def note_document(note: Note) -> Document:
    """Return the event's progress and result, encoded like its payload."""
    document: Document = {}
    for name, said in (("progress", note.progress), ("result", note.result)):
        document[name], document[f"{name}_encoding"] = (None, None) if said is None else payload_text(said)
    return document


def copy_document(record: Record) -> Document:
    """Return the fields in which a copy may differ from the original event."""
    names = ("queue", "state", "attempts", "deliveries", "replays", "last_error", "claimed_by", "settled_at")
    document = plain_fields(record, without="payload")
    return {name: document[name] for name in names}


def timeline(records: Sequence[Record], history: Sequence[HistoryEntry]) -> list[Document]:
    """Return the timeline of an event and its copies: its emit, the recorded history, its current state."""
    first = records[-1]
    entries = [_entry(first.created_at, "emitted", detail=f"into queue {first.queue}")]
    entries += [_entry(entry.at, entry.what, entry.attempts, entry.by, _detail(entry)) for entry in history]
    if len(records) == 1:
        return entries + _standing(first)
    standing = [{**entry, "detail": f"in queue {record.queue}"} for record in records for entry in _standing(record)]
    return entries + sorted(standing, key=itemgetter("at"))


def _standing(record: Record) -> list[Document]:
    """Return the entry of the current state. The history records deaths, but no claims and successful deliveries."""
    match record.state:
        case State.PENDING:
            waits = record.available_at > record.created_at
            return [_entry(record.available_at, "due", record.attempts)] if waits else []
        case State.CLAIMED:
            assert record.claimed_at is not None
            assert record.lease_expires_at is not None
            until = f"until {record.lease_expires_at.isoformat()}"
            return [_entry(record.claimed_at, "claimed", record.attempts, record.claimed_by, until)]
        case State.PUBLISHED:
            assert record.published_at is not None
            return [_entry(record.published_at, "published", record.attempts)]
        case State.DEAD:
            return []


def _detail(entry: HistoryEntry) -> str | None:
    """Return the entry's detail; None for the default reason of a cancellation, which only repeats the entry's name."""
    return None if (entry.what, entry.detail) == ("cancelled", CANCELLED) else entry.detail


def _entry(at: datetime, what: str, attempts: int = 0, by: str | None = None, detail: str | None = None) -> Document:
    return {"at": at.isoformat(), "what": what, "attempts": attempts, "by": by, "detail": detail}
