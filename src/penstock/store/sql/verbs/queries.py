"""Queries of events: selections as SQL conditions, pages, timelines, statistics. Nothing is changed."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Table,
    case,
    func,
    literal,
    null,
    or_,
    select,
    union_all,
)

from penstock.model.error_kinds import error_pattern
from penstock.model.event import EventId
from penstock.model.lease import Held, Lease, LeaseId, Token
from penstock.model.lifecycle import State
from penstock.model.records import HistoryEntry, Note, Page, Record, SettledCount
from penstock.model.selection import Selection, cancellable
from penstock.model.stats import QueueControl, QueueStats, RelayStats, Stats
from penstock.store.sql.schema import CHANGING, UtcTime, archive, claimed, events, leases, pending, queues, relays
from penstock.store.sql.schema import history as timeline
from penstock.store.sql.schema import notes as noted

SETTLED = archive.join(events, events.c.seq == archive.c.seq)
# A copy is shown under the id of its original event.
EVENT_ID = func.coalesce(events.c.origin, events.c.event_id, type_=events.c.event_id.type)
TOP_ERRORS = 5


def find(connection: Connection, selection: Selection, *, after: int | None = None, limit: int = 100) -> Page:
    """Return a page of events, newest first. Each state's table is limited to one page before the union, so that the
    cost of a page does not grow with the history."""
    parts = [part.order_by(events.c.seq.desc()).limit(limit + 1) for part in _parts(selection, after)]
    if not parts:
        return Page((), None)
    found = union_all(*(select(part.subquery()) for part in parts)).subquery()
    rows = connection.execute(select(found).order_by(found.c.seq.desc()).limit(limit + 1)).all()
    records = [_record(row) for row in rows[:limit]]
    return Page(records, records[-1].seq if len(rows) > limit else None)


def settled(connection: Connection, selection: Selection, *, after: int, until: int, limit: int) -> Sequence[Any]:
    """Return the next settled events of the selection, locked if the database has row locks."""
    statement = (
        select(archive.c.seq)
        .select_from(SETTLED)
        .where(archive.c.seq > after, archive.c.seq <= until, *chosen_settled(selection))
        .order_by(archive.c.seq)
        .limit(limit)
        .with_for_update(of=archive, skip_locked=True)
    )
    return connection.execute(statement).all()


def settled_counts(connection: Connection, selection: Selection) -> list[SettledCount]:
    """Count the events that a replay or purge would affect, by state, queue and type, largest count first."""
    kind = (archive.c.state, archive.c.queue, events.c.event_type)
    statement = (
        select(*kind, func.count())
        .select_from(SETTLED)
        .where(*chosen_settled(selection))
        .group_by(*kind)
        .order_by(func.count().desc(), *kind)
    )
    return [SettledCount(State(row[0]), *row[1:]) for row in connection.execute(statement)]


def unsettled_counts(connection: Connection, selection: Selection) -> list[SettledCount]:
    """Count the events that a cancel would affect, by state, queue and type, largest count first."""
    chosen = cancellable(selection)
    found = []
    for state, table in ((State.PENDING, pending), (State.CLAIMED, claimed)):
        if state in (chosen.states or ()):
            kind = (table.c.queue, events.c.event_type)
            statement = select(*kind, func.count()).select_from(table.join(events, events.c.seq == table.c.seq))
            rows = connection.execute(statement.where(*conditions(chosen, table)).group_by(*kind))
            found += [SettledCount(state, *row) for row in rows]
    return sorted(found, key=lambda one: (-one.count, one.state, one.queue, one.event_type))


def published_by_queue(connection: Connection, seqs: list[int]) -> dict[str, int]:
    """Count the published events among these settled events, by queue."""
    statement = (
        select(archive.c.queue, func.count())
        .where(archive.c.seq.in_(seqs), archive.c.state == State.PUBLISHED.value)
        .group_by(archive.c.queue)
    )
    return {row[0]: row[1] for row in connection.execute(statement)}


def last_seq(connection: Connection) -> int:
    return int(connection.execute(select(func.coalesce(func.max(archive.c.seq), 0))).scalar_one())


def bounds(connection: Connection) -> tuple[int, int]:
    first, last = connection.execute(select(func.min(events.c.seq), func.max(events.c.seq))).one()
    return (1, 0) if last is None else (first, last)


def history(connection: Connection, event_id: EventId) -> Sequence[HistoryEntry]:
    statement = (
        select(timeline)
        .join(events, events.c.seq == timeline.c.seq)
        .where(_is_one_of([event_id]))
        .order_by(timeline.c.id)
    )
    return [HistoryEntry(row.at, row.what, row.attempts, row.by, row.detail) for row in connection.execute(statement)]


def held(connection: Connection, lease_ids: Sequence[LeaseId]) -> list[Held]:
    """Return the open leases among `lease_ids`, in the given order."""
    wanted = select(leases.c.lease_id, leases.c.token, leases.c.queue, leases.c.claimant).where(
        leases.c.lease_id.in_(lease_ids), leases.c.closed_at.is_(None)
    )
    found = {row.lease_id: row for row in connection.execute(wanted)}
    rows = [found[lease_id] for lease_id in dict.fromkeys(lease_ids) if lease_id in found]
    return [Held(Lease(LeaseId(row.lease_id), Token(row.token), row.queue), row.claimant) for row in rows]


def held_seqs(connection: Connection, lease_id: LeaseId, seqs: list[int]) -> list[int]:
    wanted = select(claimed.c.seq).where(claimed.c.lease_id == lease_id, claimed.c.seq.in_(seqs))
    return sorted(connection.execute(wanted).scalars())


def leases_over(seqs: list[int]) -> Select[Any]:
    """Return a query of the leases that hold these events, locked if the database has row locks."""
    holders = select(claimed.c.lease_id).where(claimed.c.seq.in_(seqs))
    return select(leases.c.lease_id).where(leases.c.lease_id.in_(holders)).order_by(leases.c.lease_id).with_for_update()


def live(connection: Connection, selection: Selection, state: State, *, after: int, limit: int) -> Sequence[Any]:
    """Return seq, queue and ordering key of the selection's next events in one of the two unsettled states."""
    table = pending if state is State.PENDING else claimed
    statement = (
        select(table.c.seq, table.c.queue, table.c.ordering_key)
        .join(events, events.c.seq == table.c.seq)
        .where(table.c.seq > after, *conditions(selection, table))
        .order_by(table.c.seq)
        .limit(limit)
    )
    return connection.execute(statement).all()


def controls(connection: Connection) -> list[QueueControl]:
    steered = or_(queues.c.paused_at.is_not(None), queues.c.max_claimed.is_not(None))
    rows = connection.execute(select(queues).where(steered).order_by(queues.c.queue))
    return [QueueControl(row.queue, row.paused_at, row.paused_by, row.max_claimed) for row in rows]


def notes(connection: Connection, ids: Collection[EventId]) -> dict[EventId, Note]:
    """Return the notes of these events; for an event copied to several queues, the last copy's note."""
    statement = (
        select(EVENT_ID, noted.c.progress, noted.c.result)
        .select_from(noted.join(events, events.c.seq == noted.c.seq))
        .where(_is_one_of(ids))
        .order_by(noted.c.seq)
    )
    return {EventId(row[0]): Note(row[1], row[2]) for row in connection.execute(statement)}


def stats(connection: Connection, now: datetime, oldest_snapshot_seconds: float | None) -> Stats:
    open_leases, expired = connection.execute(
        select(func.count(), func.coalesce(func.sum(case((leases.c.expires_at < now, 1), else_=0)), 0)).where(
            leases.c.closed_at.is_(None)
        )
    ).one()
    return Stats(
        queues=_queues(connection, now),
        open_leases=open_leases,
        expired_leases=int(expired),
        oldest_snapshot_seconds=oldest_snapshot_seconds,
        relays=[_relay(row, now) for row in connection.execute(select(relays).order_by(relays.c.started_at))],
        dead_errors=_dead_errors(connection),
        purged={
            row.queue: row.purged
            for row in connection.execute(select(queues.c.queue, queues.c.purged).where(queues.c.purged > 0))
        },
    )


def _relay(row: Any, now: datetime) -> RelayStats:
    age = (now - row.seen_at).total_seconds()
    return RelayStats(row.relay_id, row.queue, row.destination, row.host, row.started_at, age, row.stopping)


def _queues(connection: Connection, now: datetime) -> list[QueueStats]:
    queues: dict[str, QueueStats] = {}
    waiting = select(
        pending.c.queue,
        func.count().label("pending"),
        func.sum(case((pending.c.available_at <= now, 1), else_=0)).label("ready"),
        func.min(pending.c.available_at, type_=UtcTime()).label("oldest"),
    ).group_by(pending.c.queue)
    for row in connection.execute(waiting):
        age = (now - row.oldest).total_seconds()
        queues[row.queue] = QueueStats(
            row.queue, pending=row.pending, ready=int(row.ready), oldest_pending_seconds=max(age, 0.0)
        )
    held = select(claimed.c.queue, literal("claimed").label("state"), func.count().label("count"))
    done = select(archive.c.queue, func.lower(archive.c.state), func.count())
    counted = union_all(held.group_by(claimed.c.queue), done.group_by(archive.c.queue, archive.c.state))
    for queue, state, count in connection.execute(counted):
        queues[queue] = replace(queues.get(queue, QueueStats(queue)), **{state: count})
    return [queues[name] for name in sorted(queues)]


def _dead_errors(connection: Connection) -> list[tuple[str, int]]:
    """Return the most frequent errors of dead events, with their counts."""
    error = func.substr(func.coalesce(archive.c.last_error, ""), 1, 200)
    statement = (
        select(error, func.count().label("count"))
        .where(archive.c.state == State.DEAD.value)
        .group_by(error)
        .order_by(func.count().desc())
        .limit(TOP_ERRORS)
    )
    return [(row[0], row[1]) for row in connection.execute(statement)]


def _parts(selection: Selection, after: int | None) -> list[Select[Any]]:
    wanted = frozenset(State) if selection.states is None else selection.states
    parts: list[Select[Any]] = []
    if State.PENDING in wanted:
        parts.append(_part(pending, selection, state=literal("PENDING")))
    if State.CLAIMED in wanted:
        times = {"claimed_at": leases.c.claimed_at, "lease_expires_at": leases.c.expires_at}
        part = _part(claimed, selection, state=literal("CLAIMED"), claimed_by=leases.c.claimant, **times)
        parts.append(part.join(leases, leases.c.lease_id == claimed.c.lease_id))
    if wanted & {State.PUBLISHED, State.DEAD}:
        part = _part(archive, selection, state=archive.c.state, settled_at=archive.c.settled_at)
        parts.append(part.where(*settled_states(selection)))
    return parts if after is None else [part.where(events.c.seq < after) for part in parts]


# Columns of a record from the events table, columns from the table of its state, and columns that only some states set.
_OF_EVENT = ("event_type", "payload", "headers", "partition_key", "ordering_key", "created_at")
_OF_TABLE = tuple(name for name in CHANGING if name not in ("seq", "ordering_key"))
_NO_TIME = null().cast(UtcTime())
_UNSET: dict[str, ColumnElement[Any]] = {
    "claimed_at": _NO_TIME,
    "claimed_by": literal(None),
    "lease_expires_at": _NO_TIME,
    "settled_at": _NO_TIME,
}


def _part(table: Table, selection: Selection, **known: ColumnElement[Any]) -> Select[Any]:
    """Return a query of the records in one state's table; `known` are the state and the columns set in this state."""
    return (
        select(
            events.c.seq,
            EVENT_ID.label("event_id"),
            *(events.c[name] for name in _OF_EVENT),
            *(table.c[name] for name in _OF_TABLE),
            *(column.label(name) for name, column in (_UNSET | known).items()),
        )
        .select_from(events.join(table, table.c.seq == events.c.seq))
        .where(*conditions(selection, table))
    )


def conditions(selection: Selection, table: Any) -> list[ColumnElement[bool]]:
    """Return the conditions of a selection, except its states, on the events table and one state's table."""
    tests: list[tuple[Any, Callable[[Any], ColumnElement[bool]]]] = [
        (selection.ids, _is_one_of),
        (selection.queue, lambda queue: table.c.queue == queue),
        (selection.event_type, lambda event_type: events.c.event_type == event_type),
        (selection.queues, lambda queues: table.c.queue.in_(sorted(queues))),
        (selection.event_types, lambda event_types: events.c.event_type.in_(sorted(event_types))),
        (selection.since, lambda since: events.c.created_at >= since),
        (selection.until, lambda until: events.c.created_at < until),
        (selection.error, lambda error: _error_matches(table.c.last_error, error)),
    ]
    return [test(value) for value, test in tests if value is not None]


def _error_matches(last_error: ColumnElement[str], text: str) -> ColumnElement[bool]:
    """Return the condition that an error contains `text`, in any case. Not every database accepts an empty pattern."""
    return last_error.regexp_match(error_pattern(text)) if text else last_error.is_not(None)


def _is_one_of(ids: Collection[EventId]) -> ColumnElement[bool]:
    """Return the condition on event ids. It has two parts, because each column has an index, but EVENT_ID has none."""
    return or_(events.c.event_id.in_(ids), events.c.origin.in_(ids))


def settled_states(selection: Selection) -> list[ColumnElement[bool]]:
    """Return the condition on the archive's two states; empty if the selection includes both."""
    if selection.states is None or selection.states >= {State.PUBLISHED, State.DEAD}:
        return []
    return [archive.c.state.in_(sorted(state.value for state in selection.states))]


def chosen_settled(selection: Selection) -> list[ColumnElement[bool]]:
    return [*conditions(selection, archive), *settled_states(selection)]


def _record(row: Any) -> Record:
    fields = row._asdict()
    fields["state"] = State(fields["state"])
    fields["headers"] = fields["headers"] or {}
    fields["published_at"] = fields["settled_at"] if fields["state"] is State.PUBLISHED else None
    return Record(**fields)
