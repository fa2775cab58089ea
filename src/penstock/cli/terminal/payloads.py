"""Readable payloads: indented JSON, plain text, or a hex dump, cut to a readable length."""

import json
from contextlib import suppress

from penstock.admin.text import count
from penstock.cli.terminal import output

SHOWN_CHARACTERS = 8_000
SHOWN_BYTES = 1_024
SET_OUT_BYTES = 4 * 1024 * 1024
ROW = 16


def described(payload: bytes, *, whole: bool = False) -> str:
    """Return the payload's kind and size, then its escaped text; cut with a note unless `whole` is set."""
    if not payload:
        return "no payload"
    size = count(len(payload), "byte")
    text = _text(payload)
    if text is None:
        most = len(payload) if whole else SHOWN_BYTES
        return f"payload, binary, {size}\n{hexdump(payload[:most])}{_cut(len(payload) - most, 'byte')}"
    json_text = set_out(text) if len(payload) <= SET_OUT_BYTES else None
    kind, shown = ("text", text) if json_text is None else ("JSON", json_text)
    most = len(shown) if whole else SHOWN_CHARACTERS
    return f"payload, {kind}, {size}\n{output.clean(shown[:most])}{_cut(len(shown) - most, 'character')}"


def hexdump(data: bytes) -> str:
    """Return rows of 16 bytes: offset, hexadecimal bytes, printable ASCII."""
    return "\n".join(_row(place, data[place : place + ROW]) for place in range(0, len(data), ROW))


def _row(place: int, row: bytes) -> str:
    shown = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
    return f"{place:08x}  {row.hex(' '):<{ROW * 3 - 1}}  {shown}"


def _text(payload: bytes) -> str | None:
    """Return the payload as UTF-8 text; None for other bytes, and for payloads with NULs, which are binary formats."""
    with suppress(UnicodeDecodeError):
        return None if b"\x00" in payload else payload.decode()
    return None


def set_out(text: str) -> str | None:
    """Return indented JSON; None if the text is not JSON."""
    with suppress(ValueError, RecursionError):
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    return None


def _cut(left: int, unit: str) -> str:
    return f"\n… and {count(left, f'more {unit}')}; use --payload-only for the complete payload" if left > 0 else ""
