"""The store interface: four roles that every backend implements, and the values that their methods use.

`Flow` moves events, `Inspection` reads, `Control` operates on queues and events, `Staging` emits Spark writes exactly
once. The conformance suite in `penstock.testing.stores` checks each backend against this contract.
"""

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
    """Result of `initialise`: the versions before and after, and the migrations that ran."""

    before: str | None
    """Version before the upgrade; None if the store was not initialised."""
    after: str
    steps: Sequence[str]


CANCELLED = "cancelled"
"""Default reason of a cancellation."""


Progress = Callable[[int], None]
"""Callback of a bulk operation: receives the number of events changed so far."""


REAP_BATCH = 10_000
REPLAY_BATCH = 5_000
PURGE_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class StagedPart:
    """Rows of one write that one attempt of one Spark task stages."""

    part_id: UUID
    """A new id for every attempt of a task."""
    write_id: UUID
    """The write, streaming query or state partition to which the part belongs."""
    batch_id: int = 0
    place: int = 0
    """Position among the parts of the batch: the commit emits events by place, then by row."""


@dataclass(frozen=True, slots=True)
class Committed:
    """Result of a commit of staged rows."""

    events: int = 0
    """Number of events emitted."""
    duplicates: int = 0
    """Number of rows not emitted because a deduplication window was open."""
    repeated: bool = False
    """True if this batch or a later one was committed before: the rows were dropped and nothing was emitted."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Optional features of a backend. Using a feature that is not declared raises `NotSupported`."""

    transactional_emit: bool
    """`append` accepts the caller's connection and writes in its transaction."""
    ordering: bool
    """Events may have ordering keys."""
    concurrent_writers: bool
    """Writers don't exclude each other. SQLite allows one write transaction at a time."""
    insert_into_view: bool = True
    """An SQL INSERT into the view `penstock_outbox` emits an event."""
    routing: bool = True
    """`route` moves claimed events to other queues."""
    limits: bool = True
    """`limit` bounds how many events of a queue are claimed at a time."""
    staging: bool = True
    """`stage`, `commit_staged` and `drop_staged` are available."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options of an open store. A backend ignores options that do not apply to it."""

    order_policy: OrderPolicy = OrderPolicy.BLOCK
    max_lease_age_seconds: float = DEFAULT_MAX_LEASE_AGE_SECONDS
    """Seconds after its first claim beyond which a lease can't be extended."""
    pool_size: int = 5
    """Connections that a process keeps open to a database server."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """URL options of the object store; they override those in its URL."""


class Flow(Protocol):
    """The event lifecycle: emit events, claim them under a lease, settle them."""

    def append(self, events: Sequence[Event], *, connection: object | None = None) -> list[EventId]:
        """Write events and return their ids, in the same order.

        With `connection`, write in the caller's transaction; otherwise in a new one. An event whose deduplication
        window is open is not written; the id returned in its place is that of the event that opened the window.
        """
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
        """Claim up to `limit` due events of `queue` under one lease, in delivery order.

        A `lease_id` that is already known repeats its claim: the lease gets a new token and more time, and the claim
        returns the events that are still unsettled, never new ones. A repeat by a different `claimant` counts as a
        lost attempt of each event. The repeat of a closed lease returns no events.

        `types` restricts the claim to these event types. An event that fails for the `max_attempts`-th time becomes
        DEAD, unless the event has its own maximum. `max_attempts` is stored with the lease, so that `settle` and
        `reap` apply the same maximum in every process.
        """
        ...

    def ready(self, queue: str, *, types: Sequence[str] | None = None) -> bool:
        """Return whether `queue` has events that can be claimed now. Cheaper than a claim.

        False for a paused queue. A limit set by `limit` is not considered.
        """
        ...

    def scan_everything(self) -> None:
        """Make the next claim and the next `ready` consider all pending events.

        A backend may start its scans at the earliest time at which it expects events, and scan all events only every
        few seconds. Call this method to find at once the events that another process made pending with an earlier time.
        """
        ...

    def extend(self, leases: Sequence[Lease]) -> list[Lease]:
        """Extend leases (heartbeat). Return the leases that were extended; the others are lost.

        A lease older than `StoreOptions.max_lease_age_seconds` is not extended.
        """
        ...

    def held(self, lease_ids: Sequence[LeaseId]) -> Sequence[Held]:
        """Return the open leases among `lease_ids`, each with its current token and claimant.

        For a process that supervises claims made by other processes, such as a Spark driver. The caller must check
        the claimant before using a token: after a repeat, the lease belongs to another claimant.
        """
        ...

    def settle(self, lease: Lease, outcomes: Mapping[int, Outcome]) -> Settlement:
        """Apply outcomes, by seq, to the events that are still claimed under `lease`.

        The settlement also reports the events that the same lease settled before (`already_settled`) and the events
        that are no longer claimed under the lease (`lost`). An outcome with `keep=False` deletes the event once the
        event is PUBLISHED or DEAD; a repeated settle then reports the event as lost.
        """
        ...

    def route(self, lease: Lease, queues: Mapping[int, Sequence[str]]) -> Settlement:
        """Move claimed events, by seq, to other queues; an event with several queues is copied to all of them.

        In each queue the event is pending as if just emitted, with its own attempts, lease and state; all copies have
        the event id of the original. The settlement reports the moved events as `released`, and events that are no
        longer claimed under the lease as `lost`. A repeat after a successful `route` reports its events as lost.
        """
        ...

    def release(self, lease: Lease) -> int:
        """Return all events under `lease` to their queue without counting an attempt. Return their number."""
        ...

    def reap(self, *, limit: int = REAP_BATCH) -> int:
        """Return the events of expired leases to their queues, counting an attempt for each. Return their number.

        An event at its last attempt becomes DEAD. A lease is reaped as a whole: one call reaps at least one expired
        lease, and further ones up to a total of `limit` events. The result is 0 if no lease has expired.
        """
        ...


class Inspection(Protocol):
    """Queries of events, queues and relays. They change nothing."""

    def find(self, selection: Selection, *, after: int | None = None, limit: int = 100) -> Page:
        """Return a page of events by seq, newest first. `after` is the `after` of the previous page."""
        ...

    def history(self, event_id: EventId) -> Sequence[HistoryEntry]:
        """Return the recorded transitions of an event, oldest first."""
        ...

    def bounds(self) -> tuple[int, int]:
        """Return the lowest and the highest seq; (1, 0) if the store has no events."""
        ...

    def stats(self) -> Stats:
        """Return event counts by queue and state, lease counts, running relays and the most frequent errors."""
        ...

    def settled_counts(self, selection: Selection) -> Sequence[SettledCount]:
        """Count the settled events of a selection by state, queue and type, largest first: a preview of `replay`."""
        ...

    def unsettled_counts(self, selection: Selection) -> Sequence[SettledCount]:
        """Count the events that `cancel` would cancel by state, queue and type, largest first."""
        ...

    def deaths(self, selection: Selection, *, after: DeathMark | None = None, limit: int = 100) -> DeathPage:
        """Return a page of the dead events of a selection, latest death first, without payloads."""
        ...

    def death_counts(self, selection: Selection) -> Sequence[DeathCount]:
        """Count the dead events of a selection by queue and kind of error, largest first."""
        ...

    def controls(self) -> Sequence[QueueControl]:
        """Return the queues that are paused or limited, by name."""
        ...

    def notes(self, ids: Collection[EventId]) -> Mapping[EventId, Note]:
        """Return progress and result of these events; omit events with neither. A replay deletes both."""
        ...

    def heads(self, prefix: str, *, queues: Collection[str] | None = None) -> Sequence[Head]:
        """Return the first claimable event of each queue whose name begins with `prefix` and is in `queues`.

        The heads are sorted by priority, time and seq, as a claim would deliver them. Paused queues are left out.
        """
        ...


class Control(Protocol):
    """Operations on queues, events, relays and the store itself.

    A pause or a limit applies to every claim that begins after it, in any process. `cancel`, `replay` and `purge`
    raise `UsageError` for an empty selection. With `dry_run` they return the number of events without changing any.
    """

    def pause(self, queue: str, *, by: str = "operator") -> None:
        """Stop new claims on `queue`. Claimed events can still be settled, and their claims extended and repeated.

        Pausing a paused queue changes nothing: time and `by` of the first pause are kept.
        """
        ...

    def resume(self, queue: str) -> bool:
        """End the pause of `queue`. Return whether the queue was paused."""
        ...

    def limit(self, queue: str, max_claimed: int | None) -> None:
        """Limit the events of `queue` that all processes together may have claimed; None removes the limit."""
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
        """Make unsettled events DEAD with `reason` as their error. Return their number.

        CLAIMED events are cancelled only if the selection names the state CLAIMED or ids. The claimant's settlement
        reports a cancelled event as lost.
        """
        ...

    def replay(
        self, selection: Selection, *, dry_run: bool = False, by: str = "operator", progress: Progress | None = None
    ) -> int:
        """Make settled events pending again. Return their number.

        Attempts, deliveries and the last error are reset. The history is kept; progress and result are deleted.
        """
        ...

    def purge(
        self,
        selection: Selection,
        *,
        batch: int = PURGE_BATCH,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> int:
        """Delete settled events permanently, with their history, in transactions of up to `batch` events.

        Return their number. DEAD events are deleted only if the selection names the state DEAD or ids.
        """
        ...

    def note(self, lease: Lease, progress: Mapping[int, bytes]) -> frozenset[int]:
        """Store progress reports, by seq, of events that are still claimed under `lease`. Return their seqs."""
        ...

    def announce(self, relay: Relay, *, stopping: bool = False) -> bool:
        """Record the heartbeat of a relay or worker. Return whether it has been asked to stop.

        `stopping` asks the relay to stop; the request stays until `withdraw`.
        """
        ...

    def asked_to_stop(self, relay_id: UUID) -> bool:
        """Return whether a relay has been asked to stop."""
        ...

    def withdraw(self, relay_id: UUID) -> None:
        """Delete the announcement of a relay that has ended."""
        ...

    def maintain(self) -> None:
        """Delete expired bookkeeping such as old closed leases. May run at any time; once a minute is enough."""
        ...

    def initialise(self) -> Upgrade:
        """Create or upgrade the tables or documents of the store. Safe to repeat."""
        ...

    def versions(self) -> tuple[str | None, str]:
        """Return the version of the store, None if not initialised, and the version that this code requires."""
        ...

    def now(self) -> datetime:
        """Return the time of the store's clock, by which leases and delays are measured."""
        ...

    def close(self) -> None:
        """Close the connections of this process."""
        ...


class Staging(Protocol):
    """Staged rows of Spark writes and streams: stored by tasks, then emitted together in one transaction."""

    def stage(self, part: StagedPart, events: Sequence[Event], *, start: int = 0) -> int:
        """Store events that only `commit_staged` will emit. Return the number of rows staged in the part.

        `start` is the number of rows that earlier calls staged in the same part.
        """
        ...

    def commit_staged(self, write_id: UUID, batch_id: int, parts: Mapping[UUID, int], *, once: bool) -> Committed:
        """Emit the parts in one transaction and drop all other staged rows of this and earlier batches.

        `parts` maps part ids to row counts; if a row is missing, the call raises `StoreError` and emits nothing. With
        `once`, a batch that is not later than the last one committed under `write_id` is dropped, not emitted.
        """
        ...

    def drop_staged(self, write_id: UUID, *, parts: Collection[UUID] | None = None) -> int:
        """Drop the staged rows of a write, or of only these parts. Return the number of rows."""
        ...


class Store(Flow, Inspection, Control, Staging, Protocol):
    """A database or bucket with queues. Operations are set-based: a batch needs no more statements than one event."""

    url: str
    """The store's URL with its secrets masked."""
    capabilities: Capabilities


def require_staging(url: str, capabilities: Capabilities) -> None:
    """Raise `NotSupported` if `capabilities` lack `staging`."""
    if not capabilities.staging:
        raise NotSupported(
            f"{url} does not support staging, which df.writeStream and streams require to emit exactly once; "
            "use a store on PostgreSQL or SQLite, or emit at least once with df.write"
        )
