"""Texts of errors and payloads in a form that every store accepts."""

import base64
import traceback
from collections.abc import Sequence
from typing import Any

RECORD_LIMIT = 8_000


def storable(text: str, limit: int | None = None) -> str:
    """Return a text that every store takes: without NUL and half surrogate pairs, and of at most `limit` characters."""
    clean = text.replace("\x00", "\ufffd").encode(errors="replace").decode()
    return clean if limit is None or len(clean) <= limit else clean[: limit - 1] + "…"


def brief(error: BaseException) -> str:
    """An error of any kind on one line: its type, and what it says."""
    said = str(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def on_record(error: BaseException) -> str:
    """An error of a user's function as an event's record keeps it: what it says first, then where it came from."""
    trace = "".join(traceback.format_tb(error.__traceback__)[1:]).rstrip()
    return storable(f"{brief(error)}\n{trace}" if trace else brief(error), RECORD_LIMIT)


def payload_text(payload: bytes) -> tuple[str, str]:
    """The payload as JSON can hold it, and which encoding that is."""
    try:
        return payload.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(payload).decode(), "base64"


ERRORS_SHOWN = 10


def describe(errors: Sequence[Any]) -> str:
    """The faults of a payload on one line, each with where it is."""
    shown = [f"{'.'.join(map(str, one['loc'])) or 'payload'}: {one['msg']}" for one in errors[:ERRORS_SHOWN]]
    more = len(errors) - len(shown)
    return "invalid payload: " + "; ".join(shown) + (f"; and {more} more" if more > 0 else "")
