"""What a user writes: streams, each with a source, a key and a handler. Values only; nothing runs here."""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from penstock.config import mask_url, store_url
from penstock.errors import UsageError
from penstock.streams.batches import BatchContext, BatchKind, check_fields
from penstock.streams.context import Context
from penstock.streams.event import KEY_HEADER, StreamEvent
from penstock.streams.sources import Source, as_source
from penstock.streams.state import DEFAULT_STATE

Handler = Callable[[StreamEvent, Context], None] | Callable[[Any, BatchContext], None]
Key = Callable[[Any], str]
Decorated = TypeVar("Decorated", bound=Handler)

DEFAULT_PARTS = 8
DEFAULT_MAX_RETRIES = 3
DEFAULT_LEASE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One stream. Its number of parts is fixed when it first runs."""

    name: str
    source: Source
    key: Key
    handler: Callable[..., None]
    parts: int = DEFAULT_PARTS
    max_retries: int = DEFAULT_MAX_RETRIES
    retry_seconds: float = 1.0
    ttl_seconds: float | None = None
    lease_seconds: float = DEFAULT_LEASE_SECONDS
    """How long events of a queue stay claimed by a process that is not heard of."""
    batch: BatchKind | None = None
    """For a handler of many events at once: what it is given."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """For a batch handler: columns taken from JSON payloads, and their Arrow types."""

    def __post_init__(self) -> None:
        _require(1 <= self.parts <= 4_096, "parts must lie in 1 to 4,096")
        _require(self.max_retries >= 0, "max_retries must be 0 or more")
        _require(self.retry_seconds >= 0, "retry_seconds must be 0 or more")
        _require(self.ttl_seconds is None or self.ttl_seconds > 0, "ttl_seconds must be more than 0")
        _require(self.lease_seconds > 0, "lease_seconds must be more than 0")
        _require(self.batch is not None or not self.fields, 'fields= is for batch handlers: batch="arrow"')
        if self.batch is not None:
            object.__setattr__(self, "batch", BatchKind.parse(self.batch))
            check_fields(self.fields)

    @property
    def own_queue(self) -> str:
        """Where events that failed wait, and dead ones stay, if their source takes no outcomes."""
        return f"streams/{self.name}"

    def key_of(self, event: StreamEvent) -> str:
        """The key that an event is processed under."""
        return event.headers.get(KEY_HEADER) or str(self.key(event))

    def part_of(self, key: str, parts: int) -> int:
        """Where a key belongs."""
        return part_of(key, parts)


class StreamSet:
    """An application's streams, over one store of events and one state store.

    Users make a `penstock.Streams`, which can also run.
    """

    def __init__(self, store: str | None = None, *, state: str = DEFAULT_STATE) -> None:
        self.store = store_url(store)
        self.state = state
        self.streams: dict[str, Stream] = {}

    def stream(
        self, source: str | Source, *, key: Key | None = None, name: str | None = None, **options: Any
    ) -> Callable[[Decorated], Decorated]:
        """Let a function process the events of a queue or another source, those of a key one after the other.

        Without a `key` it is the event's `partition_key`, else its `ordering_key`.
        """

        taken = as_source(source)

        def register(function: Decorated) -> Decorated:
            known_as = name or str(getattr(function, "__name__", "stream"))
            if known_as in self.streams:
                raise UsageError(f"there is a stream called {known_as!r} already: give this one another name")
            try:
                made = Stream(name=known_as, source=taken, key=key or default_key, handler=function, **options)
            except TypeError as error:
                raise UsageError(f"a stream has no such option: {error}") from error
            self.streams[known_as] = made
            return function

        return register

    def __repr__(self) -> str:
        return f"{type(self).__name__}({mask_url(self.store)!r}, streams={sorted(self.streams)})"


def part_of(key: str, parts: int) -> int:
    """Where a key belongs. The same in every process and version: Python's own hash is not."""
    return zlib.crc32(key.encode()) % parts


def default_key(event: Any) -> str:
    """The event's own key."""
    key = event.partition_key or event.ordering_key
    if key is None:
        raise UsageError("the event has neither a partition_key nor an ordering_key; give the stream a key=")
    return str(key)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise UsageError(message)
