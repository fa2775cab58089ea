"""The half of the seam beside the flow of events: queues that are paused or limited, events that are cancelled, what a
handler says of its work, and whose turn it is in several queues."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from penstock.event import EventId
from penstock.store.migrate import Upgrade

if TYPE_CHECKING:
    from penstock.store.base import Lease, Selection, SettledCount

CANCELLED = "cancelled"
"""The reason for a cancellation of which no other is given."""


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


@dataclass(frozen=True, slots=True)
class Note:
    """What whoever handles an event has said of it: how far it has come, and what came of it. Both are opaque bytes."""

    progress: bytes | None = None
    result: bytes | None = None


@dataclass(frozen=True, slots=True, order=True)
class Head:
    """The first event of a queue that may go now. Heads sort as a claim on all of their queues would take them."""

    rank: int
    """The priority, negated: the highest comes first."""
    available_at: datetime
    seq: int
    queue: str


class Steering(Protocol):
    """Verbs that steer. A pause or a limit counts for every claim that begins after it, in any process."""

    def pause(self, queue: str, *, by: str = "operator") -> None:
        """From now on claims on `queue` bring nothing; what is claimed goes on. A repeat keeps the first time."""
        ...

    def resume(self, queue: str) -> bool:
        """End a pause; says whether there was one."""
        ...

    def limit(self, queue: str, max_claimed: int | None) -> None:
        """Let no more than `max_claimed` events of `queue` be claimed at a time, over all processes; None for any."""
        ...

    def controls(self) -> Sequence[QueueControl]:
        """The queues that are paused or limited, by name."""
        ...

    def cancel(
        self,
        selection: "Selection",
        *,
        reason: str = CANCELLED,
        by: str = "operator",
        dry_run: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Make unsettled events DEAD; returns how many. CLAIMED ones only if the selection names CLAIMED or ids.

        Whoever holds a cancelled event has lost it, and is told so when it settles. `progress` hears how many so far.
        """
        ...

    def unsettled_counts(self, selection: "Selection") -> "Sequence[SettledCount]":
        """What a cancel of the selection would touch, by state, queue and type, the most first."""
        ...

    def note(self, lease: "Lease", progress: Mapping[int, bytes]) -> frozenset[int]:
        """Keep how far events (by seq) under `lease` have come; returns those still held. The others are lost."""
        ...

    def notes(self, ids: Collection[EventId]) -> Mapping[EventId, Note]:
        """What has been said of these events; those of which nothing was are left out. A replay forgets it."""
        ...

    def heads(self, prefix: str, *, queues: Collection[str] | None = None) -> Sequence[Head]:
        """The head of each queue that has something ready, whose name begins with `prefix` (and is among `queues`).

        Sorted: the first is the next one's turn. Paused queues are left out.
        """
        ...


class Keeping(Protocol):
    """What a store needs around its verbs: to be made, to be told apart from an older one, and a clock."""

    def now(self) -> datetime:
        """The time by the store's clock, which is the one that counts."""
        ...

    def look_at_all(self) -> None:
        """Make the next claim and probe look at everything, not only where something new is to be expected."""
        ...

    def initialise(self) -> Upgrade:
        """Create what the store needs, or upgrade it; says what it did, and is safe to repeat."""
        ...

    def versions(self) -> tuple[str | None, str]:
        """The version that is there, None where there is nothing, and the one that this code wants."""
        ...
