"""Convert entries of Valkey and Redis streams to rows: ids, fields and columns. Needs neither a server nor Spark."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from penstock.model.errors import UsageError
from penstock.pipeline.datasource.columns import columns
from penstock.streams.event import STREAM_HEADERS

COLUMNS = columns(
    *("seq", "event_id", "event_type", "payload", "headers", "partition_key", "ordering_key", "created_at"),
    "attempts",
)

PAGE_ROWS = 1_000
# Limit: an Arrow batch contains at most 2 GB.
PAGE_BYTES = 64 * 1024 * 1024

# Fields with a separate column, which Penstock's publisher writes beside the payload.
_COLUMN_FIELDS = (b"event_type", b"partition_key", b"ordering_key")

_SEQUENCE_BITS = 20
_LARGEST = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# An id need not be a time: an id beyond Python's range of dates is shown as this time.
_LAST_MILLISECOND = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)


class EntryId(NamedTuple):
    """Id of an entry. Ids compare as two numbers, as on the server."""

    milliseconds: int
    sequence: int

    @classmethod
    def parse(cls, text: bytes | str) -> "EntryId":
        plain = text.decode() if isinstance(text, bytes) else text
        milliseconds, _, sequence = plain.partition("-")
        return cls(int(milliseconds), int(sequence))

    def __str__(self) -> str:
        return f"{self.milliseconds}-{self.sequence}"

    def seq(self) -> int:
        """Return one number that preserves the order of entries, up to a million entries in one millisecond."""
        within = min(self.sequence, (1 << _SEQUENCE_BITS) - 1)
        return min(self.milliseconds << _SEQUENCE_BITS | within, _LARGEST)

    def time(self) -> datetime:
        return _EPOCH + timedelta(milliseconds=min(self.milliseconds, _LAST_MILLISECOND))


class StreamEntry(NamedTuple):
    """Entry taken from a stream. `attempts` counts the earlier deliveries."""

    stream: str
    entry_id: EntryId
    fields: Mapping[bytes, bytes]
    attempts: int = 0

    @property
    def event_id(self) -> str:
        return f"{self.stream}/{self.entry_id}"


def entry_of(event_id: str) -> tuple[str, str]:
    """Return the stream and the entry id that form an event id. The stream's name may contain slashes."""
    found = re.fullmatch(r"(.*)/([0-9]+-[0-9]+)", event_id, re.DOTALL)
    if found is None:
        raise UsageError(f"invalid event id {event_id!r}; expected an id such as orders/1767225600000-0")
    return found[1], found[2]


class Rows:
    """Converter from entries to rows. Counts the headers that are dropped because they are not UTF-8."""

    def __init__(self, payload_field: str) -> None:
        self._payload_field = payload_field.encode()
        self.dropped_headers = 0

    def row(self, entry: StreamEntry) -> dict[str, Any]:
        event_type, partition_key, ordering_key = (_text(entry.fields.get(name)) for name in _COLUMN_FIELDS)
        payload = entry.fields.get(self._payload_field)
        return {
            "seq": entry.entry_id.seq(),
            "event_id": entry.event_id,
            "event_type": entry.stream if event_type is None else event_type,
            "payload": _as_json(entry.fields) if payload is None else payload,
            "headers": [] if payload is None else list(self._headers(entry.fields).items()),
            "partition_key": partition_key,
            "ordering_key": ordering_key,
            "created_at": entry.entry_id.time(),
            "attempts": entry.attempts,
        }

    def _headers(self, fields: Mapping[bytes, bytes]) -> dict[str, str]:
        """Return fields without a column as headers, overridden by the field of headers that our publisher writes.

        The headers of forwarded events are left out: only a stream sets them, on events of its retry queue.
        """
        headers: dict[str, str] = {}
        carried: dict[str, str] = {}
        for name, value in fields.items():
            if name == self._payload_field or name in _COLUMN_FIELDS:
                continue
            if name == b"headers" and (found := _carried_headers(value)) is not None:
                carried = found
                continue
            try:
                headers[name.decode()] = value.decode()
            except UnicodeDecodeError:
                self.dropped_headers += 1
        return {name: value for name, value in (headers | carried).items() if name not in STREAM_HEADERS}


def _carried_headers(value: bytes) -> dict[str, str] | None:
    """Return the headers in a field that is a JSON object of strings; None for any other field."""
    if value == b"{}":  # skip decoding in the most common case
        return {}
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not all(map(_is_text, [*found, *found.values()])):
        return None
    return found


def _is_text(text: Any) -> bool:
    """True if this is a string that a column accepts. JSON may contain lone surrogates, which no column accepts."""
    try:
        return isinstance(text, str) and text.encode() is not None
    except UnicodeEncodeError:
        return False


def _as_json(fields: Mapping[bytes, bytes]) -> bytes:
    named = {_text(name): _text(value) for name, value in fields.items()}
    return json.dumps(named, ensure_ascii=False, separators=(",", ":")).encode()


def _text(value: bytes | None) -> str | None:
    """Return bytes as text. Invalid UTF-8 is escaped, so that different bytes do not become the same key."""
    return None if value is None else value.decode(errors="backslashreplace")


def in_order(entries: Iterable[StreamEntry]) -> list[StreamEntry]:
    """Return each entry once, oldest first."""
    once = {(entry.entry_id, entry.stream): entry for entry in entries}
    return sorted(once.values(), key=lambda entry: entry.entry_id)


def pages(
    entries: Sequence[StreamEntry], *, rows: int = PAGE_ROWS, size: int = PAGE_BYTES
) -> Iterator[list[StreamEntry]]:
    """Yield the entries in pages of at most `rows` rows and, unless a single entry is larger, `size` bytes."""
    page: list[StreamEntry] = []
    held = 0
    for entry in entries:
        weight = sum(map(len, entry.fields.values()))
        if page and (len(page) == rows or held + weight > size):
            yield page
            page, held = [], 0
        page.append(entry)
        held += weight
    if page:
        yield page
