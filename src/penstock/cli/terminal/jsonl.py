"""Parser of JSON lines for `penstock emit --from`. Errors name the line number."""

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NoReturn
from uuid import UUID

from penstock.cli.terminal import times
from penstock.model.errors import InvalidEvent, UsageError
from penstock.model.event import Event, encode_payload

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_events(lines: Iterable[bytes]) -> Iterator[tuple[int, Event]]:
    """Yield each line's number (from 1) and event. Skip empty lines."""
    for number, line in enumerate(lines, 1):
        text = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
        if text.strip():
            try:
                yield number, event_from(text)
            except UsageError as error:
                raise InvalidEvent(f"line {number}: {error}; no event was emitted") from error


def event_from(line: bytes) -> Event:
    fields = _object(line)
    unknown = sorted(fields.keys() - _READERS.keys() - _BODY)
    if unknown:
        known = ", ".join(sorted({*_READERS, *_BODY}))
        raise InvalidEvent(f"unknown field {unknown[0]!r}; supported: {known}")
    given = {name: _READERS[name](name, value) for name, value in fields.items() if name in _READERS}
    _merge(given, "type", "event_type")
    _merge(given, "delay", "delay_seconds")
    if "event_type" not in given:
        raise InvalidEvent("missing event_type")
    payload, headers = _body(fields, given.pop("headers", {}))
    return Event(payload=payload, headers=headers, **given)


def _object(line: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(line, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise InvalidEvent("invalid UTF-8; encode binary payloads in payload_base64") from error
    except json.JSONDecodeError as error:
        raise InvalidEvent(f"invalid JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise InvalidEvent("JSON is nested too deeply") from error
    if not isinstance(fields, dict):
        raise InvalidEvent('expected a JSON object such as {"event_type": "order.placed", "payload": {"id": 1}}')
    return fields


def _no_constant(name: str) -> NoReturn:
    raise InvalidEvent(f"invalid JSON: {name} is not a JSON value")


def _merge(given: dict[str, Any], alias: str, name: str) -> None:
    if alias in given:
        if name in given:
            raise InvalidEvent(f"{name} and {alias} are mutually exclusive")
        given[name] = given.pop(alias)


def _body(fields: Mapping[str, Any], headers: Mapping[str, str]) -> tuple[bytes, dict[str, str]]:
    """Return the payload's bytes and the headers: strings as text, other values as JSON, `payload_base64` decoded."""
    if "payload_base64" not in fields:
        return encode_payload(fields.get("payload", b""), headers)
    if "payload" in fields:
        raise InvalidEvent("payload and payload_base64 are mutually exclusive")
    try:
        return base64.b64decode(_text("payload_base64", fields["payload_base64"]), validate=True), dict(headers)
    except (binascii.Error, ValueError) as error:
        raise InvalidEvent(f"invalid payload_base64: {error}") from error


def _must_be(what: str, *kinds: type) -> Callable[[str, Any], Any]:
    """Return a reader that accepts values of these types. Booleans are not accepted as numbers."""

    def read(name: str, value: Any) -> Any:
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise InvalidEvent(f"{name} must be {what}, got {_KINDS[type(value)]}")
        return value

    return read


def _or_null(read: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda name, value: None if value is None else read(name, value)


_text = _must_be("a string", str)
_whole = _must_be("an integer", int)
_number = _must_be("a number of seconds", int, float)
_headers = _must_be("an object of strings", dict)


def _seconds(name: str, value: Any) -> float:
    return float(_number(name, value))


def _length(name: str, value: Any) -> float:
    return times.seconds(value) if isinstance(value, str) else _seconds(name, value)


def _time(name: str, value: Any) -> datetime:
    return times.iso(_text(name, value))


def _id(name: str, value: Any) -> UUID:
    try:
        return UUID(_text(name, value))
    except ValueError as error:
        raise InvalidEvent(f"invalid {name} {value!r}; expected a UUID") from error


_KINDS = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "an object",
}
_READERS: dict[str, Callable[[str, Any], Any]] = {
    "event_type": _text,
    "type": _text,
    "event_id": _id,
    "queue": _text,
    "headers": _headers,
    "partition_key": _or_null(_text),
    "ordering_key": _or_null(_text),
    "priority": _whole,
    "available_at": _or_null(_time),
    "delay": _length,
    "delay_seconds": _seconds,
    "max_attempts": _or_null(_whole),
    "dedupe_key": _or_null(_text),
    "dedupe_seconds": _seconds,
}
_BODY = frozenset({"payload", "payload_base64"})
