"""Every error that Penstock raises on purpose. Each message says what happened and what to do.

PenstockError
├── UsageError            the caller's mistake: the command line exits with 2
│   ├── InvalidEvent      a field of an event is out of bounds
│   ├── UnknownScheme     a URL that no store or publisher answers to
│   ├── MissingDriver     an optional dependency is not installed
│   ├── NotSupported      the backend declares that it can't do this
│   ├── EventNotFound     no event has this id
│   └── JobNotFound       no job has this id
├── StoreError            the store refused or failed: the command line exits with 1
│   ├── StoreUnavailable  it can't be reached now; trying again may work
│   ├── NotInitialised    its tables are missing or older than this code
│   └── StoreConflict     concurrent work kept winning; trying again works
├── LeaseLost             another claimant may have the event by now: what was done under the lease is void
├── InvalidPayload        a payload that its handler's type refuses: the event is dead, not retried
├── JobError              a job is not where its caller thinks it is
│   ├── JobLost           its worker no longer holds it: it expired, was cancelled or settled; also a LeaseLost
│   ├── JobSettled        it is settled, and can't be cancelled any more
│   ├── JobFailed         it was waited for, and is DEAD
│   └── JobUnfinished     it was waited for, and is not settled yet
├── PublishError          a destination can't be used at all (one event's failure is an outcome instead)
├── InvalidSignature      a webhook that its receiver must not trust
└── PipelineError         Spark can't start or its query failed
    └── SourceUnavailable a stream's source can't be reached now; trying again may work
"""


class PenstockError(Exception):
    """Anything that Penstock raises on purpose."""


class UsageError(PenstockError):
    """The caller asked for something that can't be right."""


def require(holds: bool, message: str) -> None:
    """Raise a UsageError unless the condition holds."""
    if not holds:
        raise UsageError(message)


class InvalidEvent(UsageError):
    """A field of an event is out of bounds."""


class UnknownScheme(UsageError):
    """A URL that no store or publisher answers to."""


class MissingDriver(UsageError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} requires an extra that is not installed; run: pip install 'penstock[{extra}]'")


class NotSupported(UsageError):
    """The backend declares that it can't do this."""


class EventNotFound(UsageError):
    """No event has this id."""

    def __init__(self, event_id: object) -> None:
        super().__init__(f"event {event_id} does not exist; list events with: penstock events")


class JobNotFound(UsageError):
    """No job has this id."""

    @classmethod
    def of(cls, job_id: object, name: str) -> "JobNotFound":
        return cls(f"job {job_id} does not exist in job queue {name!r}; list jobs with: penstock jobs list")


class StoreError(PenstockError):
    """The store refused or failed."""


class StoreUnavailable(StoreError):
    """The store can't be reached now; trying again may work."""


class NotInitialised(StoreError):
    """The store's tables are missing or older than this code."""


class StoreConflict(StoreError):
    """Concurrent work kept winning; trying again works."""


class LeaseLost(PenstockError):
    """The lease ran out, or was taken over: what was done under it is void."""


class InvalidPayload(PenstockError):
    """A payload that the type of its handler refuses."""


class JobError(PenstockError):
    """A job is not where its caller thinks it is."""


class JobLost(JobError, LeaseLost):
    """The worker no longer holds the job: what it does now counts for nothing, and it should stop."""


class JobSettled(JobError):
    """The job is settled, and can't be cancelled any more."""


class JobFailed(JobError):
    """The job that was waited for is DEAD; the message says of what."""


class JobUnfinished(JobError):
    """The job that was waited for is not settled yet."""


class PublishError(PenstockError):
    """A destination can't be used at all."""


class InvalidSignature(PenstockError):
    """A webhook's signature is missing, wrong, or too old."""


class PipelineError(PenstockError):
    """Spark can't start, or its query failed."""


class SourceUnavailable(PipelineError):
    """What a stream reads from can't be reached now; trying again may work."""
