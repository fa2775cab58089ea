"""Events as inspection returns them: records, pages, timelines, notes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.model.event import EventId
from penstock.model.lifecycle import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """An event as it stands: the one row of the outbox specification."""

    seq: int
    event_id: EventId
    event_type: str
    queue: str
    state: State
    payload: bytes
    headers: Mapping[str, str]
    partition_key: str | None
    ordering_key: str | None
    priority: int
    created_at: datetime
    available_at: datetime
    attempts: int
    deliveries: int
    max_attempts: int | None
    replays: int
    suspect: int
    last_error: str | None
    claimed_at: datetime | None
    claimed_by: str | None
    lease_expires_at: datetime | None
    published_at: datetime | None
    settled_at: datetime | None


@dataclass(frozen=True, slots=True)
class Page:
    """Some of what was found; `after` asks for the next page, and is None on the last one."""

    records: Sequence[Record]
    after: int | None


@dataclass(frozen=True, slots=True)
class SettledCount:
    """How many events of one kind an operation would touch."""

    state: State
    queue: str
    event_type: str
    count: int


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One line of an event's timeline."""

    at: datetime
    what: str
    attempts: int
    by: str | None
    detail: str | None


@dataclass(frozen=True, slots=True)
class Note:
    """What whoever handles an event has said of it: how far it has come, and what came of it. Both are opaque bytes."""

    progress: bytes | None = None
    result: bytes | None = None


@dataclass(frozen=True, slots=True, order=True)
class Head:
    """The first event of a queue that may go now. Heads sort as a claim on all of their queues would take them."""

    rank: int
    """The priority, negated: the highest comes first."""
    available_at: datetime
    seq: int
    queue: str


def plain(value: Any) -> Any:
    """The value of a field, as JSON can hold it."""
    match value:
        case datetime():
            return value.isoformat()
        case UUID() | State():
            return str(value)
        case Mapping():
            return dict(value)
        case _:
            return value
