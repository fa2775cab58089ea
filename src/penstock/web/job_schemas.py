"""What goes over HTTP: the requests, with every limit in the schema, and the answers. Names follow the event."""

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
    """JSON has one kind of number: 3.0 is an integer there."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


Attempts = Annotated[int, Field(ge=1, le=MAX_ATTEMPTS_LIMIT), BeforeValidator(_whole)]
Priority = Annotated[int, Field(ge=PRIORITIES[0], le=PRIORITIES[-1]), BeforeValidator(_whole)]
Delay = Annotated[float, Field(ge=0, le=LONGEST_SECONDS, allow_inf_nan=False)]
Wait = Annotated[float, Field(ge=0, le=LONGEST_WAIT_SECONDS, allow_inf_nan=False)]


class _Request(BaseModel):
    """No field but those there are, and no text where a number belongs."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Submission(_Request):
    """A job to be done. With a `job_id` of the caller's making a repeat adds nothing."""

    type: JobType
    payload: Any = None
    max_attempts: Attempts = MAX_ATTEMPTS
    job_id: Annotated[UUID | None, Field(strict=False)] = None
    priority: Priority = 0
    delay_seconds: Delay | None = None
    dedupe_key: Name | None = None
    headers: Annotated[dict[HeaderText, HeaderText], Field(max_length=MOST_HEADERS)] = {}


class ClaimRequest(_Request):
    """The next job of these types, or of any. With `wait_seconds` the answer waits for one to come."""

    worker_id: Name
    types: Annotated[list[JobType], Field(min_length=1, max_length=MOST_TYPES)] | None = None
    wait_seconds: Wait = 0.0


class Heartbeat(_Request):
    """The worker is still at it, and may say how far it has come: any JSON."""

    lease: LeaseText
    progress: Any = None


class Completion(_Request):
    """The job is done, and this came of it: any JSON."""

    lease: LeaseText
    result: Any = None


class Failure(_Request):
    """The job failed. Without a delay the queue's retry policy chooses one."""

    lease: LeaseText
    reason: Reason
    delay_seconds: Delay | None = None


class Release(_Request):
    """The worker gives the job back untouched."""

    lease: LeaseText


class Cancellation(_Request):
    """The job is to be done no more."""

    reason: Reason = "cancelled"


class _Parameters(BaseModel):
    """No parameter but those there are: a state misspelt is not all states."""

    model_config = ConfigDict(extra="forbid")


class Listing(_Parameters):
    """Which jobs to list."""

    state: State | None = None
    type: JobType | None = None
    limit: Annotated[int, Field(ge=1, le=MOST_LISTED)] = 100
    after: Annotated[int | None, Field(ge=1, le=GREATEST_SEQ)] = None


class WaitParameters(_Parameters):
    """How long to wait for a job to be settled."""

    wait_seconds: Wait = 0.0


class Submitted(BaseModel):
    """The job's id; that of an earlier job, where a dedupe key says that it is the same."""

    job_id: UUID


class ClaimedDocument(BaseModel):
    """A job in its worker's hands. `lease` goes into every word about it; heartbeats are due every so many seconds."""

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
    """Where a job stands after what was said of it."""

    job_id: UUID
    state: State


class StatsDocument(BaseModel):
    """The job queue at a glance."""

    completed_total: int
    types: list[TypeStats]


class Health(BaseModel):
    """That the server is there, and its store."""

    status: str = "ok"


class FieldProblem(BaseModel):
    """What is wrong with one field."""

    field: str
    message: str


class Problem(BaseModel):
    """What went wrong, as RFC 9457 has it."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[FieldProblem] = []
