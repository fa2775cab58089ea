"""Messages as JSON, for people and files: all fields of the delivery, and the topic."""

import base64
import json
from typing import Any

from penstock.model.text import payload_text
from penstock.publish.api import Message

# ASCII only, so that no terminal, locale or line splitter can break a line. A single encoder, because creating one
# costs more than encoding an event.
_encode = json.JSONEncoder(separators=(",", ":")).encode


def as_json_fields(message: Message) -> dict[str, Any]:
    """Return the message as values that JSON can represent.

    A payload that is not UTF-8 is encoded in base64, as `payload_encoding` indicates.
    """
    event = message.event
    payload, encoding = payload_text(event.payload)
    return {
        "topic": message.topic,
        **event._asdict(),
        "event_id": str(event.event_id),
        "payload": payload,
        "payload_encoding": encoding,
        "headers": dict(event.headers),
        "created_at": event.created_at.isoformat(),
        "available_at": event.available_at.isoformat(),
    }


def as_json_line(message: Message) -> str:
    return _encode(as_json_fields(message)) + "\n"


def payload_bytes(fields: dict[str, Any]) -> bytes:
    """Return the payload from the fields of a JSON line."""
    text: str = fields["payload"]
    return base64.b64decode(text) if fields["payload_encoding"] == "base64" else text.encode()
