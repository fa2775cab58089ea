"""Where a stream's events come from. Values only: what reads them is `penstock.pipeline`'s."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.config.urls import mask_url
from penstock.model.errors import UsageError

MIN_IDLE_TIME_MS = 60_000
REMEMBER_SECONDS = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue of Penstock's own. It is told what became of each event: retries and dead letters are its own."""

    name: str

    def __str__(self) -> str:
        return f"queue {self.name}"


@dataclass(frozen=True, slots=True)
class Valkey:
    """Streams of Valkey or Redis, read by a consumer group and acknowledged after the commit."""

    url: str
    stream: str
    group: str = "penstock"
    min_idle_time_ms: int = MIN_IDLE_TIME_MS
    """After so long, entries that another consumer never acknowledged are taken over."""
    options: Mapping[str, str] = field(default_factory=dict)
    """More options of `format("penstock-valkey")`."""

    def __post_init__(self) -> None:
        if self.min_idle_time_ms < 1:
            raise UsageError("min_idle_time_ms must be 1 or more")

    def __str__(self) -> str:
        return f"{self.stream} at {mask_url(self.url)}"


@dataclass(frozen=True, slots=True)
class Kafka:
    """Topics of Kafka, through Spark's own connector. Their order is fixed: the state holds how far it is."""

    servers: str
    topics: str
    """Names, with commas between them."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """More options of Spark's `format("kafka")`, such as `kafka.security.protocol`."""
    pattern: bool = False
    """Whether `topics` is a regular expression of Java instead: topics that match are read once they are there."""

    def __post_init__(self) -> None:
        if not self.servers or not self.topics:
            raise UsageError('a Kafka source needs servers and topics: Kafka("broker:9092", "orders")')

    def __str__(self) -> str:
        return f"{self.topics} at {self.servers}"


@dataclass(frozen=True, slots=True)
class Frame:
    """Any streaming DataFrame, made by a function of the session.

    An event is known by the column `event_id`, or by `line` (a string) and `offset` (a number that only rises in its
    line). `partition_key`, `ordering_key`, `event_type`, `headers` and `created_at` are taken where they are there.
    A column `payload` is taken as it is, or as JSON; without one it is a JSON object of all other columns.
    """

    open: Callable[[Any], Any]
    remember_seconds: float = REMEMBER_SECONDS
    """For so long an `event_id` is known: nobody else remembers it once Spark's checkpoint is lost."""

    def __str__(self) -> str:
        return "a DataFrame"


Source = Queue | Valkey | Kafka | Frame


def as_source(given: str | Source) -> Source:
    """A source; a mere name is that of a queue."""
    if isinstance(given, Source):
        return given
    if not isinstance(given, str) or not given:
        raise UsageError(f"a stream reads a queue by its name, or a Valkey, Kafka or Frame source, not {given!r}")
    return Queue(given)


def consumed(source: Source) -> frozenset[str]:
    """Return what hands each event to one reader only, of what a source reads: queues, streams of a consumer group."""
    match source:
        case Queue(name):
            return frozenset({f"queue {name!r}"})
        case Valkey(url, streams, group):
            names = (name.strip() for name in streams.split(","))
            return frozenset(f"{name!r} at {mask_url(url)} in the group {group!r}" for name in names)
        case Kafka() | Frame():
            return frozenset()
