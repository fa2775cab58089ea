"""The seam between Penstock and a database: four roles of a store, and the values that they take and return."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from penstock.model.dead_letters import DeathCount, DeathMark, DeathPage
from penstock.model.errors import NotSupported
from penstock.model.event import Event, EventId
from penstock.model.lease import (
    DEFAULT_LEASE_SECONDS,
    DEFAULT_MAX_LEASE_AGE_SECONDS,
    Claim,
    Held,
    Lease,
    LeaseId,
    Settlement,
)
from penstock.model.lifecycle import DEFAULT_MAX_ATTEMPTS, OrderPolicy
from penstock.model.outcome import Outcome
from penstock.model.records import Head, HistoryEntry, Note, Page, SettledCount
from penstock.model.selection import Selection
from penstock.model.stats import QueueControl, Relay, Stats


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What an upgrade did: from where, to where, by which steps."""

    before: str | None
    after: str
    steps: Sequence[str]


CANCELLED = "cancelled"
"""The reason for a cancellation of which no other is given."""


Progress = Callable[[int], None]


REAP_BATCH = 10_000
REPLAY_BATCH = 5_000
PURGE_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class StagedPart:
    """What one attempt of one task stages of a write. `part_id` is new for every attempt; `place` orders the parts."""

    part_id: UUID
    write_id: UUID
    batch_id: int = 0
    place: int = 0


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit made of staged rows. `repeated` says that the batch was committed before, and nothing done now."""

    events: int = 0
    duplicates: int = 0
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do beyond the verbs; what it can't is refused with a clear error."""

    transactional_emit: bool
    ordering: bool
    concurrent_writers: bool
    insert_into_view: bool = True
    routing: bool = True
    """Moving claimed events to other queues: `route`."""
    limits: bool = True
    """Limiting how many events of a queue are claimed at a time: `limit`."""
    staging: bool = True


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How a store behaves, the same for every backend."""

    order_policy: OrderPolicy = OrderPolicy.BLOCK
    max_lease_age_seconds: float = DEFAULT_MAX_LEASE_AGE_SECONDS
    pool_size: int = 5
    settings: Mapping[str, Any] = field(default_factory=dict)


class Flow(Protocol):
    """The way of events: emitted, claimed under a lease, settled."""

    def append(self, events: Sequence[Event], *, connection: object | None = None) -> list[EventId]:
        """Write events, in the caller's transaction if one is given; a duplicate's id is the first one's."""
        ...

    def claim(
        self,
        queue: str,
        *,
        limit: int,
        claimant: str,
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
        lease_id: LeaseId | None = None,
        types: Sequence[str] | None = None,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    ) -> Claim:
        """Take up to `limit` events under one lease. A known `lease_id` repeats its claim.

        `max_attempts` stays with the lease, so that whoever settles or reaps it counts alike.
        """
        ...

    def ready(self, queue: str, *, types: Sequence[str] | None = None) -> bool:
        """A cheap probe: whether a claim on `queue` would bring anything now."""
        ...

    def scan_everything(self) -> None:
        """Make the next claim and probe look at everything, not only where something new is to be expected."""
        ...

    def extend(self, leases: Sequence[Lease]) -> list[Lease]:
        """Heartbeat many leases at once; the ones that come back are still held, the others are lost."""
        ...

    def held(self, lease_ids: Sequence[LeaseId]) -> Sequence[Held]:
        """Which of these leases are open, and whose they are now. Closed and unknown ones are left out.

        For whoever watches over claims that others make: only a lease whose claimant is its own is its to use.
        """
        ...

    def settle(self, lease: Lease, outcomes: Mapping[int, Outcome]) -> Settlement:
        """Apply outcomes (by seq) to the events still under `lease`; report the ones that no longer are.

        One with `keep=False` leaves nothing behind: the event is deleted, and a repeat of the settle calls it lost.
        """
        ...

    def route(self, lease: Lease, queues: Mapping[int, Sequence[str]]) -> Settlement:
        """Move events (by seq) from under `lease` to other queues, in all of them at once if there are several.

        Each is pending there as if just emitted, with a life of its own, under the event's one id. The settlement
        says which moved (`released`), and which were no longer ours (`lost`).
        """
        ...

    def release(self, lease: Lease) -> int:
        """Give back, uncounted, all that is still claimed under `lease`."""
        ...

    def reap(self, *, limit: int = REAP_BATCH) -> int:
        """Take back the events of expired leases, up to about `limit` of them; 0 says there were none."""
        ...


class Inspection(Protocol):
    """Queries of what a store holds. They change nothing."""

    def find(self, selection: Selection, *, after: int | None = None, limit: int = 100) -> Page:
        """Events by seq, newest first, a page at a time."""
        ...

    def history(self, event_id: EventId) -> Sequence[HistoryEntry]:
        """The timeline of one event, oldest first."""
        ...

    def bounds(self) -> tuple[int, int]:
        """The first and the last seq there are; (1, 0) where there are none."""
        ...

    def stats(self) -> Stats: ...

    def settled_counts(self, selection: Selection) -> Sequence[SettledCount]:
        """What a replay of the selection would touch, by state, queue and type, the most first."""
        ...

    def unsettled_counts(self, selection: Selection) -> Sequence[SettledCount]:
        """What a cancel of the selection would touch, by state, queue and type, the most first."""
        ...

    def deaths(self, selection: Selection, *, after: DeathMark | None = None, limit: int = 100) -> DeathPage:
        """The dead of a selection, the latest death first, a page at a time."""
        ...

    def death_counts(self, selection: Selection) -> Sequence[DeathCount]:
        """The dead of a selection by queue and by kind of error, the most first."""
        ...

    def controls(self) -> Sequence[QueueControl]:
        """The queues that are paused or limited, by name."""
        ...

    def notes(self, ids: Collection[EventId]) -> Mapping[EventId, Note]:
        """What has been said of these events; those of which nothing was are left out. A replay forgets it."""
        ...

    def heads(self, prefix: str, *, queues: Collection[str] | None = None) -> Sequence[Head]:
        """The head of each queue that has something ready, whose name begins with `prefix` (and is among `queues`).

        Sorted: the first is the next to be served. Paused queues are left out.
        """
        ...


class Control(Protocol):
    """Operations on queues, events, processes and the store itself.

    A pause or a limit counts for every claim that begins after it, in any process.
    """

    def pause(self, queue: str, *, by: str = "operator") -> None:
        """From now on claims on `queue` bring nothing; what is claimed goes on. A repeat keeps the first time."""
        ...

    def resume(self, queue: str) -> bool:
        """End a pause; says whether there was one."""
        ...

    def limit(self, queue: str, max_claimed: int | None) -> None:
        """Let no more than `max_claimed` events of `queue` be claimed at a time, over all processes; None for any."""
        ...

    def cancel(
        self,
        selection: Selection,
        *,
        reason: str = CANCELLED,
        by: str = "operator",
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> int:
        """Make unsettled events DEAD; returns how many. CLAIMED ones only if the selection names CLAIMED or ids.

        Whoever holds a cancelled event has lost it, which its settlement reports. `progress` gets the number so far.
        """
        ...

    def replay(
        self, selection: Selection, *, dry_run: bool = False, by: str = "operator", progress: Progress | None = None
    ) -> int:
        """Make settled events pending again; returns how many, of which `progress` hears on the way."""
        ...

    def purge(
        self,
        selection: Selection,
        *,
        batch: int = PURGE_BATCH,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> int:
        """Delete settled events for good, in bounded batches. DEAD ones only if the selection names DEAD or ids."""
        ...

    def note(self, lease: Lease, progress: Mapping[int, bytes]) -> frozenset[int]:
        """Keep how far events (by seq) under `lease` have come; returns those still held. The others are lost."""
        ...

    def announce(self, relay: Relay, *, stopping: bool = False) -> bool:
        """A relay says that it is alive; the answer says whether it should stop."""
        ...

    def asked_to_stop(self, relay_id: UUID) -> bool:
        """Whether that relay was asked to stop."""
        ...

    def withdraw(self, relay_id: UUID) -> None:
        """That relay has ended."""
        ...

    def maintain(self) -> None:
        """Upkeep that may run at any time and at most needs to run every minute."""
        ...

    def initialise(self) -> Upgrade:
        """Create what the store needs, or upgrade it; says what it did, and is safe to repeat."""
        ...

    def versions(self) -> tuple[str | None, str]:
        """The version that is there, None where there is nothing, and the one that this code wants."""
        ...

    def now(self) -> datetime:
        """The time by the store's clock, which is the one that counts."""
        ...

    def close(self) -> None: ...


class Staging(Protocol):
    """Rows of a Spark write, kept aside until one transaction makes events of them."""

    def stage(self, part: StagedPart, events: Sequence[Event], *, start: int = 0) -> int:
        """Keep events aside that only a commit emits; `start` counts those that the part has staged before."""
        ...

    def commit_staged(self, write_id: UUID, batch_id: int, parts: Mapping[UUID, int], *, once: bool) -> Committed:
        """Emit the named parts (with the number of rows in each) together, and drop the batch's others.

        With `once`, a batch that is not later than the last one committed under `write_id` is only dropped.
        """
        ...

    def drop_staged(self, write_id: UUID, *, parts: Collection[UUID] | None = None) -> int:
        """Drop what a write has staged, or only these parts of it; returns how many rows."""
        ...


class Store(Flow, Inspection, Control, Staging, Protocol):
    """A database or bucket with queues. Operations are set-based: a batch takes as many statements as one event."""

    url: str
    capabilities: Capabilities


def require_staging(url: str, capabilities: Capabilities) -> None:
    """Raise `NotSupported` if the store at `url`, of these capabilities, does not stage."""
    if not capabilities.staging:
        raise NotSupported(
            f"{url} has no staging, which df.writeStream and streams need to emit exactly once; "
            "use a store on PostgreSQL or SQLite, or emit at least once with df.write"
        )
