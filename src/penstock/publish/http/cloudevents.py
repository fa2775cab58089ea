"""Conversion of events to CloudEvents 1.0 over HTTP, without I/O.

`binary` sends the payload unchanged as the body and all other fields as headers; `structured` sends one JSON document.
In both modes the extension attribute `headers`, a JSON object as a string, contains the event headers that have no
other place.
"""

import base64
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import quote

from penstock.model.event import CONTENT_TYPE, Delivery
from penstock.publish.api import Message

STRUCTURED_TYPE = "application/cloudevents+json; charset=utf-8"

# Proxies and servers silently drop names with underscores or dots, though HTTP allows such names.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9-]+")
# HTTP strips spaces around a value. Line breaks and non-ASCII characters are not allowed in a value.
_PLAIN_VALUE = re.compile(r"(?:[!-~](?:[\t -~]*[!-~])?)?")
# Reserved for the connection or for this publisher, or usable to impersonate the sender.
_RESERVED_NAME = re.compile(
    "(?:ce|webhook|proxy|sec|if)-.*|accept|accept-encoding|authorization|connection|content-length|cookie|date|expect"
    "|host|idempotency-key|keep-alive|range|te|trailer|transfer-encoding|upgrade|user-agent|via"
)

_UNESCAPED = re.compile(r"[!#-$&-~]*")
_SAFE = "!#$&'()*+,/:;<=>?@[\\]^`{|}"

_compact = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class Envelope(NamedTuple):
    """Headers that HTTP can carry, and the body."""

    headers: list[tuple[str, str]]
    body: bytes


def binary(message: Message, source: str | None = None) -> Envelope:
    """Encode in binary mode: the payload is the body, attributes are `ce-*` headers.

    Event headers become HTTP headers where HTTP can carry them.
    """
    plain, others = _carried(message.event.headers)
    attributes = _attributes(message, source)
    if others:
        attributes["headers"] = _compact(others)
    headers = [(f"ce-{name}", escaped(value)) for name, value in attributes.items()]
    return Envelope(headers + plain, message.event.payload)


def structured(message: Message, source: str | None = None) -> Envelope:
    """Encode in structured mode: one JSON document, with all event headers in the attribute `headers`."""
    event = message.event
    attributes = _attributes(message, source)
    content_type = _content_type(event)
    if content_type:
        attributes["datacontenttype"] = content_type
    if event.headers:
        attributes["headers"] = _compact(dict(event.headers))
    # The CloudEvents extension for tracing uses the names of the W3C headers.
    attributes |= {name: event.headers[name] for name in ("traceparent", "tracestate") if event.headers.get(name)}
    document = f"{_compact(attributes)[:-1]},{_data(event.payload, content_type.lower())}}}"
    return Envelope([("content-type", STRUCTURED_TYPE)], document.encode())


def escaped(value: str) -> str:
    """Percent-encode a value for a `ce-*` header: spaces, quotes, percent signs and non-ASCII characters."""
    return value if _UNESCAPED.fullmatch(value) else quote(value, safe=_SAFE)


def _attributes(message: Message, source: str | None) -> dict[str, str]:
    event = message.event
    attributes = {
        "specversion": "1.0",
        "id": str(event.event_id),
        "source": source or f"/penstock/{quote(event.queue, safe='')}",
        "type": event.event_type,
        "subject": message.topic,
        "time": event.created_at.isoformat(),
        "queue": event.queue,
    }
    if event.partition_key is not None:
        attributes["partitionkey"] = event.partition_key
    if event.ordering_key is not None:
        attributes["orderingkey"] = event.ordering_key
    return attributes


def _carried(headers: Mapping[str, str]) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Split headers into those that HTTP carries unchanged and the rest.

    Of several names that differ only in case, HTTP carries one.
    """
    plain: dict[str, tuple[str, str]] = {}
    others: dict[str, str] = {}
    for name, value in headers.items():
        lower = name.lower()
        if lower not in plain and _is_plain(lower, value):
            plain[lower] = (name, value)
        else:
            others[name] = value
    return list(plain.values()), others


def _is_plain(name: str, value: str) -> bool:
    return bool(_PLAIN_NAME.fullmatch(name) and not _RESERVED_NAME.fullmatch(name) and _PLAIN_VALUE.fullmatch(value))


def _content_type(event: Delivery) -> str:
    """Return the event's content type, or an empty string if missing or not a valid header value."""
    values = (value for name, value in event.headers.items() if name.lower() == CONTENT_TYPE)
    value = next(values, "")
    return value if _PLAIN_VALUE.fullmatch(value) else ""


def _data(payload: bytes, content_type: str) -> str:
    """Return the payload as a member of the document.

    JSON stays JSON and text becomes a string, according to the content type. Any other payload, and one that does not
    match its content type, is encoded in base64.
    """
    media_type = content_type.partition(";")[0].strip()
    with suppress(ValueError, RecursionError):
        if media_type == "application/json" or media_type.endswith("+json"):
            return f'"data":{_json_text(payload)}'
        if media_type.startswith("text/") and (payload.isascii() or "charset=utf-8" in content_type):
            return f'"data":{_compact(payload.decode())}'
    return f'"data_base64":"{base64.b64encode(payload).decode()}"'


def _json_text(payload: bytes) -> str:
    """Return the payload's text if it is standard JSON, else raise `ValueError`.

    The text is not re-encoded, because long numbers would change.
    """
    text = payload.decode()
    json.loads(text, parse_constant=_no_json)
    return text


def _no_json(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
