"""Definitions of streams: a source, a key function and a handler each. Plain values; `penstock.pipeline` runs them."""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar

from penstock.config.urls import mask_url, store_url
from penstock.model.errors import UsageError, require
from penstock.model.event import NAME_LIMIT
from penstock.streams.arrow_json import check_fields
from penstock.streams.context import Context
from penstock.streams.engine.batch_handlers import BatchContext, BatchKind
from penstock.streams.engine.windows import Session, Window, Windows
from penstock.streams.event import KEY_HEADER, STREAM_HEADER, StreamEvent
from penstock.streams.sources import Queue, Source, Valkey, as_source, consumed
from penstock.streams.state.api import Timer
from penstock.streams.state.registry import DEFAULT_STATE

Handler = Callable[[StreamEvent, Context], None] | Callable[[Any, BatchContext], None]
Key = Callable[[Any], str]
TimerHandler = Callable[[Timer, Context], None]
CloseHandler = Callable[[Window, Context], None]
Time = Callable[[StreamEvent], datetime | float]
Merge = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]
Decorated = TypeVar("Decorated", bound=Handler)
DecoratedTimer = TypeVar("DecoratedTimer", bound=TimerHandler)
DecoratedClose = TypeVar("DecoratedClose", bound=CloseHandler)
Called = TypeVar("Called")

DEFAULT_PARTS = 8
DEFAULT_MAX_RETRIES = 3
DEFAULT_LEASE_SECONDS = 60.0
DEFAULT_IDLE_CLOSE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Definition of one stream. The number of state partitions is fixed when the stream first runs."""

    name: str
    source: Source
    key: Key
    handler: Callable[..., None]
    parts: int = DEFAULT_PARTS
    max_retries: int = DEFAULT_MAX_RETRIES
    retry_seconds: float = 1.0
    ttl_seconds: float | None = None
    lease_seconds: float = DEFAULT_LEASE_SECONDS
    """Seconds until the lease on events of a queue expires without a heartbeat."""
    batch: BatchKind | None = None
    """Argument type of a batch handler, `arrow` or `pandas`; None for a handler of single events."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Columns that a batch handler gets from JSON payloads, with their Arrow types."""
    on_timer: TimerHandler | None = None
    event_time: bool = False
    """True if timers fire by the time of the events instead of the clock. Windows always use the time of the events."""
    time: Time | None = None
    """Function that returns the time of an event; by default the event's creation time."""
    lateness_seconds: float = 0.0
    """Allowed lateness in seconds: the watermark stays behind the largest event time by this much."""
    idle_close_seconds: float | None = DEFAULT_IDLE_CLOSE_SECONDS
    """Seconds without events after which the watermark of a state partition advances by itself; None: never."""
    window: Windows | None = None
    on_close: CloseHandler | None = None
    merge: Merge | None = None
    """Function that merges the states of two sessions joined by an event; the older state is the first argument."""
    late_queue: str | None = None
    """Queue for late events; by default `<stream>/late`."""

    def __post_init__(self) -> None:
        require(1 <= self.parts <= 4_096, f"parts must be between 1 and 4096, got {self.parts}")
        require(self.max_retries >= 0, f"max_retries must be at least 0, got {self.max_retries}")
        require(self.retry_seconds >= 0, f"retry_seconds must be at least 0, got {self.retry_seconds}")
        ttl = self.ttl_seconds
        require(ttl is None or ttl > 0, f"ttl_seconds must be greater than 0, got {ttl}")
        require(self.lease_seconds > 0, f"lease_seconds must be greater than 0, got {self.lease_seconds}")
        require(self.lateness_seconds >= 0, f"lateness_seconds must be at least 0, got {self.lateness_seconds}")
        idle = self.idle_close_seconds
        require(idle is None or idle > 0, f"idle_close_seconds must be greater than 0, got {idle}")
        self._require_windows()
        require(self.by_events or self.time is None, "time= needs event_time=True or a window")
        self._require_batch()

    def _require_batch(self) -> None:
        require(self.batch is not None or not self.fields, 'fields= needs batch="arrow" or batch="pandas"')
        if self.batch is not None:
            require(not self.has_timers, "batch handlers do not support timers or windows")
            require(self.batch in list(BatchKind), f"unknown batch {self.batch!r}; expected one of arrow, pandas")
            object.__setattr__(self, "batch", BatchKind(self.batch))
            check_fields(self.fields)

    def _require_windows(self) -> None:
        if self.window is None:
            require(self.merge is None, "merge= needs a session window; set window=Session(30)")
            require(self.late_queue is None, "late_queue= needs a window; set window=Tumbling(60)")
            require(self.on_close is None, "on_close needs a window; set window=Tumbling(60)")
            return
        require(isinstance(self.window, Windows), f"window must be a Tumbling, Sliding or Session, got {self.window!r}")
        require(self.on_timer is None, "on_timer and window= are mutually exclusive; use on_close for windows")
        require(self.ttl_seconds is None, "ttl_seconds= and window= are mutually exclusive")
        sessions = isinstance(self.window, Session)
        require(sessions == (self.merge is not None), "session windows need merge=; other windows do not support it")
        require(0 < len(self.late_to) <= NAME_LIMIT, f"late_queue must have 1 to {NAME_LIMIT} characters")

    @property
    def has_timers(self) -> bool:
        """True if the stream has a timer function or windows."""
        return self.on_timer is not None or self.window is not None

    @property
    def by_events(self) -> bool:
        """True if the stream uses the time of the events instead of the clock."""
        return self.event_time or self.window is not None

    @property
    def late_to(self) -> str:
        """Name of the queue for late events."""
        return f"{self.name}/late" if self.late_queue is None else self.late_queue

    @property
    def own_queue(self) -> str:
        """Name of the retry queue: failed and dead events of a source without settlement are stored in this queue."""
        return f"streams/{self.name}"

    @property
    def consumed(self) -> frozenset[str]:
        """Queues and consumer-group streams that no other stream may read."""
        return consumed(self.source) | consumed(Queue(self.own_queue))

    def key_of(self, event: StreamEvent) -> str:
        """Return the state key of an event. An event in the retry queue keeps the key from its first delivery."""
        return (event.headers.get(KEY_HEADER) if self.moved(event) else None) or str(self.key(event))

    def moved(self, event: StreamEvent) -> bool:
        """Return True if this stream forwarded the event to its retry queue. A late event of another stream has a key
        header, too, but with the name of that stream."""
        return event.moved and event.headers.get(STREAM_HEADER) == self.name


class StreamSet:
    """Streams of an application, with one event store and one state store.

    Applications create a `penstock.Streams`, a subclass that can also run the streams.
    """

    def __init__(self, store: str | None = None, *, state: str = DEFAULT_STATE) -> None:
        self.store = store_url(store)
        self.state = state
        self.streams: dict[str, Stream] = {}

    def stream(
        self, source: str | Source, *, key: Key | None = None, name: str | None = None, **options: Any
    ) -> Callable[[Decorated], Decorated]:
        """Register a function as the handler of a queue or another source. Events with the same key are handled one
        after the other.

        Without `key`, the key is the event's `partition_key`, else its `ordering_key`.
        """
        taken = as_source(source)

        def register(function: Decorated) -> Decorated:
            known_as = name or str(getattr(function, "__name__", "stream"))
            if known_as in self.streams:
                raise UsageError(f"stream {known_as!r} is already defined; choose another name")
            try:
                made = Stream(name=known_as, source=taken, key=key or default_key, handler=function, **options)
            except TypeError as error:
                raise UsageError(f"invalid option for stream {known_as!r}: {error}") from error
            self._refuse_rivals(made)
            self.streams[known_as] = made
            return function

        return register

    def on_timer(self, stream: str) -> Callable[[DecoratedTimer], DecoratedTimer]:
        """Register the timer function of a stream. The function gets a due timer and the state of its key."""
        return self._register_once(stream, "on_timer", "a timer function")

    def on_close(self, stream: str) -> Callable[[DecoratedClose], DecoratedClose]:
        """Register the function that a stream with windows calls with each closing window and its final state."""
        return self._register_once(stream, "on_close", "an on_close function")

    def _register_once(self, stream: str, option: str, what: str) -> Callable[[Called], Called]:
        def register(function: Called) -> Called:
            if stream not in self.streams:
                raise UsageError(f"stream {stream!r} is not defined; define its handler first")
            if getattr(self.streams[stream], option) is not None:
                raise UsageError(f"stream {stream!r} already has {what}")
            given: dict[str, Any] = {option: function}
            self.streams[stream] = replace(self.streams[stream], **given)
            return function

        return register

    def _refuse_rivals(self, stream: Stream) -> None:
        for other in self.streams.values():
            if shared := sorted(stream.consumed & other.consumed):
                own = "consumer group" if isinstance(stream.source, Valkey) else "queue"
                raise UsageError(
                    f"{shared[0]} is already read by stream {other.name!r}; use a separate {own} for each stream"
                )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({mask_url(self.store)!r}, streams={sorted(self.streams)})"


def part_of(key: str, parts: int) -> int:
    """Return the state partition of a key. CRC-32 is the same in every process and version; Python's `hash` is not."""
    return zlib.crc32(key.encode()) % parts


def default_key(event: Any) -> str:
    """Return the event's partition key, else its ordering key."""
    key = event.partition_key or event.ordering_key
    if key is None:
        raise UsageError("event has no partition_key or ordering_key; set key= of the stream")
    return str(key)
