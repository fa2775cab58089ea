"""Sources of a stream, as plain values. `penstock.pipeline` reads them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.config.urls import mask_url
from penstock.model.errors import UsageError

MIN_IDLE_TIME_MS = 60_000
REMEMBER_SECONDS = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue of Penstock. The stream settles its events, so retries and dead letters stay in the queue."""

    name: str

    def __str__(self) -> str:
        return f"queue {self.name}"


@dataclass(frozen=True, slots=True)
class Valkey:
    """Valkey or Redis streams, read by a consumer group and acknowledged after the commit."""

    url: str
    stream: str
    group: str = "penstock"
    min_idle_time_ms: int = MIN_IDLE_TIME_MS
    """Milliseconds after which entries that another consumer has not acknowledged are taken over."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Additional options of `format("penstock-valkey")`."""

    def __post_init__(self) -> None:
        if self.min_idle_time_ms < 1:
            raise UsageError(f"min_idle_time_ms must be at least 1, got {self.min_idle_time_ms}")

    def __str__(self) -> str:
        return f"{self.stream} at {mask_url(self.url)}"


@dataclass(frozen=True, slots=True)
class Kafka:
    """Kafka topics, read through Spark's connector. Their order is fixed, so the state stores the offsets."""

    servers: str
    topics: str
    """Topic names, separated by commas."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Additional options of Spark's `format("kafka")`, such as `kafka.security.protocol`."""
    pattern: bool = False
    """True if `topics` is a Java regular expression. New topics that match are read once they exist."""

    def __post_init__(self) -> None:
        if not self.servers or not self.topics:
            raise UsageError('missing servers or topics of the Kafka source; use Kafka("broker:9092", "orders")')

    def __str__(self) -> str:
        return f"{self.topics} at {self.servers}"


@dataclass(frozen=True, slots=True)
class Frame:
    """Any streaming DataFrame, returned by a function of the Spark session.

    The column `event_id` identifies an event, or the columns `line` (a string) and `offset` (a number that increases
    within each `line`). The columns `partition_key`, `ordering_key`, `event_type`, `headers` and `created_at` are
    optional fields of the event. The payload is the column `payload`: strings and bytes unchanged, other types as JSON.
    Without this column, the payload is a JSON object of all other columns.
    """

    open: Callable[[Any], Any]
    remember_seconds: float = REMEMBER_SECONDS
    """Seconds for which the inbox remembers an `event_id`. If Spark's checkpoint is lost, only the inbox remembers the
    event."""

    def __str__(self) -> str:
        return "a DataFrame"


Source = Queue | Valkey | Kafka | Frame


def as_source(given: str | Source) -> Source:
    """Return a source; a plain string is the name of a queue."""
    if isinstance(given, Source):
        return given
    if not isinstance(given, str) or not given:
        raise UsageError(f"source must be the name of a queue, or a Valkey, Kafka or Frame, got {given!r}")
    return Queue(given)


def consumed(source: Source) -> frozenset[str]:
    """Return the queues or consumer-group streams of a source: each delivers an event to one reader only."""
    match source:
        case Queue(name):
            return frozenset({f"queue {name!r}"})
        case Valkey(url, streams, group):
            names = (name.strip() for name in streams.split(","))
            return frozenset(f"Valkey stream {name!r} at {mask_url(url)} in group {group!r}" for name in names)
        case Kafka() | Frame():
            return frozenset()
