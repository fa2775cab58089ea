"""Jobs: submitted, claimed by one worker at a time, extended by heartbeats, and completed or failed.

    import penstock

    jobs = penstock.Jobs("postgresql://localhost/shop")
    job_id = jobs.submit("email:send", {"to": "user@example.com"})

    while job := jobs.claim("worker-1", ["email:send"], wait_seconds=30):
        jobs.complete(job, result=send(job.payload))

A job is an event with a separate lease. It has the states of every event: PENDING, CLAIMED, PUBLISHED (completed) and
DEAD. `penstock jobs serve` provides the same operations over HTTP; `JobsClient` is the client for them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.jobs.job import ClaimedJob, Job, JobId, JobPage, JobStats, TypeStats
from penstock.jobs.queue import Jobs
from penstock.jobs.worker_loop import Handler, JobContext

if TYPE_CHECKING:
    from penstock.jobs.client import JobsClient

__all__ = [
    "ClaimedJob",
    "Handler",
    "Job",
    "JobContext",
    "JobId",
    "JobPage",
    "JobStats",
    "Jobs",
    "JobsClient",
    "TypeStats",
]


def __getattr__(name: str) -> Any:
    """Import `JobsClient` on first use: it needs an HTTP library, which workers with direct database access do not."""
    if name == "JobsClient":
        return import_module("penstock.jobs.client").JobsClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
