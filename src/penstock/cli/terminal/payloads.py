"""A payload for a person to read: JSON set out, text as it is, anything else in hexadecimal; and not too much of it."""

import json
from contextlib import suppress

from penstock.admin.text import count
from penstock.cli.terminal import output

SHOWN_CHARACTERS = 8_000
SHOWN_BYTES = 1_024
SET_OUT_BYTES = 4 * 1024 * 1024
ROW = 16


def described(payload: bytes, *, whole: bool = False) -> str:
    """What it is, then the payload, safe to show; cut, with a note that says so, unless all of it is wanted."""
    if not payload:
        return "no payload"
    size = count(len(payload), "byte")
    text = _text(payload)
    if text is None:
        most = len(payload) if whole else SHOWN_BYTES
        return f"payload, not text, {size}\n{hexdump(payload[:most])}{_cut(len(payload) - most, 'byte')}"
    json_text = set_out(text) if len(payload) <= SET_OUT_BYTES else None
    kind, shown = ("text", text) if json_text is None else ("JSON", json_text)
    most = len(shown) if whole else SHOWN_CHARACTERS
    return f"payload, {kind}, {size}\n{output.clean(shown[:most])}{_cut(len(shown) - most, 'character')}"


def hexdump(data: bytes) -> str:
    """Rows of 16 bytes: the place, the bytes, and what of them is plain ASCII."""
    return "\n".join(_row(place, data[place : place + ROW]) for place in range(0, len(data), ROW))


def _row(place: int, row: bytes) -> str:
    shown = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
    return f"{place:08x}  {row.hex(' '):<{ROW * 3 - 1}}  {shown}"


def _text(payload: bytes) -> str | None:
    """UTF-8 without NULs; what has NULs is a binary format that happens to be UTF-8."""
    with suppress(UnicodeDecodeError):
        return None if b"\x00" in payload else payload.decode()
    return None


def set_out(text: str) -> str | None:
    """JSON, laid out for reading; None if the text is none."""
    with suppress(ValueError, RecursionError):
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    return None


def _cut(left: int, unit: str) -> str:
    return f"\n… and {count(left, f'more {unit}')}: --payload-only has all of it" if left > 0 else ""
