"""Emitted events as bytes, for as long as a state store keeps them: one line of JSON, then the payload as it is."""

import json
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.model.errors import InvalidEvent
from penstock.model.event import DEDUPE_SECONDS, DEFAULT_QUEUE, Event, EventId

_USUAL: dict[str, Any] = {
    "queue": DEFAULT_QUEUE,
    "headers": {},
    "partition_key": None,
    "ordering_key": None,
    "priority": 0,
    "delay_seconds": None,
    "max_attempts": None,
    "dedupe_key": None,
    "dedupe_seconds": DEDUPE_SECONDS,
}
_encode = json.JSONEncoder(separators=(",", ":")).encode  # escapes line ends, so the first one ends the line


def pack_event(event: Event) -> bytes:
    """The event as bytes. Without an id it could come out twice as two events, and is refused."""
    if event.event_id is None:
        raise InvalidEvent("an event that a stream emits needs an id before it is kept")
    fields: dict[str, Any] = {"event_id": str(event.event_id), "event_type": event.event_type}
    for name, usual in _USUAL.items():
        value = getattr(event, name)
        if value != usual:
            fields[name] = dict(value) if name == "headers" else value
    if event.available_at is not None:
        fields["available_at"] = event.available_at.isoformat()
    return _encode(fields).encode() + b"\n" + event.payload


def unpack_event(packed: bytes) -> Event:
    """The event that `pack_event` made these bytes of."""
    head, _, payload = packed.partition(b"\n")
    fields = json.loads(head)
    fields["event_id"] = EventId(UUID(fields["event_id"]))
    if "available_at" in fields:
        fields["available_at"] = datetime.fromisoformat(fields["available_at"])
    return Event(payload=payload, **fields)
