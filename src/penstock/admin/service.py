"""The admin service: every look at a store and every operation on it, ready for JSON.

Command line, HTTP, dashboard and metrics are thin layers over this; what it can't do, none of them can.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.admin.documents import Document, copy_document, event_document, timeline
from penstock.admin.findings import Finding, alive, findings
from penstock.errors import EventNotFound, UsageError
from penstock.event import EventId
from penstock.lifecycle import State
from penstock.store import Store
from penstock.store.base import QueueStats, RelayStats, Selection, SettledCount
from penstock.store.inspect import purgeable

if TYPE_CHECKING:
    from penstock.admin.doctor import Check
    from penstock.store.migrate import Upgrade

Progress = Callable[[int], None]

PAGE = 500
EXAMPLES = 3
MAX_COPIES = 1_000
SETTLED = frozenset({State.PUBLISHED, State.DEAD})


@dataclass(frozen=True, slots=True)
class RelayStatus:
    relay_id: str
    queue: str
    destination: str
    host: str
    started_at: str
    seen_seconds_ago: float
    stopping: bool
    alive: bool


@dataclass(frozen=True, slots=True)
class DeadError:
    error: str
    count: int


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
    queues: list[QueueStats]
    relays: list[RelayStatus]
    dead_errors: list[DeadError]
    findings: list[Finding]

    def as_json(self) -> Document:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Found:
    """A page of events; `after` asks for the next one, and is None on the last."""

    events: list[Document]
    after: int | None


@dataclass(frozen=True, slots=True)
class Preview:
    """What a replay or a purge would touch."""

    total: int
    groups: Sequence[SettledCount]
    examples: list[Document]

    def as_json(self) -> Document:
        return {
            "dry_run": True,
            "total": self.total,
            "groups": [{**asdict(group), "state": group.state.value} for group in self.groups],
            "examples": self.examples,
        }


class Admin:
    """Operations on one store. It owns nothing: whoever opened the store closes it."""

    def __init__(self, store: Store) -> None:
        self.store = store

    # -- looking ----------------------------------------------------------------------------------------------

    def status(self) -> Status:
        stats = self.store.stats()
        return Status(
            store=self.store.url,
            pending=stats.total("pending"),
            ready=stats.total("ready"),
            claimed=stats.total("claimed"),
            published=stats.total("published"),
            dead=stats.total("dead"),
            oldest_pending_seconds=stats.oldest_pending_seconds,
            open_leases=stats.open_leases,
            expired_leases=stats.expired_leases,
            oldest_snapshot_seconds=stats.oldest_snapshot_seconds,
            queues=list(stats.queues),
            relays=[_relay_status(relay) for relay in stats.relays],
            dead_errors=[DeadError(error, number) for error, number in stats.dead_errors],
            findings=findings(stats),
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
        """One event with every field, and its timeline; with its copies, if it has several destinations."""
        page = self.store.find(Selection(ids=frozenset({event_id})), limit=MAX_COPIES)
        if not page.records:
            raise EventNotFound(event_id)
        *copies, record = page.records
        document = {**event_document(record), "timeline": timeline(page.records, self.store.history(event_id))}
        return document | ({"copies": [copy_document(copy) for copy in reversed(copies)]} if copies else {})

    # -- operating --------------------------------------------------------------------------------------------

    def preview_replay(self, selection: Selection) -> Preview:
        return self._preview(self._checked(selection, "replay"))

    def preview_purge(self, selection: Selection) -> Preview:
        return self._preview(purgeable(self._checked(selection, "purge")))

    def replay(self, selection: Selection, *, by: str = "operator", progress: Progress | None = None) -> int:
        """Make settled events pending again, in bounded batches; `progress` hears how many so far."""
        return self.store.replay(self._checked(selection, "replay"), by=by, progress=progress)

    def purge(self, selection: Selection, *, progress: Progress | None = None) -> int:
        """Delete settled events for good. DEAD ones only where the selection names that state, or ids."""
        return self.store.purge(self._checked(selection, "purge"), progress=progress)

    def reap(self, *, progress: Progress | None = None) -> int:
        """Take back the events of all expired leases, a bounded batch at a time, until none is left."""
        total = 0
        while taken := self.store.reap():
            total += taken
            if progress is not None:
                progress(total)
        return total

    def initialise(self) -> "Upgrade":
        """Create or upgrade the tables; says what it did, and is safe to repeat."""
        return self.store.initialise()

    def doctor(self) -> "list[Check]":
        """Whether everything that Penstock needs is there and in order."""
        from penstock.admin.doctor import examine  # it brings Alembic and, where installed, Spark along

        return examine(self.store)

    def _preview(self, selection: Selection) -> Preview:
        groups = self.store.settled_counts(selection)
        states = (selection.states or SETTLED) & SETTLED
        examples = self.store.find(replace(selection, states=states), limit=EXAMPLES).records
        return Preview(sum(group.count for group in groups), groups, [event_document(one) for one in examples])

    def _checked(self, selection: Selection, verb: str) -> Selection:
        """The selection, if it makes sense for `verb`. An id that no event has is told before anything is done."""
        selection.require(verb)
        for state in sorted((selection.states or frozenset()) - SETTLED):
            raise UsageError(f"{verb} is for published and dead events, not for {state.lower()} ones")
        if selection.ids:
            known = self._known(selection.ids)
            for unknown in sorted(selection.ids - known):
                raise EventNotFound(unknown)
        return selection

    def _known(self, ids: frozenset[EventId]) -> set[EventId]:
        """Which of these ids are those of events. One id may be that of several copies."""
        known: set[EventId] = set()
        after: int | None = None
        while True:
            page = self.store.find(Selection(ids=ids), after=after, limit=max(len(ids), PAGE))
            known |= {record.event_id for record in page.records}
            after = page.after
            if after is None or known == ids:
                return known


def _relay_status(relay: RelayStats) -> RelayStatus:
    fields: dict[str, Any] = {
        **asdict(relay),
        "relay_id": str(relay.relay_id),
        "started_at": relay.started_at.isoformat(),
        "alive": alive(relay),
    }
    return RelayStatus(**fields)
