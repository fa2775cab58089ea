"""The admin service: inspection and control of a store, with results ready for JSON.

The command line, HTTP, the dashboard and metrics are thin layers over this service.
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
    """Counts of a queue's events by state, and the queue's pause and limit."""

    paused_at: str | None
    paused_by: str | None
    max_claimed: int | None


@dataclass(frozen=True, slots=True)
class RelayStatus:
    """A relay, or a worker on one queue; `kind` is `relay` or `worker`."""

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
    """State of the store: counts, leases, relays, workers and findings. All fields are JSON types."""

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
    """A page of events. Pass `after` to get the next page; `after` is None on the last page."""

    events: list[Document]
    after: int | None


class Admin:
    """Operations on one store. The caller opens and closes the store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    # -- inspection -------------------------------------------------------------------------------------------

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
        """Return one page of events, newest first."""
        if limit < 1:
            raise UsageError(f"limit must be at least 1, got {limit}")
        page = self.store.find(selection, after=after, limit=limit)
        return Found([event_document(record) for record in page.records], page.after)

    def pages(self, selection: Selection, *, after: int | None = None, limit: int) -> Iterator[Found]:
        """Yield up to `limit` events in pages of bounded size, so that memory use doesn't depend on the limit."""
        while limit > 0:
            found = self.find(selection, after=after, limit=min(limit, PAGE))
            yield found
            limit -= len(found.events)
            after = found.after
            if after is None:
                return

    def show(self, event_id: EventId) -> Document:
        """Return one event: all fields, progress, result, timeline, and copies if it has several destinations."""
        records = find_copies(self.store, event_id)
        return whole_document(self.store, records[-1], records, self.store.history(event_id), {})

    @property
    def dead_letters(self) -> DeadLetterOffice:
        """Operations on dead letters."""
        return DeadLetterOffice(self.store)

    # -- operations -------------------------------------------------------------------------------------------

    def preview_replay(self, selection: Selection) -> Preview:
        return preview(self.store, self._checked(selection, "replay"))

    def preview_purge(self, selection: Selection) -> Preview:
        return preview(self.store, purgeable(self._checked(selection, "purge")))

    def preview_cancel(self, selection: Selection) -> Preview:
        return preview(self.store, cancellable(self._checked(selection, "cancel", UNSETTLED)), UNSETTLED)

    def replay(self, selection: Selection, *, by: str = "operator", progress: Progress | None = None) -> int:
        """Make settled events pending again, in bounded batches; call `progress` with the total so far."""
        return self.store.replay(self._checked(selection, "replay"), by=by, progress=progress)

    def purge(self, selection: Selection, *, progress: Progress | None = None) -> int:
        """Delete settled events permanently; DEAD events only if the selection names that state or ids."""
        return self.store.purge(self._checked(selection, "purge"), progress=progress)

    def cancel(
        self,
        selection: Selection,
        *,
        reason: str = CANCELLED,
        by: str = "operator",
        progress: Progress | None = None,
    ) -> int:
        """Make unsettled events DEAD, in bounded batches. CLAIMED events must be selected by that state or by id."""
        chosen = self._checked(selection, "cancel", UNSETTLED)
        return self.store.cancel(chosen, reason=reason, by=by, progress=progress)

    def reap(self, *, progress: Progress | None = None) -> int:
        """Return the events of all expired leases to their queues, in bounded batches."""
        total = 0
        while taken := self.store.reap():
            total += taken
            if progress is not None:
                progress(total)
        return total

    def initialise(self) -> Upgrade:
        """Create or upgrade the tables and return the steps. Safe to repeat."""
        return self.store.initialise()

    def doctor(self) -> list[Check]:
        """Check the installation and the store."""
        return examine(self.store)

    # -- control ----------------------------------------------------------------------------------------------

    def pause(self, queue: str, *, by: str = "operator") -> Document:
        """Stop claims from `queue` and return its controls. A repeat keeps the time of the first pause."""
        self.store.pause(queue, by=by)
        return self._control(queue)

    def resume(self, queue: str) -> bool:
        """End the pause of a queue; return False if the queue was not paused."""
        return self.store.resume(queue)

    def limit(self, queue: str, max_claimed: int | None) -> Document:
        """Limit the claimed events of `queue` across all processes, and return its controls."""
        self.store.limit(queue, max_claimed)
        return self._control(queue)

    def idle(self, queue: str) -> bool:
        """True if nothing is pending or claimed in `queue`, as with a misspelled name."""
        return not self.store.find(Selection(queue=queue, states=UNSETTLED), limit=1).records

    def _control(self, queue: str) -> Document:
        found = {control.queue: control for control in self.store.controls()}
        return plain_fields(found.get(queue, QueueControl(queue)))

    # -- shared by operations ---------------------------------------------------------------------------------

    def _checked(self, selection: Selection, verb: str, possible: frozenset[State] = SETTLED) -> Selection:
        """Return the selection; raise an error if it is empty, has an unknown id, or a state impossible for `verb`."""
        selection.require(verb)
        for state in sorted((selection.states or frozenset()) - possible):
            meant = " and ".join(one.lower() for one in State if one in possible)
            raise UsageError(f"{verb} applies to {meant} events only, got state {state.lower()}")
        if selection.ids:
            records = all_records(self.store, Selection(ids=selection.ids), max(len(selection.ids), PAGE))
            for unknown in sorted(selection.ids.difference(record.event_id for record in records)):
                raise EventNotFound(unknown)
        return selection


def _queue_statuses(stats: Stats, controls: Sequence[QueueControl]) -> list[QueueStatus]:
    """Return the status of each queue that has events, a pause or a limit."""
    steered = {control.queue: control for control in controls}
    counted = {queue.queue: queue for queue in stats.queues}
    statuses = []
    for name in sorted({*steered, *counted}):
        control = plain_fields(steered.get(name, QueueControl(name)))
        statuses.append(QueueStatus(**{**asdict(counted.get(name, QueueStats(name))), **control}))
    return statuses
