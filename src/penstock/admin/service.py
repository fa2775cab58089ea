"""The admin service: every look at a store and every operation on it, ready for JSON.

Command line, HTTP, dashboard and metrics are thin layers over this; what it can't do, none of them can.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from penstock.admin.dead_letters import DeadLetterOffice, ErrorTotal
from penstock.admin.doctor import Check, examine
from penstock.admin.findings import Finding, alive, findings
from penstock.admin.queries import SETTLED, UNSETTLED, Preview, all_records, find_copies, preview, whole_document
from penstock.admin.serializers import Document, event_document
from penstock.model.errors import EventNotFound, UsageError
from penstock.model.event import EventId
from penstock.model.lifecycle import State
from penstock.model.selection import Selection, cancellable, purgeable
from penstock.model.stats import QueueControl, QueueStats, Stats
from penstock.model.text import plain_fields
from penstock.store.api import CANCELLED, Progress, Store, Upgrade

PAGE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus(QueueStats):
    """How many events of a queue are where, and how somebody steers it."""

    paused_at: str | None
    paused_by: str | None
    max_claimed: int | None


@dataclass(frozen=True, slots=True)
class RelayStatus:
    """A relay, or what a worker does for one queue: `kind` tells them apart."""

    relay_id: str
    kind: str
    queue: str
    destination: str
    host: str
    started_at: str
    seen_seconds_ago: float
    stopping: bool
    alive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The store at a glance. Its fields hold nothing but JSON's types."""

    store: str
    pending: int
    ready: int
    claimed: int
    published: int
    dead: int
    oldest_pending_seconds: float | None
    open_leases: int
    expired_leases: int
    oldest_snapshot_seconds: float | None
    queues: list[QueueStatus]
    relays: list[RelayStatus]
    dead_errors: list[ErrorTotal]
    findings: list[Finding]

    def as_json(self) -> Document:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Found:
    """A page of events; `after` asks for the next one, and is None on the last."""

    events: list[Document]
    after: int | None


class Admin:
    """Operations on one store. It owns nothing: whoever opened the store closes it."""

    def __init__(self, store: Store) -> None:
        self.store = store

    # -- looking ----------------------------------------------------------------------------------------------

    def status(self) -> Status:
        stats, controls = self.store.stats(), self.store.controls()
        return Status(
            store=self.store.url,
            **{name: stats.total(name) for name in ("pending", "ready", "claimed", "published", "dead")},
            oldest_pending_seconds=stats.oldest_pending_seconds,
            open_leases=stats.open_leases,
            expired_leases=stats.expired_leases,
            oldest_snapshot_seconds=stats.oldest_snapshot_seconds,
            queues=_queue_statuses(stats, controls),
            relays=[RelayStatus(**plain_fields(relay), kind=relay.kind, alive=alive(relay)) for relay in stats.relays],
            dead_errors=[ErrorTotal(error, number) for error, number in stats.dead_errors],
            findings=findings(stats, controls),
        )

    def find(self, selection: Selection, *, after: int | None = None, limit: int = 100) -> Found:
        """One page, newest first."""
        if limit < 1:
            raise UsageError(f"the limit must be 1 or more, not {limit}")
        page = self.store.find(selection, after=after, limit=limit)
        return Found([event_document(record) for record in page.records], page.after)

    def pages(self, selection: Selection, *, after: int | None = None, limit: int) -> Iterator[Found]:
        """Up to `limit` events, in pages of bounded size: so that asking for a million needs no memory for them."""
        while limit > 0:
            found = self.find(selection, after=after, limit=min(limit, PAGE))
            yield found
            limit -= len(found.events)
            after = found.after
            if after is None:
                return

    def show(self, event_id: EventId) -> Document:
        """One event with every field, what was said of it, and its timeline; with its copies, if it has several
        destinations."""
        records = find_copies(self.store, event_id)
        return whole_document(self.store, records[-1], records, self.store.history(event_id), {})

    @property
    def dead_letters(self) -> DeadLetterOffice:
        """Events in the state DEAD: looked at, redriven, purged."""
        return DeadLetterOffice(self.store)

    # -- operating --------------------------------------------------------------------------------------------

    def preview_replay(self, selection: Selection) -> Preview:
        return preview(self.store, self._checked(selection, "replay"))

    def preview_purge(self, selection: Selection) -> Preview:
        return preview(self.store, purgeable(self._checked(selection, "purge")))

    def preview_cancel(self, selection: Selection) -> Preview:
        return preview(self.store, cancellable(self._checked(selection, "cancel", UNSETTLED)), UNSETTLED)

    def replay(self, selection: Selection, *, by: str = "operator", progress: Progress | None = None) -> int:
        """Make settled events pending again, in bounded batches; `progress` hears how many so far."""
        return self.store.replay(self._checked(selection, "replay"), by=by, progress=progress)

    def purge(self, selection: Selection, *, progress: Progress | None = None) -> int:
        """Delete settled events for good. DEAD ones only where the selection names that state, or ids."""
        return self.store.purge(self._checked(selection, "purge"), progress=progress)

    def cancel(
        self,
        selection: Selection,
        *,
        reason: str = CANCELLED,
        by: str = "operator",
        progress: Progress | None = None,
    ) -> int:
        """Make unsettled events DEAD, in bounded batches. CLAIMED ones only where the selection names them, or ids."""
        chosen = self._checked(selection, "cancel", UNSETTLED)
        return self.store.cancel(chosen, reason=reason, by=by, progress=progress)

    def reap(self, *, progress: Progress | None = None) -> int:
        """Take back the events of all expired leases, a bounded batch at a time, until none is left."""
        total = 0
        while taken := self.store.reap():
            total += taken
            if progress is not None:
                progress(total)
        return total

    def initialise(self) -> Upgrade:
        """Create or upgrade the tables; says what it did, and is safe to repeat."""
        return self.store.initialise()

    def doctor(self) -> list[Check]:
        """Whether everything that Penstock needs is there and in order."""
        return examine(self.store)

    # -- steering ---------------------------------------------------------------------------------------------

    def pause(self, queue: str, *, by: str = "operator") -> Document:
        """Let claims on `queue` bring nothing; returns how it is steered now. A repeat keeps the first time."""
        self.store.pause(queue, by=by)
        return self._control(queue)

    def resume(self, queue: str) -> bool:
        """End a pause; says whether there was one."""
        return self.store.resume(queue)

    def limit(self, queue: str, max_claimed: int | None) -> Document:
        """Let no more events of `queue` be claimed at a time, over all processes; returns how it is steered now."""
        self.store.limit(queue, max_claimed)
        return self._control(queue)

    def idle(self, queue: str) -> bool:
        """Whether nothing is pending or claimed in `queue`: a name that was mistyped looks like this."""
        return not self.store.find(Selection(queue=queue, states=UNSETTLED), limit=1).records

    def _control(self, queue: str) -> Document:
        found = {control.queue: control for control in self.store.controls()}
        return plain_fields(found.get(queue, QueueControl(queue)))

    # -- what operations share --------------------------------------------------------------------------------

    def _checked(self, selection: Selection, verb: str, possible: frozenset[State] = SETTLED) -> Selection:
        """The selection, if it makes sense for `verb`. An id that no event has is told before anything is done."""
        selection.require(verb)
        for state in sorted((selection.states or frozenset()) - possible):
            meant = " and ".join(one.lower() for one in State if one in possible)
            raise UsageError(f"{verb} is for {meant} events, not for {state.lower()} ones")
        if selection.ids:
            records = all_records(self.store, Selection(ids=selection.ids), max(len(selection.ids), PAGE))
            for unknown in sorted(selection.ids.difference(record.event_id for record in records)):
                raise EventNotFound(unknown)
        return selection


def _queue_statuses(stats: Stats, controls: Sequence[QueueControl]) -> list[QueueStatus]:
    """Each queue that has events or is steered."""
    steered = {control.queue: control for control in controls}
    counted = {queue.queue: queue for queue in stats.queues}
    statuses = []
    for name in sorted({*steered, *counted}):
        control = plain_fields(steered.get(name, QueueControl(name)))
        statuses.append(QueueStatus(**{**asdict(counted.get(name, QueueStats(name))), **control}))
    return statuses
