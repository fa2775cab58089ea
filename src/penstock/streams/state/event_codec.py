"""Encoding of emitted events in a state store: one line of JSON, followed by the unchanged payload."""

import json
from dataclasses import fields
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.model.errors import InvalidEvent
from penstock.model.event import Event, EventId

_PLAIN = Event(event_type="plain")
_SPELT_OUT = ("event_type", "payload", "available_at", "event_id")
_USUAL = {field.name: getattr(_PLAIN, field.name) for field in fields(Event) if field.name not in _SPELT_OUT}
_encode = json.JSONEncoder(separators=(",", ":")).encode  # escapes line breaks, so the first line break ends the JSON


def pack_event(event: Event) -> bytes:
    """Return the event as bytes. An event without an id is rejected: unpacked twice, it could become two events."""
    if event.event_id is None:
        raise InvalidEvent("missing event_id of an emitted event")
    given: dict[str, Any] = {"event_id": str(event.event_id), "event_type": event.event_type}
    for name, usual in _USUAL.items():
        value = getattr(event, name)
        if value != usual:
            given[name] = dict(value) if name == "headers" else value
    if event.available_at is not None:
        given["available_at"] = event.available_at.isoformat()
    return _encode(given).encode() + b"\n" + event.payload


def unpack_event(packed: bytes) -> Event:
    """Return the event that `pack_event` encoded."""
    head, _, payload = packed.partition(b"\n")
    given = json.loads(head)
    given["event_id"] = EventId(UUID(given["event_id"]))
    if "available_at" in given:
        given["available_at"] = datetime.fromisoformat(given["available_at"])
    return Event(payload=payload, **given)
