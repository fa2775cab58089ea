"""Error texts and payloads in a form that every store accepts, and values in a form that JSON can represent."""

import base64
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from enum import Enum
from typing import Any
from uuid import UUID

RECORD_LIMIT = 8_000


def storable(text: str, limit: int | None = None) -> str:
    """Return text that every store accepts: without NUL or lone surrogates, and truncated to `limit` characters."""
    clean = text.replace("\x00", "\ufffd").encode(errors="replace").decode()
    return clean if limit is None or len(clean) <= limit else clean[: limit - 1] + "…"


def brief(error: BaseException) -> str:
    """Return an error as its type and message."""
    said = str(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def on_record(error: BaseException) -> str:
    """Return the error of a user's function for an event's record: type and message, then the traceback."""
    trace = "".join(traceback.format_tb(error.__traceback__)[1:]).rstrip()
    return storable(f"{brief(error)}\n{trace}" if trace else brief(error), RECORD_LIMIT)


def payload_text(payload: bytes) -> tuple[str, str]:
    """Return the payload as text for JSON, and the encoding of that text."""
    try:
        return payload.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(payload).decode(), "base64"


def plain_fields(value: Any, *, without: str = "") -> dict[str, Any]:
    """Return the fields of a dataclass, with ids, times, states and mappings in a form that JSON can represent."""
    return {field.name: _plain(getattr(value, field.name)) for field in fields(value) if field.name != without}


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case UUID():
            return str(value)
        case Enum():
            return value.value
        case Mapping():
            return dict(value)
        case _:
            return value


ERRORS_SHOWN = 10


def describe(errors: Sequence[Any]) -> str:
    """Return the validation errors of a payload on one line, each with its location."""
    shown = [f"{'.'.join(map(str, one['loc'])) or 'payload'}: {one['msg']}" for one in errors[:ERRORS_SHOWN]]
    more = len(errors) - len(shown)
    return "invalid payload: " + "; ".join(shown) + (f"; and {more} more" if more > 0 else "")
