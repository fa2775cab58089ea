"""Table rows of an emitted event. The dialect passes functions that encode ids and times."""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.model.event import Event, EventId
from penstock.store.api import StagedPart


def headers_text(event: Event) -> str | None:
    return json.dumps(dict(event.headers)) if event.headers else None


def event_row(
    event_id: object, event: Event, now: object, encode: Callable[[Event], object] = headers_text
) -> tuple[Any, ...]:
    """Return a row of `penstock_events` in column order, without its seq."""
    return (event_id, event.event_type, event.payload, encode(event), event.partition_key, event.ordering_key, now)


def pending_row(
    seq: int, event: Event, now: Any, encode_time: Callable[[datetime], Any], wait: Callable[[float], Any]
) -> tuple[Any, ...]:
    """Return a row of `penstock_pending`, available at the event's own time, after its delay, or now."""
    available = now
    if event.available_at is not None:
        available = encode_time(event.available_at)
    elif event.delay_seconds is not None:
        available = now + wait(event.delay_seconds)
    return (seq, event.queue, event.ordering_key, event.priority, 0, 0, event.max_attempts, 0, 0, available, None)


def microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)


def staged_row(
    encode_id: Callable[[UUID], Any],
    encode_time: Callable[[datetime], int],
    part: StagedPart,
    number: int,
    event_id: EventId,
    event: Event,
    headers: object,
    now: int,
) -> tuple[Any, ...]:
    """Return a row of `penstock_staged`, in column order."""
    return (
        encode_id(part.write_id),
        part.batch_id,
        part.place,
        encode_id(part.part_id),
        number,
        encode_id(event_id),
        event.event_type,
        event.queue,
        event.payload,
        headers,
        event.partition_key,
        event.ordering_key,
        event.priority,
        event.max_attempts,
        None if event.available_at is None else encode_time(event.available_at),
        event.delay_seconds,
        event.dedupe_key,
        event.dedupe_seconds,
        now,
    )
