"""The seam between Penstock and a database: a dozen verbs, and the values that they take and return."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NewType, Protocol
from uuid import UUID

from penstock.errors import UsageError
from penstock.event import Delivery, Event, EventId
from penstock.lifecycle import DEFAULT_MAX_ATTEMPTS, OrderPolicy, Outcome, State
from penstock.store.control import Keeping, Steering
from penstock.store.deaths import DeathRecords

Progress = Callable[[int], None]

LeaseId = NewType("LeaseId", UUID)
Token = NewType("Token", UUID)

DEFAULT_LEASE_SECONDS = 60.0
DEFAULT_MAX_LEASE_AGE_SECONDS = 3_600.0
REAP_BATCH = 10_000
REPLAY_BATCH = 5_000
PURGE_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to settle what was claimed under it, for as long as its token is the newest."""

    lease_id: LeaseId
    token: Token
    queue: str
    lease_seconds: float = DEFAULT_LEASE_SECONDS


@dataclass(frozen=True, slots=True)
class Held:
    """An open lease with the token that counts now, and who claimed under it last."""

    lease: Lease
    claimant: str


@dataclass(frozen=True, slots=True)
class Claim:
    """What a claim brought. `repeated` says that the lease was known and this is its unsettled remainder."""

    lease: Lease
    events: Sequence[Delivery]
    repeated: bool = False

    def __bool__(self) -> bool:
        return bool(self.events)

    def __len__(self) -> int:
        return len(self.events)


@dataclass(frozen=True, slots=True)
class Settlement:
    """What a settle did, by seq: applied now, applied before by the same lease, or no longer ours."""

    published: frozenset[int] = frozenset()
    retried: frozenset[int] = frozenset()
    dead: frozenset[int] = frozenset()
    released: frozenset[int] = frozenset()
    already_settled: frozenset[int] = frozenset()
    lost: frozenset[int] = frozenset()

    @property
    def applied(self) -> int:
        return len(self.published) + len(self.retried) + len(self.dead) + len(self.released)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which events. Every field that is given narrows it; `everything` must be said to mean all."""

    ids: frozenset[EventId] | None = None
    states: frozenset[State] | None = None
    queue: str | None = None
    event_type: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    error: str | None = None
    queues: frozenset[str] | None = None
    event_types: frozenset[str] | None = None
    everything: bool = False

    @property
    def empty(self) -> bool:
        one = (self.ids, self.states, self.queue, self.event_type, self.since, self.until, self.error)
        several = (self.queues, self.event_types)
        return all(part is None for part in one + several) and not self.everything

    def require(self, verb: str) -> None:
        if self.empty:
            raise UsageError(f"{verb} needs a selection, such as a queue, a state or ids; or say everything")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """An event as it stands: the one row of the outbox specification."""

    seq: int
    event_id: EventId
    event_type: str
    queue: str
    state: State
    payload: bytes
    headers: Mapping[str, str]
    partition_key: str | None
    ordering_key: str | None
    priority: int
    created_at: datetime
    available_at: datetime
    attempts: int
    deliveries: int
    max_attempts: int | None
    replays: int
    suspect: int
    last_error: str | None
    claimed_at: datetime | None
    claimed_by: str | None
    lease_expires_at: datetime | None
    published_at: datetime | None
    settled_at: datetime | None


@dataclass(frozen=True, slots=True)
class Page:
    """Some of what was found; `after` asks for the next page, and is None on the last one."""

    records: Sequence[Record]
    after: int | None


@dataclass(frozen=True, slots=True)
class SettledCount:
    """How many events of one kind an operation would touch."""

    state: State
    queue: str
    event_type: str
    count: int


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One line of an event's timeline."""

    at: datetime
    what: str
    attempts: int
    by: str | None
    detail: str | None


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
class RelayStats:
    """A relay or worker that announced itself, as others see it."""

    relay_id: UUID
    queue: str
    destination: str
    host: str
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
class Part:
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


class Store(Steering, Keeping, DeathRecords, Protocol):
    """Domain verbs, set-based: a batch takes as many statements as one event. `Steering` has those beside the flow."""

    url: str
    capabilities: Capabilities

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

    def find(self, selection: Selection, *, after: int | None = None, limit: int = 100) -> Page:
        """Events by seq, newest first, a page at a time."""
        ...

    def history(self, event_id: EventId) -> Sequence[HistoryEntry]:
        """The timeline of one event, oldest first."""
        ...

    def settled_counts(self, selection: Selection) -> Sequence[SettledCount]:
        """What a replay of the selection would touch, by state, queue and type, the most first."""
        ...

    def bounds(self) -> tuple[int, int]:
        """The first and the last seq there are; (1, 0) where there are none."""
        ...

    def stats(self) -> Stats: ...

    def beat(self, relay: Relay, *, stopping: bool = False) -> bool:
        """A relay says that it is alive; the answer says whether it should stop."""
        ...

    def stopping(self, relay_id: UUID) -> bool:
        """Whether that relay was asked to stop."""
        ...

    def forget(self, relay_id: UUID) -> None:
        """That relay has ended."""
        ...

    def stage(self, part: Part, events: Sequence[Event], *, start: int = 0) -> int:
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

    def tend(self) -> None:
        """Upkeep that may run at any time and at most needs to run every minute."""
        ...

    def ready(self, queue: str, *, types: Sequence[str] | None = None) -> bool:
        """A cheap probe: whether a claim on `queue` would bring anything now."""
        ...

    def close(self) -> None: ...
