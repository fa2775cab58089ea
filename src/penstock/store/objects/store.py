"""The store's verbs on object storage. See `penstock.store.base.Store` for what each promises."""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from penstock.errors import NotSupported, UsageError
from penstock.event import Event, EventId, require_queue
from penstock.lifecycle import DEFAULT_MAX_ATTEMPTS, OrderPolicy, Outcome, State
from penstock.store.base import (
    DEFAULT_LEASE_SECONDS,
    PURGE_BATCH,
    REAP_BATCH,
    REPLAY_BATCH,
    Capabilities,
    Claim,
    Committed,
    Held,
    HistoryEntry,
    Lease,
    LeaseId,
    Page,
    Part,
    Progress,
    Relay,
    Selection,
    SettledCount,
    Settlement,
    Stats,
    Token,
)
from penstock.store.control import CANCELLED, Head, Note, QueueControl
from penstock.store.deaths import DeathCount, DeathMark, DeathPage, only_dead, page_of
from penstock.store.emit import ids_for, refuse_twins
from penstock.store.inspect import cancellable, purgeable
from penstock.store.migrate import Upgrade
from penstock.store.objects import parts as staging
from penstock.store.objects import wire
from penstock.store.objects.bucket import Overtaken
from penstock.store.objects.choosing import as_request
from penstock.store.objects.emitting import PAYLOAD_LIMIT
from penstock.store.objects.model import Model
from penstock.store.objects.opened import Opened
from penstock.store.objects.values import FORMAT, Blob, to_blob
from penstock.store.outcomes import route_rows, storable
from penstock.store.schema import from_micros, to_micros

SWEEP_SECONDS = 3_600.0


class ObjectStore(Opened):
    """A queue on object storage."""

    capabilities = Capabilities(transactional_emit=False, ordering=True, concurrent_writers=True)
    _swept = -SWEEP_SECONDS

    # -- emit -------------------------------------------------------------------------------------------------

    def append(self, events: Sequence[Event], *, connection: object | None = None) -> list[EventId]:
        if connection is not None:
            raise NotSupported("a queue on object storage can't emit inside a database's transaction: emit after it")
        if not events:
            return []
        refuse_twins(events)
        ids = list(ids_for(events))
        large = sum(len(event.payload) > PAYLOAD_LIMIT for event in events)
        mapped = map if large < 2 else self._pool().map
        blobs = mapped(lambda event, own: self._put(own.hex, event.payload), events, ids)
        rows = [wire.new_event(*row) for row in zip(events, ids, blobs, strict=True)]
        for place, first in self._change("append", events=rows)["duplicates"]:
            ids[place] = EventId(UUID(first))
        return ids

    # -- claim ------------------------------------------------------------------------------------------------

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
        answer = self._change(
            "claim",
            queue=queue,
            limit=limit,
            claimant=claimant,
            lease_micros=wire.micros(lease_seconds),
            lease_id=lease.lease_id.hex,
            given=lease_id is not None,
            token=lease.token.hex,
            types=None if types is None else list(types),
            max_attempts=max_attempts,
        )
        events = self._read_all(answer["events"], wire.delivery, lambda row: row[5])
        return Claim(lease, events, repeated=answer["repeated"])

    def ready(self, queue: str, *, types: Sequence[str] | None = None) -> bool:
        return bool(self._look("ready", queue=queue, types=None if types is None else list(types)))

    def look_at_all(self) -> None:
        """Every claim looks at everything here."""

    # -- leases -----------------------------------------------------------------------------------------------

    def extend(self, leases: Sequence[Lease]) -> list[Lease]:
        if not leases:
            return []
        rows = [(one.lease_id.hex, one.token.hex, wire.micros(one.lease_seconds)) for one in leases]
        held = self._change("extend", leases=rows, max_age=wire.micros(self.options.max_lease_age_seconds))
        return [leases[place] for place in held]

    def held(self, lease_ids: Sequence[LeaseId]) -> Sequence[Held]:
        if not lease_ids:
            return []
        rows = self._look("held", lease_ids=[one.hex for one in lease_ids])
        return [Held(Lease(LeaseId(UUID(row[0])), Token(UUID(row[1])), row[2]), row[3]) for row in rows]

    def settle(self, lease: Lease, outcomes: Mapping[int, Outcome]) -> Settlement:
        if not outcomes:
            return Settlement()
        rows = [wire.outcome_row(seq, outcome, self._put) for seq, outcome in outcomes.items()]
        skip = self.options.order_policy is OrderPolicy.SKIP
        return wire.settlement(self._change("settle", **_named(lease), outcomes=rows, skip=skip))

    def route(self, lease: Lease, queues: Mapping[int, Sequence[str]]) -> Settlement:
        if not queues:
            return Settlement()
        if not all(queues.values()):
            raise UsageError("an event is routed to at least one queue")
        rows = [(row.seq, row.queue, row.copy_id and row.copy_id.hex) for row in route_rows(queues)]
        return wire.settlement(self._change("route", **_named(lease), rows=rows))

    def release(self, lease: Lease) -> int:
        return int(self._change("release", **_named(lease)))

    def reap(self, *, limit: int = REAP_BATCH) -> int:
        return int(self._change("reap", limit=limit))

    # -- beside the flow --------------------------------------------------------------------------------------

    def replay(
        self, selection: Selection, *, dry_run: bool = False, by: str = "operator", progress: Progress | None = None
    ) -> int:
        selection.require("replay")
        if dry_run:
            return self._count(selection)
        return self._in_batches("replay", selection, REPLAY_BATCH, progress, by=by)

    def purge(
        self,
        selection: Selection,
        *,
        batch: int = PURGE_BATCH,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> int:
        selection.require("purge")
        chosen = purgeable(selection)
        return self._count(chosen) if dry_run else self._in_batches("purge", chosen, batch, progress)

    def _count(self, selection: Selection) -> int:
        return sum(group.count for group in self.settled_counts(selection))

    def _in_batches(self, verb: str, selection: Selection, batch: int, progress: Progress | None, **args: Any) -> int:
        """Through the settled events by seq, a write a batch: an interruption loses nothing."""
        total, after, until = 0, 0, int(self._look("last_settled"))
        while True:
            count, last = self._change(
                verb, selection=as_request(selection), after=after, until=until, limit=batch, **args
            )
            total += int(count)
            if progress is not None:
                progress(total)
            if last is None:
                return total
            after = last

    def tend(self) -> None:
        self._change("tend")
        staging.drop_old(self.bucket, self._micros())
        if time.monotonic() - self._swept > SWEEP_SECONDS:
            self._swept = time.monotonic()
            document = self.bucket.load()
            if document is not None:
                staging.sweep(self.bucket, Model.from_json(document.data))

    def beat(self, relay: Relay, *, stopping: bool = False) -> bool:
        fields = {"queue": relay.queue, "destination": relay.destination, "host": relay.host}
        return bool(self._change("beat", relay_id=relay.relay_id.hex, **fields, stopping=stopping))

    def stopping(self, relay_id: UUID) -> bool:
        return bool(self._look("stopping", relay_id=relay_id.hex))

    def forget(self, relay_id: UUID) -> None:
        self._change("forget", relay_id=relay_id.hex)

    # -- staging ----------------------------------------------------------------------------------------------

    def stage(self, part: Part, events: Sequence[Event], *, start: int = 0) -> int:
        if events:
            rows = [
                wire.new_event(one, own, to_blob(one.payload)) for one, own in zip(events, ids_for(events), strict=True)
            ]
            staging.stage(self.bucket, part, start, rows, self._micros())
        return start + len(events)

    def commit_staged(self, write_id: UUID, batch_id: int, parts: Mapping[UUID, int], *, once: bool) -> Committed:
        names = staging.of_parts(self.bucket, write_id, batch_id, parts)
        given = {"write_id": write_id.hex, "batch_id": batch_id, "names": names, "once": once}
        answer = self._change("commit_staged", **given, expected=sum(parts.values()))
        staging.drop_batch(self.bucket, write_id, batch_id)
        return Committed(**answer)

    def drop_staged(self, write_id: UUID, *, parts: Collection[UUID] | None = None) -> int:
        return staging.drop(self.bucket, write_id, parts)

    # -- steering ---------------------------------------------------------------------------------------------

    def pause(self, queue: str, *, by: str = "operator") -> None:
        require_queue(queue)
        self._change("pause", queue=queue, by=by)

    def resume(self, queue: str) -> bool:
        require_queue(queue)
        return bool(self._change("resume", queue=queue))

    def limit(self, queue: str, max_claimed: int | None) -> None:
        require_queue(queue)
        if max_claimed is not None and max_claimed < 1:
            raise UsageError("a limit must be 1 or more; to let nothing be claimed, pause the queue")
        self._change("limit", queue=queue, max_claimed=max_claimed)

    def controls(self) -> Sequence[QueueControl]:
        rows = self._look("controls")
        return [QueueControl(row[0], row[1] and from_micros(row[1]), row[2], row[3]) for row in rows]

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
            return sum(kind.count for kind in self.unsettled_counts(selection))
        chosen = as_request(cancellable(selection))
        total = int(self._change("cancel", selection=chosen, reason=storable(reason), by=by))
        if progress is not None:
            progress(total)
        return total

    def unsettled_counts(self, selection: Selection) -> Sequence[SettledCount]:
        return _counts(self._look("unsettled_counts", selection=as_request(cancellable(selection))))

    def note(self, lease: Lease, progress: Mapping[int, bytes]) -> frozenset[int]:
        if not progress:
            return frozenset()
        rows = [(seq, self._put(str(seq), data)) for seq, data in progress.items()]
        return frozenset(self._change("note", **_named(lease), progress=rows))

    def notes(self, ids: Collection[EventId]) -> Mapping[EventId, Note]:
        rows = self._look("notes", ids=[one.hex for one in ids]) if ids else []
        return {EventId(UUID(row[0])): Note(self._noted(row[1]), self._noted(row[2])) for row in rows}

    def _noted(self, blob: Blob | None) -> bytes | None:
        return None if blob is None else self._get(*blob)

    def heads(self, prefix: str, *, queues: Collection[str] | None = None) -> Sequence[Head]:
        rows = self._look("heads", prefix=prefix, queues=None if queues is None else list(queues))
        return [Head(rank, from_micros(at), seq, queue) for rank, at, seq, queue in rows]

    # -- looking ----------------------------------------------------------------------------------------------

    def find(self, selection: Selection, *, after: int | None = None, limit: int = 100) -> Page:
        answer = self._look("find", selection=as_request(selection), after=after, limit=limit)
        return Page(self._read_all(answer["records"], wire.record, lambda row: row[0][5]), answer["after"])

    def history(self, event_id: EventId) -> Sequence[HistoryEntry]:
        return [wire.history_entry(row) for row in self._look("history", event_id=event_id.hex)]

    def settled_counts(self, selection: Selection) -> Sequence[SettledCount]:
        return _counts(self._look("settled_counts", selection=as_request(selection)))

    def deaths(self, selection: Selection, *, after: DeathMark | None = None, limit: int = 100) -> DeathPage:
        mark = None if after is None else (to_micros(after.died_at), after.seq)
        rows = self._look("deaths", selection=as_request(only_dead(selection)), after=mark, limit=limit)
        return page_of([wire.death(row) for row in rows], limit)

    def death_counts(self, selection: Selection) -> Sequence[DeathCount]:
        return [DeathCount(*row) for row in self._look("death_counts", selection=as_request(only_dead(selection)))]

    def bounds(self) -> tuple[int, int]:
        first, last = self._look("bounds")
        return first, last

    def stats(self) -> Stats:
        return wire.stats(self._look("stats"))

    def now(self) -> datetime:
        return from_micros(self._look("now"))

    # -- making it --------------------------------------------------------------------------------------------

    def initialise(self) -> Upgrade:
        before, after = self.versions()
        if before is None:
            try:
                self.bucket.swap(Model().to_json(), None)
            except Overtaken:  # somebody else has made it just now
                before = after
        steps = () if before is not None else ("the queue's document",)
        return Upgrade(before, after, steps)

    def versions(self) -> tuple[str | None, str]:
        document = self.bucket.load()
        if document is not None:
            Model.from_json(document.data)
        return None if document is None else str(FORMAT), str(FORMAT)


def _counts(rows: Iterable[Sequence[Any]]) -> list[SettledCount]:
    return [SettledCount(State(row[0]), row[1], row[2], row[3]) for row in rows]


def _named(lease: Lease) -> dict[str, str]:
    return {"lease_id": lease.lease_id.hex, "token": lease.token.hex}


def _own_lease_id() -> LeaseId:
    """Version 8 marks the ids that this store gives: one that is not open needn't be remembered to be known."""
    return LeaseId(UUID(int=uuid4().int & ~(0xF << 76) | 8 << 76))
