"""Events as applications emit them and as claimants receive them. Values only: no I/O and no clock."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, NamedTuple, NewType
from uuid import UUID

from penstock.model.errors import InvalidEvent

EventId = NewType("EventId", UUID)

DEFAULT_QUEUE = "outbox"
CONTENT_TYPE = "content-type"
PRIORITIES = range(-100, 101)
NAME_LIMIT = 255
DEDUPE_SECONDS = 86_400.0
MAX_ATTEMPTS_LIMIT = 2**31 - 1
LONGEST_SECONDS = 100 * 365.25 * 86_400
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
MILLENNIUM = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An immutable event to emit. The store assigns an `event_id` if the event has none."""

    event_type: str
    payload: bytes = b""
    queue: str = DEFAULT_QUEUE
    headers: Mapping[str, str] = field(default_factory=dict)
    partition_key: str | None = None
    ordering_key: str | None = None
    priority: int = 0
    available_at: datetime | None = None
    delay_seconds: float | None = None
    max_attempts: int | None = None
    dedupe_key: str | None = None
    dedupe_seconds: float = DEDUPE_SECONDS
    event_id: EventId | None = None

    def __post_init__(self) -> None:
        """Validate the fields that are set. Unset fields are skipped: a bulk emit creates 100,000 events per second."""
        _require_name("event_type", self.event_type)
        if self.queue is not DEFAULT_QUEUE:
            _require_name("queue", self.queue)
        if self.partition_key is not None:
            _require_name("partition_key", self.partition_key)
        if self.ordering_key is not None:
            _require_name("ordering_key", self.ordering_key)
        if self.dedupe_key is not None or self.dedupe_seconds != DEDUPE_SECONDS:
            self._require_dedupe()
        if self.headers:
            _require_headers(self.headers)
        if type(self.payload) is not bytes:
            raise InvalidEvent(f"payload must be bytes, got {type(self.payload).__name__}; Outbox.emit encodes values")
        if self.priority not in PRIORITIES:
            raise InvalidEvent(f"priority must be between -100 and 100, got {self.priority}")
        if self.max_attempts is not None and not 1 <= self.max_attempts <= MAX_ATTEMPTS_LIMIT:
            raise InvalidEvent(f"max_attempts must be between 1 and {MAX_ATTEMPTS_LIMIT}, got {self.max_attempts}")
        if self.available_at is not None or self.delay_seconds is not None:
            self._require_time()

    def _require_dedupe(self) -> None:
        if self.dedupe_key is not None:
            _require_name("dedupe_key", self.dedupe_key)
        _require(
            0 < self.dedupe_seconds <= LONGEST_SECONDS,
            f"dedupe_seconds must be greater than 0 and at most 100 years, got {self.dedupe_seconds}",
        )

    def _require_time(self) -> None:
        _require(
            self.available_at is None or self.delay_seconds is None, "available_at and delay are mutually exclusive"
        )
        _require(
            self.delay_seconds is None or 0 <= self.delay_seconds <= LONGEST_SECONDS,
            f"delay must be between 0 and 100 years, got {self.delay_seconds} s",
        )
        _require(
            self.available_at is None or self.available_at.tzinfo is not None,
            "available_at must have a time zone; use a time such as datetime.now(UTC)",
        )


class DeliveryFields(NamedTuple):
    """Fields of a claimed event as the store returns them; ids, headers and times may be undecoded."""

    seq: int
    event_id: Any
    event_type: str
    queue: str
    payload: bytes
    headers: Any
    partition_key: str | None
    ordering_key: str | None
    priority: int
    created_at: Any
    available_at: Any
    attempts: int
    deliveries: int
    max_attempts: int | None
    replays: int
    suspect: int
    last_error: str | None


class Delivery(DeliveryFields):
    """A claimed event: the immutable event and its state.

    A relay receives 100,000 deliveries per second and reads few of their ids and times. A store may therefore leave an
    id as 16 bytes, headers as None and a time as microseconds since 2000; the properties decode them on access.
    """

    __slots__ = ()

    @property
    def event_id(self) -> EventId:
        raw = self[1]
        return EventId(UUID(bytes=raw)) if isinstance(raw, bytes) else raw

    @property
    def headers(self) -> Mapping[str, str]:
        return self[5] or NO_HEADERS

    @property
    def created_at(self) -> datetime:
        return decode_time(self[9])

    @property
    def available_at(self) -> datetime:
        return decode_time(self[10])

    def _asdict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._fields}

    def json(self) -> Any:
        """Return the payload, decoded from JSON."""
        return json.loads(self.payload)

    def text(self) -> str:
        """Return the payload, decoded from UTF-8."""
        return self.payload.decode()


def decode_time(raw: datetime | int) -> datetime:
    """Return `raw` as a time; an integer counts microseconds since 2000."""
    return MILLENNIUM + timedelta(microseconds=raw) if isinstance(raw, int) else raw


def encode_time(time: datetime) -> int:
    """Return a time as microseconds since 2000."""
    return (time - MILLENNIUM) // timedelta(microseconds=1)


def encode_payload(payload: object, headers: Mapping[str, str] | None = None) -> tuple[bytes, dict[str, str]]:
    """Return the payload as bytes, and the headers with the implied content type.

    Bytes are unchanged, str is encoded as UTF-8 and any other value as JSON. A content type set by the caller is kept.
    """
    named = {name.lower() for name in headers or {}}
    match payload:
        case bytes() | bytearray() | memoryview():
            return bytes(payload), dict(headers or {})
        case str():
            _require_unicode("the payload", payload)
            body, content_type = payload.encode(), "text/plain; charset=utf-8"
        case _:
            body, content_type = _to_json(payload), "application/json"
    implied = {} if CONTENT_TYPE in named else {CONTENT_TYPE: content_type}
    return body, {**(headers or {}), **implied}


def _to_json(payload: object) -> bytes:
    try:
        return json.dumps(payload, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidEvent(f"cannot encode the payload as JSON: {error}; pass bytes or str instead") from error


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvalidEvent(message)


def require_queue(name: str) -> None:
    """Raise `InvalidEvent` unless `name` is a valid queue name."""
    _require_name("queue", name)


def _require_name(name: str, value: object) -> None:
    if isinstance(value, str) and value.isascii() and 0 < len(value) <= NAME_LIMIT and "\x00" not in value:
        return  # fast path for a bulk emit: builds no error messages
    _require(isinstance(value, str), f"{name} must be a string, got {type(value).__name__}")
    assert isinstance(value, str)
    _require(0 < len(value) <= NAME_LIMIT, f"{name} must have 1 to {NAME_LIMIT} characters, got {len(value)}")
    _require("\x00" not in value, f"{name} must not contain a NUL character")
    _require_unicode(name, value)


def _require_headers(headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        _require(
            isinstance(name, str) and isinstance(value, str),
            f"headers must map strings to strings; {name!r} maps to {type(value).__name__}",
        )
        _require("\x00" not in name and "\x00" not in value, f"header {name!r} must not contain a NUL character")
        _require_unicode(f"header {name!r}", name + value)


def _require_unicode(name: str, value: str) -> None:
    """Raise `InvalidEvent` if `value` can't be encoded, such as a lone surrogate: no store accepts such text."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidEvent(f"{name} is not valid Unicode: {error.reason} at character {error.start}") from error
