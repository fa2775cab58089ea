"""Request and response schemas of the jobs API, with all limits. Field names follow the event's."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from penstock.jobs.job import LEASE_LENGTH, LEASE_PATTERN, TypeStats
from penstock.jobs.queries import LONGEST_NAME
from penstock.jobs.queue import MAX_ATTEMPTS
from penstock.model.event import LONGEST_SECONDS, MAX_ATTEMPTS_LIMIT, NAME_LIMIT, PRIORITIES
from penstock.model.lifecycle import State

LONGEST_WAIT_SECONDS = 60.0
MOST_TYPES = 100
MOST_HEADERS = 100
LONGEST_TYPE = NAME_LIMIT - LONGEST_NAME - 1
LONGEST_TEXT = 10_000
LONGEST_HEADER = 4_000
MOST_LISTED = 1_000
GREATEST_SEQ = 2**63 - 1

_NO_NUL = r"^[^\x00]*$"

Name = Annotated[str, StringConstraints(min_length=1, max_length=NAME_LIMIT, pattern=_NO_NUL)]
JobType = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_TYPE, pattern=_NO_NUL)]
HeaderText = Annotated[str, StringConstraints(max_length=LONGEST_HEADER, pattern=_NO_NUL)]
Reason = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_TEXT)]
LeaseText = Annotated[str, StringConstraints(min_length=LEASE_LENGTH, max_length=LEASE_LENGTH, pattern=LEASE_PATTERN)]


def _whole(given: Any) -> Any:
    """Convert a float without a fraction to int: JSON doesn't distinguish 3.0 from 3."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


Attempts = Annotated[int, Field(ge=1, le=MAX_ATTEMPTS_LIMIT), BeforeValidator(_whole)]
Priority = Annotated[int, Field(ge=PRIORITIES[0], le=PRIORITIES[-1]), BeforeValidator(_whole)]
Delay = Annotated[float, Field(ge=0, le=LONGEST_SECONDS, allow_inf_nan=False)]
Wait = Annotated[float, Field(ge=0, le=LONGEST_WAIT_SECONDS, allow_inf_nan=False)]


class _Request(BaseModel):
    """Base of requests: rejects unknown fields and strings in place of numbers."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Submission(_Request):
    """A job to submit. Repeating a submission with a `job_id` set by the caller adds nothing."""

    type: JobType
    payload: Any = None
    max_attempts: Attempts = MAX_ATTEMPTS
    job_id: Annotated[UUID | None, Field(strict=False)] = None
    priority: Priority = 0
    delay_seconds: Delay | None = None
    dedupe_key: Name | None = None
    headers: Annotated[dict[HeaderText, HeaderText], Field(max_length=MOST_HEADERS)] = {}


class ClaimRequest(_Request):
    """A request for the next job of these types, or of any type. With `wait_seconds` the response waits for a job."""

    worker_id: Name
    types: Annotated[list[JobType], Field(min_length=1, max_length=MOST_TYPES)] | None = None
    wait_seconds: Wait = 0.0


class Heartbeat(_Request):
    """Heartbeat of a worker, with optional progress as any JSON."""

    lease: LeaseText
    progress: Any = None


class Completion(_Request):
    """Completion of a job, with an optional result as any JSON."""

    lease: LeaseText
    result: Any = None


class Failure(_Request):
    """Failure of a job. Without `delay_seconds`, the queue's retry policy sets the delay."""

    lease: LeaseText
    reason: Reason
    delay_seconds: Delay | None = None


class Release(_Request):
    """Return of an unprocessed job to the queue."""

    lease: LeaseText


class Cancellation(_Request):
    """Cancellation of a job."""

    reason: Reason = "cancelled"


class _Parameters(BaseModel):
    """Base of query parameters: rejects unknown ones, so that a misspelled filter doesn't select all jobs."""

    model_config = ConfigDict(extra="forbid")


class Listing(_Parameters):
    """Filters and page of a list of jobs."""

    state: State | None = None
    type: JobType | None = None
    limit: Annotated[int, Field(ge=1, le=MOST_LISTED)] = 100
    after: Annotated[int | None, Field(ge=1, le=GREATEST_SEQ)] = None


class WaitParameters(_Parameters):
    """Time to wait until a job is settled."""

    wait_seconds: Wait = 0.0


class Submitted(BaseModel):
    """Id of the job; the id of the earlier job if `dedupe_key` matches that job."""

    job_id: UUID


class ClaimedDocument(BaseModel):
    """A claimed job. Requests about the job need `lease`; heartbeats are due every `heartbeat_seconds`."""

    job_id: UUID
    type: str
    payload: Any
    lease: str
    attempts: int
    max_attempts: int | None
    priority: int
    headers: dict[str, str]
    submitted_at: datetime
    heartbeat_seconds: float
    timeout_seconds: float


class Standing(BaseModel):
    """State of a job after the request."""

    job_id: UUID
    state: State


class StatsDocument(BaseModel):
    """Counts of the job queue."""

    completed_total: int
    types: list[TypeStats]


class Health(BaseModel):
    """Health of the server and its store."""

    status: str = "ok"


class FieldProblem(BaseModel):
    """Error in one field."""

    field: str
    message: str


class Problem(BaseModel):
    """Problem document of RFC 9457."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[FieldProblem] = []
