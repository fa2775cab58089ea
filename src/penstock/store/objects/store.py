"""The store's interface on object storage. See `penstock.store.api.Store` for the contract of each method."""

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn
from uuid import UUID, uuid4

from penstock.model.dead_letters import DeathCount, DeathMark, DeathPage, only_dead, page_of
from penstock.model.errors import NotSupported, UsageError
from penstock.model.event import Event, EventId, require_queue
from penstock.model.lease import DEFAULT_LEASE_SECONDS, Claim, Held, Lease, LeaseId, Settlement, Token
from penstock.model.lifecycle import DEFAULT_MAX_ATTEMPTS, State
from penstock.model.outcome import Outcome
from penstock.model.records import Head, HistoryEntry, Note, Page, SettledCount
from penstock.model.selection import Selection, cancellable, purgeable
from penstock.model.stats import QueueControl, Relay, Stats
from penstock.model.text import storable
from penstock.model.times import from_micros, to_micros
from penstock.store.api import (
    CANCELLED,
    PURGE_BATCH,
    REAP_BATCH,
    Capabilities,
    Committed,
    Progress,
    StagedPart,
    StoreOptions,
    Upgrade,
    require_staging,
)
from penstock.store.event_ids import ids_for, refuse_twins
from penstock.store.objects import codec
from penstock.store.objects.address import open_bucket, parse
from penstock.store.objects.blobs import INLINE_BYTES, Blobs, sweep
from penstock.store.objects.bucket import Overtaken
from penstock.store.objects.document import FORMAT, OBJECT, Document
from penstock.store.objects.leadership import Runtime
from penstock.store.objects.operations.selections import to_request

SWEEP_SECONDS = 3_600.0


class ObjectStore:
    """Queues on object storage. Nothing connects before the first operation."""

    capabilities = Capabilities(
        transactional_emit=False,
        ordering=False,
        concurrent_writers=True,
        insert_into_view=False,
        routing=False,
        limits=False,
        staging=False,
    )

    def __init__(self, url: str, options: StoreOptions, clock: Callable[[], datetime] | None = None) -> None:
        self.options = options
        self.clock = clock
        self.address = parse(url, options.settings)
        self.url = self.address.shown
        self.bucket = open_bucket(self.address)
        self._blobs = Blobs(self.bucket, self.url)
        self._lock = threading.Lock()
        self._runtime: Runtime | None = None
        self._owner = os.getpid()
        self._swept = -SWEEP_SECONDS

    def _micros(self) -> int:
        return to_micros(datetime.now(UTC) if self.clock is None else self.clock())

    @property
    def runtime(self) -> Runtime:
        """The threads and connections of this process. A forked child opens its own."""
        known = self._runtime
        if known is not None and self._owner == os.getpid():
            return known
        with self._lock:
            if self._runtime is None or self._owner != os.getpid():
                self._runtime = Runtime(self.address, self.bucket, self._micros)
                self._owner = os.getpid()
            return self._runtime

    def _execute(self, operation: str, **args: Any) -> Any:
        return self.runtime.execute(operation, args)

    def _unsupported(self, what: str) -> NoReturn:
        raise NotSupported(f"{self.url} does not support {what}; use a store on PostgreSQL, MySQL, MariaDB or SQLite")

    def close(self) -> None:
        with self._lock:
            runtime, self._runtime = self._runtime, None
        if runtime is not None and self._owner == os.getpid():
            runtime.close()

    # -- emit -------------------------------------------------------------------------------------------------

    def append(self, events: Sequence[Event], *, connection: object | None = None) -> list[EventId]:
        if connection is not None:
            raise NotSupported("object storage does not support emits in a database transaction; emit after the commit")
        for event in events:
            if event.ordering_key is not None:
                self._unsupported(f"ordering keys, such as that of event type {event.event_type!r}")
        if not events:
            return []
        refuse_twins(events)
        ids = list(ids_for(events))
        blobs = self._blobs.map(
            lambda pair: self._blobs.put(pair[1].hex, pair[0].payload),
            zip(events, ids, strict=True),
            lambda pair: len(pair[0].payload) > INLINE_BYTES,
        )
        rows = [codec.new_event(*row) for row in zip(events, ids, blobs, strict=True)]
        for place, first in self._execute("append", events=rows):
            ids[place] = EventId(UUID(first))
        return ids

    # -- claims -----------------------------------------------------------------------------------------------

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
        if limit < 1 or lease_seconds <= 0 or max_attempts < 1:
            raise UsageError("limit, lease_seconds and max_attempts must be greater than 0")
        lease = Lease(lease_id or _own_lease_id(), Token(uuid4()), queue, lease_seconds)
        answer = self._execute(
            "claim",
            **_named(lease),
            queue=queue,
            limit=limit,
            claimant=claimant,
            lease_micros=codec.micros(lease_seconds),
            given=lease_id is not None,
            types=None if types is None else list(types),
            max_attempts=max_attempts,
        )
        events = self._blobs.map(
            lambda row: codec.delivery(row, self._blobs.get), answer["events"], lambda row: row[4] == OBJECT
        )
        return Claim(lease, events, repeated=answer["repeated"])

    def ready(self, queue: str, *, types: Sequence[str] | None = None) -> bool:
        return bool(self._execute("ready", queue=queue, types=None if types is None else list(types)))

    def scan_everything(self) -> None:
        """Do nothing: every claim considers all events of its queue."""

    def extend(self, leases: Sequence[Lease]) -> list[Lease]:
        if not leases:
            return []
        rows = [(one.lease_id.hex, one.token.hex, codec.micros(one.lease_seconds)) for one in leases]
        held = self._execute("extend", leases=rows, max_age=codec.micros(self.options.max_lease_age_seconds))
        return [leases[place] for place in held]

    def held(self, lease_ids: Sequence[LeaseId]) -> Sequence[Held]:
        rows = self._execute("held", lease_ids=[one.hex for one in lease_ids]) if lease_ids else []
        return [Held(Lease(LeaseId(UUID(row[0])), Token(UUID(row[1])), row[2]), row[3]) for row in rows]

    def settle(self, lease: Lease, outcomes: Mapping[int, Outcome]) -> Settlement:
        if not outcomes:
            return Settlement()
        rows = [codec.outcome_row(seq, outcome, self._blobs.put) for seq, outcome in outcomes.items()]
        return codec.settlement(self._execute("settle", **_named(lease), outcomes=rows))

    def release(self, lease: Lease) -> int:
        return int(self._execute("release", **_named(lease)))

    def reap(self, *, limit: int = REAP_BATCH) -> int:
        return int(self._execute("reap", limit=limit))

    def note(self, lease: Lease, progress: Mapping[int, bytes]) -> frozenset[int]:
        if not progress:
            return frozenset()
        rows = [(seq, self._blobs.put(str(seq), data)) for seq, data in progress.items()]
        return frozenset(self._execute("note", **_named(lease), progress=rows))

    # -- controls ---------------------------------------------------------------------------------------------

    def pause(self, queue: str, *, by: str = "operator") -> None:
        require_queue(queue)
        self._execute("pause", queue=queue, by=by)

    def resume(self, queue: str) -> bool:
        require_queue(queue)
        return bool(self._execute("resume", queue=queue))

    def controls(self) -> Sequence[QueueControl]:
        return [QueueControl(queue, from_micros(at), by) for queue, at, by in self._execute("paused")]

    def cancel(
        self,
        selection: Selection,
        *,
        reason: str = CANCELLED,
        by: str = "operator",
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> int:
        selection.require("cancel")
        if dry_run:
            return _total(self.unsettled_counts(selection))
        return self._all("cancel", cancellable(selection), progress, reason=storable(reason), by=by)

    def replay(
        self, selection: Selection, *, dry_run: bool = False, by: str = "operator", progress: Progress | None = None
    ) -> int:
        selection.require("replay")
        return _total(self.settled_counts(selection)) if dry_run else self._all("replay", selection, progress, by=by)

    def purge(
        self,
        selection: Selection,
        *,
        batch: int = PURGE_BATCH,  # noqa: ARG002
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> int:
        selection.require("purge")
        chosen = purgeable(selection)
        return _total(self.settled_counts(chosen)) if dry_run else self._all("purge", chosen, progress)

    def _all(self, operation: str, selection: Selection, progress: Progress | None, **args: Any) -> int:
        """Change all events of a selection in one write."""
        total = int(self._execute(operation, selection=to_request(selection), **args))
        if progress is not None:
            progress(total)
        return total

    def maintain(self) -> None:
        self._execute("tend")
        if time.monotonic() - self._swept > SWEEP_SECONDS:
            self._swept = time.monotonic()
            sweep(self.bucket)

    def announce(self, relay: Relay, *, stopping: bool = False) -> bool:
        fields = {"queue": relay.queue, "destination": relay.destination, "host": relay.host}
        return bool(self._execute("beat", relay_id=relay.relay_id.hex, **fields, stopping=stopping))

    def asked_to_stop(self, relay_id: UUID) -> bool:
        return bool(self._execute("stopping", relay_id=relay_id.hex))

    def withdraw(self, relay_id: UUID) -> None:
        self._execute("forget", relay_id=relay_id.hex)

    # -- queries ----------------------------------------------------------------------------------------------

    def find(self, selection: Selection, *, after: int | None = None, limit: int = 100) -> Page:
        answer = self._execute("find", selection=to_request(selection), after=after, limit=limit)
        records = self._blobs.map(
            lambda row: codec.record(row, self._blobs.get), answer["records"], lambda row: row[0][4] == OBJECT
        )
        return Page(records, answer["after"])

    def history(self, event_id: EventId) -> Sequence[HistoryEntry]:
        return [codec.history_entry(row) for row in self._execute("history", event_id=event_id.hex)]

    def settled_counts(self, selection: Selection) -> Sequence[SettledCount]:
        return self._counts(selection, settled=True)

    def unsettled_counts(self, selection: Selection) -> Sequence[SettledCount]:
        return self._counts(cancellable(selection), settled=False)

    def _counts(self, selection: Selection, *, settled: bool) -> Sequence[SettledCount]:
        rows = self._execute("counts", selection=to_request(selection), settled=settled)
        return [SettledCount(State(row[0]), row[1], row[2], row[3]) for row in rows]

    def deaths(self, selection: Selection, *, after: DeathMark | None = None, limit: int = 100) -> DeathPage:
        mark = None if after is None else (to_micros(after.died_at), after.seq)
        rows = self._execute("deaths", selection=to_request(only_dead(selection)), after=mark, limit=limit)
        return page_of([codec.death(row) for row in rows], limit)

    def death_counts(self, selection: Selection) -> Sequence[DeathCount]:
        return [DeathCount(*row) for row in self._execute("death_counts", selection=to_request(only_dead(selection)))]

    def bounds(self) -> tuple[int, int]:
        first, last = self._execute("bounds")
        return first, last

    def stats(self) -> Stats:
        return codec.stats(self._execute("stats"))

    def notes(self, ids: Collection[EventId]) -> Mapping[EventId, Note]:
        rows = self._execute("notes", ids=[one.hex for one in ids]) if ids else []
        get = self._blobs.get
        return {
            EventId(UUID(row[0])): Note(*(None if blob is None else get(*blob) for blob in row[1:])) for row in rows
        }

    def heads(self, prefix: str, *, queues: Collection[str] | None = None) -> Sequence[Head]:
        rows = self._execute("heads", prefix=prefix, queues=None if queues is None else list(queues))
        return [Head(rank, from_micros(at), seq, queue) for rank, at, seq, queue in rows]

    def now(self) -> datetime:
        return from_micros(self._execute("now"))

    # -- capabilities that this store doesn't declare ---------------------------------------------------------

    def route(self, lease: Lease, queues: Mapping[int, Sequence[str]]) -> Settlement:  # noqa: ARG002
        self._unsupported("routes to other queues")

    def limit(self, queue: str, max_claimed: int | None) -> None:  # noqa: ARG002
        self._unsupported("limits on the claimed events of a queue")

    def stage(self, part: StagedPart, events: Sequence[Event], *, start: int = 0) -> int:  # noqa: ARG002
        require_staging(self.url, self.capabilities)
        return start

    def commit_staged(self, write_id: UUID, batch_id: int, parts: Mapping[UUID, int], *, once: bool) -> Committed:  # noqa: ARG002
        require_staging(self.url, self.capabilities)
        return Committed()

    def drop_staged(self, write_id: UUID, *, parts: Collection[UUID] | None = None) -> int:  # noqa: ARG002
        require_staging(self.url, self.capabilities)
        return 0

    # -- the document -----------------------------------------------------------------------------------------

    def initialise(self) -> Upgrade:
        before, after = self.versions()
        if before is None:
            try:
                self.bucket.swap(Document().to_json(), None)
            except Overtaken:  # another process has just created it
                before = after
        steps = () if before is not None else ("queue document",)
        return Upgrade(before, after, steps)

    def versions(self) -> tuple[str | None, str]:
        version = self.bucket.load()
        if version is not None:
            Document.from_json(version.data)
        return None if version is None else str(FORMAT), str(FORMAT)


def _total(counts: Sequence[SettledCount]) -> int:
    return sum(group.count for group in counts)


def _named(lease: Lease) -> dict[str, str]:
    return {"lease_id": lease.lease_id.hex, "token": lease.token.hex}


def _own_lease_id() -> LeaseId:
    """Return an id of UUID version 8, which marks the ids that this store makes."""
    return LeaseId(UUID(int=uuid4().int & ~(0xF << 76) | 8 << 76))
