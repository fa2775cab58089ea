"""Results of inspection: event records, pages, histories and notes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from penstock.model.event import EventId
from penstock.model.lifecycle import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Complete current state of an event: the single row of the outbox specification."""

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
    """A page of records. Pass `after` to get the next page; `after` is None on the last page."""

    records: Sequence[Record]
    after: int | None


@dataclass(frozen=True, slots=True)
class SettledCount:
    """Number of events with one state, queue and type that an operation would change."""

    state: State
    queue: str
    event_type: str
    count: int


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One entry in the history of an event."""

    at: datetime
    what: str
    attempts: int
    by: str | None
    detail: str | None


@dataclass(frozen=True, slots=True)
class Note:
    """Progress and result of an event as its handler reported them, in opaque bytes."""

    progress: bytes | None = None
    result: bytes | None = None


@dataclass(frozen=True, slots=True, order=True)
class Head:
    """The first claimable event of a queue. Heads sort in the order in which a claim would deliver them."""

    rank: int
    """Negated priority, so that the highest priority sorts first."""
    available_at: datetime
    seq: int
    queue: str
