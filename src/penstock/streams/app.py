"""What a user writes: streams, each with a source, a key and a handler. Values only; nothing runs here."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.config import mask_url, store_url
from penstock.errors import UsageError
from penstock.streams.context import Context
from penstock.streams.event import StreamEvent
from penstock.streams.state import DEFAULT_STATE

Handler = Callable[[StreamEvent, Context], None]
Key = Callable[[Any], str]
Decorated = TypeVar("Decorated", bound=Handler)

DEFAULT_PARTS = 8
DEFAULT_MAX_RETRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One stream. Its number of parts is fixed when it first runs."""

    name: str
    queue: str
    key: Key
    handler: Handler
    parts: int = DEFAULT_PARTS
    max_retries: int = DEFAULT_MAX_RETRIES
    retry_seconds: float = 1.0
    ttl_seconds: float | None = None

    def __post_init__(self) -> None:
        _require(1 <= self.parts <= 4_096, "parts must lie in 1 to 4,096")
        _require(self.max_retries >= 0, "max_retries must be 0 or more")
        _require(self.retry_seconds >= 0, "retry_seconds must be 0 or more")
        _require(self.ttl_seconds is None or self.ttl_seconds > 0, "ttl_seconds must be more than 0")

    def part_of(self, key: str, parts: int) -> int:
        """Where a key belongs. The same in every process and version: Python's own hash is not."""
        return zlib.crc32(key.encode()) % parts


class Streams:
    """An application's streams, over one store of events and one state store.

    app = Streams("postgresql://…")

    @app.stream("orders", key=lambda event: event.partition_key)
    def total(event, ctx):
        ctx.state["sum"] = ctx.state.get("sum", 0) + event.json()["amount"]
        ctx.emit("totals.updated", {"sum": ctx.state["sum"]})
    """

    def __init__(self, store: str | None = None, *, state: str = DEFAULT_STATE) -> None:
        self.store = store_url(store)
        self.state = state
        self.streams: dict[str, Stream] = {}

    def stream(
        self, queue: str, *, key: Key | None = None, name: str | None = None, **options: Any
    ) -> Callable[[Decorated], Decorated]:
        """Let a function process the events of a queue, those of a key one after the other.

        Without a `key` it is the event's `partition_key`, else its `ordering_key`.
        """

        def register(function: Decorated) -> Decorated:
            known_as = name or str(getattr(function, "__name__", "stream"))
            if known_as in self.streams:
                raise UsageError(f"there is a stream called {known_as!r} already: give this one another name")
            try:
                made = Stream(name=known_as, queue=queue, key=key or default_key, handler=function, **options)
            except TypeError as error:
                raise UsageError(f"a stream has no such option: {error}") from error
            self.streams[known_as] = made
            return function

        return register

    def __repr__(self) -> str:
        return f"Streams({mask_url(self.store)!r}, streams={sorted(self.streams)})"


def default_key(event: Any) -> str:
    """The event's own key."""
    key = event.partition_key or event.ordering_key
    if key is None:
        raise UsageError("the event has neither a partition_key nor an ordering_key; give the stream a key=")
    return str(key)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise UsageError(message)
