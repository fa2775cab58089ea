"""Between the values that callers know and the ones that requests and documents hold."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, assert_never
from uuid import UUID

from penstock.event import MILLENNIUM, Delivery, Event, EventId
from penstock.lifecycle import Dead, Outcome, Published, Released, Retry, State
from penstock.store.base import (
    HistoryEntry,
    QueueStats,
    Record,
    RelayStats,
    Settlement,
    Stats,
)
from penstock.store.deaths import Death
from penstock.store.objects.emitting import NewEvent
from penstock.store.objects.settling import OutcomeRow
from penstock.store.objects.values import MICROS, Blob, Entry, Line, RelayRow
from penstock.store.outcomes import storable, wait_seconds
from penstock.store.schema import from_micros, to_micros

_MILLENNIUM = to_micros(MILLENNIUM)

Put = Callable[[str, bytes], Blob]
Get = Callable[[int, str], bytes]


def micros(seconds: float) -> int:
    return round(seconds * MICROS)


def new_event(event: Event, event_id: EventId, blob: Blob) -> NewEvent:
    return NewEvent(
        event_id=event_id.hex,
        given=event.event_id is not None,
        event_type=event.event_type,
        queue=event.queue,
        form=blob[0],
        payload=blob[1],
        headers=dict(event.headers) or None,
        partition_key=event.partition_key,
        ordering_key=event.ordering_key,
        priority=event.priority,
        max_attempts=event.max_attempts,
        available_at=None if event.available_at is None else to_micros(event.available_at),
        delay_micros=micros(event.delay_seconds or 0),
        dedupe_key=event.dedupe_key,
        dedupe_micros=micros(event.dedupe_seconds),
    )


def outcome_row(seq: int, outcome: Outcome, put: Put) -> OutcomeRow:
    match outcome:
        case Published(result=result, keep=keep):
            return OutcomeRow(seq, "PUBLISHED", result=None if result is None else put(str(seq), result), keep=keep)
        case Retry(error=error, delay_seconds=delay, keep=keep):
            return OutcomeRow(seq, "RETRY", storable(error), int(wait_seconds(delay) * MICROS), keep=keep)
        case Dead(error=error, keep=keep):
            return OutcomeRow(seq, "DEAD", storable(error), keep=keep)
        case Released():
            return OutcomeRow(seq, "RELEASED")
        case _:
            assert_never(outcome)


def settlement(answer: Mapping[str, Sequence[int]]) -> Settlement:
    return Settlement(**{word: frozenset(seqs) for word, seqs in answer.items()})


def delivery(row: Sequence[Any], get: Get) -> Delivery:
    """Ids and times stay raw: a delivery decodes them when it is asked."""
    entry = Entry(*row)
    return Delivery(
        entry.seq,
        bytes.fromhex(entry.known_as),
        entry.event_type,
        entry.queue,
        get(entry.form, entry.payload),
        entry.headers,
        entry.partition_key,
        entry.ordering_key,
        entry.priority,
        entry.created_at - _MILLENNIUM,
        entry.available_at - _MILLENNIUM,
        entry.attempts,
        entry.deliveries,
        entry.max_attempts,
        entry.replays,
        entry.suspect,
        entry.last_error,
    )


def record(row: Sequence[Any], get: Get) -> Record:
    entry, holder = Entry(*row[0]), row[1]
    settled_at = None if entry.settled_at is None else from_micros(entry.settled_at)
    state = State(entry.state)
    return Record(
        seq=entry.seq,
        event_id=EventId(UUID(entry.known_as)),
        event_type=entry.event_type,
        queue=entry.queue,
        state=state,
        payload=get(entry.form, entry.payload),
        headers=entry.headers or {},
        partition_key=entry.partition_key,
        ordering_key=entry.own_key,
        priority=entry.priority,
        created_at=from_micros(entry.created_at),
        available_at=from_micros(entry.available_at),
        attempts=entry.attempts,
        deliveries=entry.deliveries,
        max_attempts=entry.max_attempts,
        replays=entry.replays,
        suspect=entry.suspect,
        last_error=entry.last_error,
        claimed_at=None if holder is None else from_micros(holder[0]),
        claimed_by=None if holder is None else holder[1],
        lease_expires_at=None if holder is None else from_micros(holder[2]),
        published_at=settled_at if state is State.PUBLISHED else None,
        settled_at=settled_at,
    )


def death(row: Sequence[Any]) -> Death:
    entry = Entry(*row)
    return Death(
        seq=entry.seq,
        event_id=EventId(UUID(entry.known_as)),
        event_type=entry.event_type,
        queue=entry.queue,
        attempts=entry.attempts,
        replays=entry.replays,
        created_at=from_micros(entry.created_at),
        died_at=from_micros(entry.settled_at or 0),
        error=entry.last_error or "",
    )


def history_entry(row: Sequence[Any]) -> HistoryEntry:
    line = Line(*row)
    return HistoryEntry(from_micros(line.at), line.what, line.attempts, line.by, line.detail)


def stats(answer: Mapping[str, Any]) -> Stats:
    now = answer["now"]
    return Stats(
        queues=[_queue(queue, counts, now) for queue, counts in answer["queues"]],
        open_leases=answer["open_leases"],
        expired_leases=answer["expired_leases"],
        oldest_snapshot_seconds=None,
        relays=[_relay(RelayRow(*row), now) for row in answer["relays"]],
        dead_errors=[(error, count) for error, count in answer["dead_errors"]],
        purged=answer["purged"],
    )


def _queue(queue: str, counts: Mapping[str, int], now: int) -> QueueStats:
    oldest = counts.get("oldest")
    numbers = {name: count for name, count in counts.items() if name != "oldest"}
    age = None if oldest is None else max((now - oldest) / MICROS, 0.0)
    return QueueStats(queue, **numbers, oldest_pending_seconds=age)


def _relay(row: RelayRow, now: int) -> RelayStats:
    return RelayStats(
        UUID(row.relay_id),
        row.queue,
        row.destination,
        row.host,
        from_micros(row.started_at),
        (now - row.seen_at) / MICROS,
        row.stopping,
    )
