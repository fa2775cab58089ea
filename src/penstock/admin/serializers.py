"""Events and their timelines as JSON-ready values: the same shape for the command line, HTTP and the dashboard."""

from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from operator import itemgetter
from typing import Any

from penstock.model.lifecycle import State
from penstock.model.records import HistoryEntry, Note, Record, plain
from penstock.model.stats import QueueControl
from penstock.model.text import payload_text
from penstock.store.api import CANCELLED

Document = dict[str, Any]


def event_document(record: Record) -> Document:
    """Every field of the event. A payload that is not UTF-8 is in base64, and `payload_encoding` says so."""
    document = {field.name: plain(getattr(record, field.name)) for field in fields(Record) if field.name != "payload"}
    document["payload"], document["payload_encoding"] = payload_text(record.payload)
    return document


def note_document(note: Note) -> Document:
    """How far the event has come and what came of it, encoded as its payload is."""
    document: Document = {}
    for name, said in (("progress", note.progress), ("result", note.result)):
        document[name], document[f"{name}_encoding"] = (None, None) if said is None else payload_text(said)
    return document


def control_document(control: QueueControl) -> Document:
    return {field.name: plain(getattr(control, field.name)) for field in fields(QueueControl)}


def copy_document(record: Record) -> Document:
    """What of a copy may differ from the event that it is a copy of."""
    names = ("queue", "state", "attempts", "deliveries", "replays", "last_error", "claimed_by", "settled_at")
    return {name: plain(getattr(record, name)) for name in names}


def timeline(records: Sequence[Record], history: Sequence[HistoryEntry]) -> list[Document]:
    """The life of an event and its copies: what the history recorded, between its emit and where it stands now."""
    first = records[-1]
    entries = [_entry(first.created_at, "emitted", detail=f"into queue {first.queue}")]
    entries += [_entry(entry.at, entry.what, entry.attempts, entry.by, _detail(entry)) for entry in history]
    if len(records) == 1:
        return entries + _standing(first)
    standing = [{**entry, "detail": f"in queue {record.queue}"} for record in records for entry in _standing(record)]
    return entries + sorted(standing, key=itemgetter("at"))


def _standing(record: Record) -> list[Document]:
    """Where the event is now. Deaths are in the history; the plain good way is not, so it is told from the state."""
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
    """A cancellation without a reason says so by its name alone."""
    return None if (entry.what, entry.detail) == ("cancelled", CANCELLED) else entry.detail


def _entry(at: datetime, what: str, attempts: int = 0, by: str | None = None, detail: str | None = None) -> Document:
    return {"at": at.isoformat(), "what": what, "attempts": attempts, "by": by, "detail": detail}
