"""Conversion between the values of the store's interface and the rows of requests and documents."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, assert_never
from uuid import UUID

from penstock.model.dead_letters import Death
from penstock.model.event import MILLENNIUM, Delivery, Event, EventId
from penstock.model.lease import Settlement
from penstock.model.lifecycle import State
from penstock.model.outcome import Dead, Outcome, Published, Released, Retry
from penstock.model.records import HistoryEntry, Record
from penstock.model.retry import wait_seconds
from penstock.model.stats import QueueStats, RelayStats, Stats
from penstock.model.text import storable
from penstock.model.times import from_micros, to_micros
from penstock.store.objects.document import MICROS, Blob, EventRow, HistoryRow, RelayRow
from penstock.store.objects.operations.emits import NewEvent
from penstock.store.objects.operations.settlements import RequestedOutcome

_MILLENNIUM = to_micros(MILLENNIUM)

Put = Callable[[str, bytes], Blob]
Get = Callable[[int, str], bytes]


def micros(seconds: float) -> int:
    return round(seconds * MICROS)


def new_event(event: Event, event_id: EventId, blob: Blob) -> NewEvent:
    at = None if event.available_at is None else to_micros(event.available_at)
    entry = EventRow(
        seq=0,
        event_id=event_id.hex,
        event_type=event.event_type,
        queue=event.queue,
        form=blob[0],
        payload=blob[1],
        priority=event.priority,
        created_at=0,
        available_at=at or 0,
        headers=dict(event.headers) or None,
        partition_key=event.partition_key,
        max_attempts=event.max_attempts,
    )
    delay = micros(event.delay_seconds or 0) if at is None else None
    return NewEvent(entry.trimmed(), event.event_id is not None, delay, event.dedupe_key, micros(event.dedupe_seconds))


def outcome_row(seq: int, outcome: Outcome, put: Put) -> RequestedOutcome:
    match outcome:
        case Published(result=result, keep=keep):
            return RequestedOutcome(
                seq, "published", result=None if result is None else put(str(seq), result), keep=keep
            )
        case Retry(error=error, delay_seconds=delay, keep=keep):
            return RequestedOutcome(seq, "retried", storable(error), micros(wait_seconds(delay)), keep=keep)
        case Dead(error=error, keep=keep):
            return RequestedOutcome(seq, "dead", storable(error), keep=keep)
        case Released():
            return RequestedOutcome(seq, "released")
        case _:
            assert_never(outcome)


def settlement(answer: Mapping[str, Sequence[int]]) -> Settlement:
    return Settlement(**{kind: frozenset(seqs) for kind, seqs in answer.items()})


def delivery(row: Sequence[Any], get: Get) -> Delivery:
    """Decode a claimed event. Ids and times stay raw: a delivery decodes them on access."""
    entry = EventRow(*row)
    return Delivery(
        entry.seq,
        bytes.fromhex(entry.event_id),
        entry.event_type,
        entry.queue,
        get(entry.form, entry.payload),
        entry.headers,
        entry.partition_key,
        None,
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
    entry, holder = EventRow(*row[0]), row[1] or (None, None, None)
    settled_at = _time(entry.settled_at)
    same = ("partition_key", "priority", "deliveries", "max_attempts", "suspect", "last_error")
    return Record(
        **_shared(entry, *same),
        state=State(entry.state),
        payload=get(entry.form, entry.payload),
        headers=entry.headers or {},
        ordering_key=None,
        available_at=from_micros(entry.available_at),
        claimed_at=_time(holder[0]),
        claimed_by=holder[1],
        lease_expires_at=_time(holder[2]),
        published_at=settled_at if entry.state == State.PUBLISHED else None,
        settled_at=settled_at,
    )


def death(row: Sequence[Any]) -> Death:
    entry = EventRow(*row)
    return Death(**_shared(entry), died_at=from_micros(entry.settled_at or 0), error=entry.last_error or "")


def _shared(entry: EventRow, *more: str) -> dict[str, Any]:
    """Return the fields of an entry that both a record and a death contain."""
    same = {name: getattr(entry, name) for name in ("seq", "event_type", "queue", "attempts", "replays", *more)}
    return {**same, "event_id": EventId(UUID(entry.event_id)), "created_at": from_micros(entry.created_at)}


def _time(at: int | None) -> datetime | None:
    return None if at is None else from_micros(at)


def history_entry(row: Sequence[Any]) -> HistoryEntry:
    step = HistoryRow(*row)
    return HistoryEntry(from_micros(step.at), step.what, step.attempts, step.by, step.detail)


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


def _queue(queue: str, counts: dict[str, int], now: int) -> QueueStats:
    oldest = counts.pop("oldest", None)
    age = None if oldest is None else max((now - oldest) / MICROS, 0.0)
    return QueueStats(queue, **counts, oldest_pending_seconds=age)


def _relay(row: RelayRow, now: int) -> RelayStats:
    named = (UUID(row.relay_id), row.queue, row.destination, row.host)
    return RelayStats(*named, from_micros(row.started_at), (now - row.seen_at) / MICROS, row.stopping)
