"""Statistics and controls of queues, and the relays and workers that serve queues."""

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
    """Announcement of a running relay. A worker sends one for each of its queues."""

    relay_id: UUID
    queue: str
    destination: str
    host: str


@dataclass(frozen=True, slots=True)
class RelayStats(Relay):
    """A relay or worker as seen through its announcements."""

    started_at: datetime
    seen_seconds_ago: float
    stopping: bool

    @property
    def kind(self) -> str:
        """Return "worker" or "relay". The destination of a worker is "worker" with its id; that of a relay is URLs."""
        return "worker" if self.destination.startswith("worker ") else "relay"


@dataclass(frozen=True, slots=True)
class Stats:
    """Overview of the state of a store."""

    queues: Sequence[QueueStats]
    open_leases: int
    expired_leases: int
    oldest_snapshot_seconds: float | None
    relays: Sequence[RelayStats]
    dead_errors: Sequence[tuple[str, int]]
    purged: Mapping[str, int] = field(default_factory=dict)
    """Number of purged PUBLISHED events by queue."""

    def total(self, field_name: str) -> int:
        return sum(getattr(queue, field_name) for queue in self.queues)

    @property
    def oldest_pending_seconds(self) -> float | None:
        ages = [queue.oldest_pending_seconds for queue in self.queues if queue.oldest_pending_seconds is not None]
        return max(ages, default=None)


@dataclass(frozen=True, slots=True)
class QueueControl:
    """Pause and limit of a queue. Only paused or limited queues have one."""

    queue: str
    paused_at: datetime | None = None
    paused_by: str | None = None
    max_claimed: int | None = None

    @property
    def paused(self) -> bool:
        return self.paused_at is not None
