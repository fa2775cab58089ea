"""Counts and controls of queues, and the processes that serve them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True)
class QueueStats:
    queue: str
    pending: int = 0
    ready: int = 0
    claimed: int = 0
    published: int = 0
    dead: int = 0
    oldest_pending_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Relay:
    """A running relay, as it announces itself. A worker does so too, once for each of its queues."""

    relay_id: UUID
    queue: str
    destination: str
    host: str


@dataclass(frozen=True, slots=True)
class RelayStats(Relay):
    """A relay or worker that announced itself, as others see it."""

    started_at: datetime
    seen_seconds_ago: float
    stopping: bool

    @property
    def kind(self) -> str:
        """A destination is a URL or a list of them, but of a worker it says that, and which one."""
        return "worker" if self.destination.startswith("worker ") else "relay"


@dataclass(frozen=True, slots=True)
class Stats:
    """The state of the store at a glance."""

    queues: Sequence[QueueStats]
    open_leases: int
    expired_leases: int
    oldest_snapshot_seconds: float | None
    relays: Sequence[RelayStats]
    dead_errors: Sequence[tuple[str, int]]
    purged: Mapping[str, int] = field(default_factory=dict)
    """PUBLISHED events that were purged, by queue."""

    def total(self, field_name: str) -> int:
        return sum(getattr(queue, field_name) for queue in self.queues)

    @property
    def oldest_pending_seconds(self) -> float | None:
        ages = [queue.oldest_pending_seconds for queue in self.queues if queue.oldest_pending_seconds is not None]
        return max(ages, default=None)


@dataclass(frozen=True, slots=True)
class QueueControl:
    """How a queue is steered. Only queues that somebody has paused or limited have one."""

    queue: str
    paused_at: datetime | None = None
    paused_by: str | None = None
    max_claimed: int | None = None

    @property
    def paused(self) -> bool:
        return self.paused_at is not None
