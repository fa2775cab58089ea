"""Jobs: work that is submitted, claimed by one worker at a time, kept alive by heartbeats, and completed or failed.

    import penstock

    jobs = penstock.Jobs("postgresql://localhost/shop")
    job_id = jobs.submit("email:send", {"to": "user@example.com"})

    while job := jobs.claim("worker-1", ["email:send"], wait_seconds=30):
        jobs.complete(job, result=send(job.payload))

A job is an event, its worker holds a lease of its own for it, and it is settled as every event is: PENDING, CLAIMED,
PUBLISHED (completed) or DEAD. `api` serves the same verbs over HTTP, and `JobsClient` calls them there.
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
    """The client needs an HTTP library, which whoever works on the database itself can do without."""
    if name == "JobsClient":
        return import_module("penstock.jobs.client").JobsClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
