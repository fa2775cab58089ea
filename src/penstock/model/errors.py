"""The errors that Penstock raises deliberately. Each message states the problem and its remedy.

PenstockError
├── UsageError            mistake of the caller: the command line exits with 2
│   ├── InvalidEvent      a field of an event is invalid
│   ├── UnknownScheme     no store or publisher handles the URL's scheme
│   ├── MissingDriver     an optional dependency is not installed
│   ├── NotSupported      the backend does not support the operation
│   ├── EventNotFound     no event has the id
│   └── JobNotFound       no job has the id
├── StoreError            the store rejected an operation or failed: the command line exits with 1
│   ├── StoreUnavailable  the store can't be reached now; a retry may succeed
│   ├── NotInitialised    the store's tables are missing or older than this code
│   └── StoreConflict     a transaction lost against concurrent transactions; a retry may succeed
├── LeaseLost             the lease expired or was taken over: the store rejects outcomes under the lease
├── InvalidPayload        a payload does not match its handler's type: the event is dead without a retry
├── JobError              an operation conflicts with the current state of a job
│   ├── JobLost           the job expired, was cancelled or is already settled; also a LeaseLost
│   ├── JobSettled        the job is already settled and can't be cancelled
│   ├── JobFailed         the awaited job is DEAD
│   └── JobUnfinished     the awaited job is not settled yet
├── PublishError          a destination can't be used (the failure of one event is an outcome instead)
├── InvalidSignature      the signature of a webhook is missing, wrong or too old
└── PipelineError         Spark can't start, or its query failed
    └── SourceUnavailable the source of a stream can't be reached now; a retry may succeed
"""


class PenstockError(Exception):
    """Base class of the errors that Penstock raises deliberately."""


class UsageError(PenstockError):
    """A mistake of the caller, such as an invalid argument or option."""


def require(holds: bool, message: str) -> None:
    """Raise `UsageError` unless the condition holds."""
    if not holds:
        raise UsageError(message)


class InvalidEvent(UsageError):
    """A field of an event is invalid."""


class UnknownScheme(UsageError):
    """No store or publisher handles the URL's scheme."""


class MissingDriver(UsageError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} requires an extra that is not installed; run: pip install 'penstock[{extra}]'")


class NotSupported(UsageError):
    """The backend does not support the operation."""


class EventNotFound(UsageError):
    """No event has the given id."""

    def __init__(self, event_id: object) -> None:
        super().__init__(f"event {event_id} does not exist; list events with: penstock events")


class JobNotFound(UsageError):
    """No job has the given id."""

    @classmethod
    def of(cls, job_id: object, name: str) -> "JobNotFound":
        return cls(f"job {job_id} does not exist in job queue {name!r}; list jobs with: penstock jobs list")


class StoreError(PenstockError):
    """The store rejected an operation or failed."""


class StoreUnavailable(StoreError):
    """The store can't be reached now; a retry may succeed."""


class NotInitialised(StoreError):
    """The store's tables are missing or older than this code."""


class StoreConflict(StoreError):
    """A transaction lost against concurrent transactions in every attempt; a retry may succeed."""


class LeaseLost(PenstockError):
    """The lease expired or was taken over: the store rejects outcomes under the lease."""


class InvalidPayload(PenstockError):
    """A payload does not match the type that its handler expects."""


class JobError(PenstockError):
    """An operation conflicts with the current state of a job."""


class JobLost(JobError, LeaseLost):
    """The worker has lost the job and should stop working on it: the result would be discarded."""


class JobSettled(JobError):
    """The job is already settled and can't be cancelled."""


class JobFailed(JobError):
    """The awaited job is DEAD; the message includes its error."""


class JobUnfinished(JobError):
    """The awaited job is not settled yet."""


class PublishError(PenstockError):
    """A destination can't be used."""


class InvalidSignature(PenstockError):
    """The signature of a webhook is missing, wrong or too old."""


class PipelineError(PenstockError):
    """Spark can't start, or its query failed."""


class SourceUnavailable(PipelineError):
    """The source of a stream can't be reached now; a retry may succeed."""
