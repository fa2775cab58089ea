"""Jobs as workers claim them and as queries return them, and the lease string that proves a claim."""

import base64
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.jobs.payloads import shown
from penstock.model.errors import JobLost, UsageError
from penstock.model.event import Delivery, EventId
from penstock.model.lease import Lease, LeaseId, Token
from penstock.model.lifecycle import State
from penstock.model.records import Note, Record
from penstock.model.text import plain_fields

JobId = EventId

NOTHING_SAID = Note()
LEASE_LENGTH = 75
LEASE_PATTERN = rf"^[A-Za-z0-9_-]{{{LEASE_LENGTH}}}$"
_LEASE = struct.Struct(">16s16s16sq")  # lease, token, job, seq


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedJob:
    """A job claimed by a worker. `lease` proves the claim: every claim has a new lease, even by the same worker."""

    job_id: JobId
    type: str
    payload: Any
    """JSON value, or an instance of the type's model if one is registered."""
    json: Any
    """Payload as submitted, without conversion to a model."""
    lease: str
    attempts: int
    max_attempts: int | None
    priority: int
    headers: Mapping[str, str]
    submitted_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Current state of a job."""

    job_id: JobId
    type: str
    state: State
    payload: Any
    headers: Mapping[str, str]
    priority: int
    attempts: int
    """Number of claims."""
    max_attempts: int | None
    progress: Any
    result: Any
    error: str | None
    worker: str | None
    submitted_at: datetime
    available_at: datetime
    claimed_at: datetime | None
    expires_at: datetime | None
    settled_at: datetime | None

    @property
    def settled(self) -> bool:
        return self.state in (State.PUBLISHED, State.DEAD)

    def as_json(self) -> dict[str, Any]:
        return plain_fields(self)


@dataclass(frozen=True, slots=True)
class JobPage:
    """A page of jobs, newest first. Pass `after` to get the next page; `after` is None on the last page."""

    jobs: Sequence[Job]
    after: int | None


@dataclass(frozen=True, slots=True)
class TypeStats:
    """Number of jobs of one type by state."""

    type: str
    pending: int
    claimed: int
    completed: int
    dead: int


@dataclass(frozen=True, slots=True)
class JobStats:
    """Statistics of a job queue. Purged jobs are included only in `completed_total`."""

    types: Sequence[TypeStats]
    purged: int = 0
    """Number of completed jobs that were purged."""

    @property
    def completed_total(self) -> int:
        return sum(one.completed for one in self.types) + self.purged

    def as_json(self) -> dict[str, Any]:
        return {"completed_total": self.completed_total, "types": [asdict(one) for one in self.types]}


@dataclass(frozen=True, slots=True)
class HeldJob:
    """Decoded lease string: the job and its lease."""

    job_id: JobId
    seq: int
    lease: Lease


def claimed_job(delivery: Delivery, lease: Lease, payload: Any) -> ClaimedJob:
    return ClaimedJob(
        job_id=delivery.event_id,
        type=delivery.event_type,
        payload=payload,
        json=shown(delivery.payload),
        lease=lease_text(lease, delivery.event_id, delivery.seq),
        attempts=delivery.deliveries,
        max_attempts=delivery.max_attempts,
        priority=delivery.priority,
        headers=delivery.headers,
        submitted_at=delivery.created_at,
    )


def job(record: Record, note: Note = NOTHING_SAID) -> Job:
    return Job(
        job_id=record.event_id,
        type=record.event_type,
        state=record.state,
        payload=shown(record.payload),
        headers=record.headers,
        priority=record.priority,
        attempts=record.deliveries,
        max_attempts=record.max_attempts,
        progress=shown(note.progress),
        result=shown(note.result),
        error=record.last_error,
        worker=record.claimed_by,
        submitted_at=record.created_at,
        available_at=record.available_at,
        claimed_at=record.claimed_at,
        expires_at=record.lease_expires_at,
        settled_at=record.settled_at,
    )


def lease_text(lease: Lease, job_id: JobId, seq: int) -> str:
    """Encode a lease as a string for the worker. The string suffices for a settle without a lookup of the job."""
    packed = _LEASE.pack(lease.lease_id.bytes, lease.token.bytes, job_id.bytes, seq)
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def held_job(job_id: UUID | str, text: str, queue: str, lease_seconds: float) -> HeldJob:
    """Decode the lease string of a job; raise `JobLost` if the lease belongs to another job."""
    try:
        if len(text) != LEASE_LENGTH:
            raise ValueError
        lease_id, token, held, seq = _LEASE.unpack(base64.b64decode(text + "=", altchars=b"-_", validate=True))
    except ValueError:
        raise UsageError(f"invalid lease {text!r}; pass the value of the claim response unchanged") from None
    wanted = as_job_id(job_id)
    if UUID(bytes=held) != wanted:
        raise JobLost(f"lease does not belong to job {wanted}; pass the value of its claim response unchanged")
    lease = Lease(LeaseId(UUID(bytes=lease_id)), Token(UUID(bytes=token)), queue, lease_seconds)
    return HeldJob(wanted, seq, lease)


def as_job_id(given: UUID | str) -> JobId:
    try:
        return JobId(given if isinstance(given, UUID) else UUID(given))
    except ValueError:
        raise UsageError(f"invalid job id {given!r}; expected a UUID, as listed by penstock jobs list") from None
