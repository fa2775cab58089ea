"""Jobs as values: what a worker is handed, what a look at a job shows, and the string that proves who holds it."""

import base64
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.jobs.payloads import shown
from penstock.model.errors import JobLost, UsageError
from penstock.model.event import Delivery, EventId
from penstock.model.lease import Lease, LeaseId, Token
from penstock.model.lifecycle import State
from penstock.model.records import Note, Record, plain

JobId = EventId

NOTHING_SAID = Note()
LEASE_LENGTH = 75
LEASE_PATTERN = rf"^[A-Za-z0-9_-]{{{LEASE_LENGTH}}}$"
_LEASE = struct.Struct(">16s16s16sq")  # lease, token, job, seq


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedJob:
    """A job in its worker's hands. `lease` proves it: every claim has another one, also by the same worker."""

    job_id: JobId
    type: str
    payload: Any
    """JSON; an instance of the type's model, where one is registered."""
    json: Any
    """The payload as it was submitted, whatever its model makes of it."""
    lease: str
    attempts: int
    max_attempts: int | None
    priority: int
    headers: Mapping[str, str]
    submitted_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as it stands."""

    job_id: JobId
    type: str
    state: State
    payload: Any
    headers: Mapping[str, str]
    priority: int
    attempts: int
    """How often it was claimed."""
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
        return {field.name: plain(getattr(self, field.name)) for field in fields(self)}


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some jobs, newest first; `after` asks for the next page, and is None on the last one."""

    jobs: Sequence[Job]
    after: int | None


@dataclass(frozen=True, slots=True)
class TypeStats:
    """How many jobs of one type are where."""

    type: str
    pending: int
    claimed: int
    completed: int
    dead: int


@dataclass(frozen=True, slots=True)
class JobStats:
    """The job queue at a glance. Of jobs that were purged only the total of completed ones knows."""

    types: Sequence[TypeStats]
    purged: int = 0
    """Completed jobs that are no longer there."""

    @property
    def completed_total(self) -> int:
        return sum(one.completed for one in self.types) + self.purged

    def as_json(self) -> dict[str, Any]:
        types = [{field.name: getattr(one, field.name) for field in fields(one)} for one in self.types]
        return {"completed_total": self.completed_total, "types": types}


@dataclass(frozen=True, slots=True)
class HeldJob:
    """What a lease string says: which job is held, under which lease."""

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
    """One string for workers to pass back. It has all that a settle needs, so that none has to look the job up."""
    packed = _LEASE.pack(lease.lease_id.bytes, lease.token.bytes, job_id.bytes, seq)
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def held_job(job_id: UUID | str, text: str, queue: str, lease_seconds: float) -> HeldJob:
    """What a worker holds who names this job and this lease."""
    try:
        if len(text) != LEASE_LENGTH:
            raise ValueError
        lease_id, token, held, seq = _LEASE.unpack(base64.b64decode(text + "=", altchars=b"-_", validate=True))
    except ValueError:
        raise UsageError("this is not a lease; pass on the one that came with the claimed job as it is") from None
    wanted = as_job_id(job_id)
    if UUID(bytes=held) != wanted:
        raise JobLost(f"this lease is not one for job {wanted}; pass on the one that came with it")
    lease = Lease(LeaseId(UUID(bytes=lease_id)), Token(UUID(bytes=token)), queue, lease_seconds)
    return HeldJob(wanted, seq, lease)


def as_job_id(given: UUID | str) -> JobId:
    try:
        return JobId(given if isinstance(given, UUID) else UUID(given))
    except ValueError:
        raise UsageError(f"{given!r} is not a job id; penstock jobs list shows them") from None
