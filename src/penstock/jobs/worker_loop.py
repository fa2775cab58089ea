"""Worker loop for jobs: claim a job, send heartbeats from a separate thread, then complete or fail the job.

The loop works with `Jobs` and with `JobsClient`.
"""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.jobs.job import ClaimedJob
from penstock.model.errors import JobLost, JobNotFound, PenstockError, UsageError
from penstock.telemetry import log

if TYPE_CHECKING:
    from penstock.jobs.client import JobsClient
    from penstock.jobs.queue import Jobs

    JobQueue: TypeAlias = Jobs | JobsClient

IDLE_SECONDS = 10.0
ERROR_PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class JobContext:
    """Context of a running handler: its job, progress reports and stop signals."""

    job: ClaimedJob
    jobs: "JobQueue"
    stop: threading.Event
    lost: threading.Event = field(default_factory=threading.Event)
    """Set when the worker has lost the job. The result of the handler will be discarded."""

    def progress(self, said: Any) -> None:
        """Report progress as any JSON value. Counts as a heartbeat; raise `JobLost` if the worker has lost the job."""
        try:
            self.jobs.heartbeat(self.job, said)
        except (JobLost, JobNotFound):
            self.lost.set()
            raise


Handler = Callable[[Any, JobContext], Any]
"""Function of a payload and a `JobContext`; the return value is the job's result."""


def run(
    jobs: "JobQueue", handlers: Mapping[str, Handler], worker_id: str, *, stop: threading.Event, concurrency: int = 1
) -> None:
    """Handle jobs of the handlers' types, `concurrency` at a time. Once `stop` is set, finish the jobs in progress."""
    if not handlers or concurrency < 1:
        raise UsageError("a worker needs a handler at least, and a concurrency of 1 or more")
    with ThreadPoolExecutor(concurrency, thread_name_prefix="penstock-job") as threads:
        loops = [threads.submit(_loop, jobs, handlers, worker_id, stop) for _ in range(concurrency)]
        try:
            for loop in loops:
                loop.result()
        finally:
            stop.set()


def _loop(jobs: "JobQueue", handlers: Mapping[str, Handler], worker_id: str, stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            job = jobs.claim(worker_id, list(handlers), wait_seconds=IDLE_SECONDS, stop=stop)
            if job is not None:
                _handle(jobs, handlers[job.type], job, stop)
        except UsageError:
            stop.set()
            raise
        except PenstockError as error:  # the store may recover, and claimed jobs expire
            log.warn("job_loop_failed", retry_in=ERROR_PAUSE_SECONDS, error=error)
            stop.wait(ERROR_PAUSE_SECONDS)


def _handle(jobs: "JobQueue", handler: Handler, job: ClaimedJob, stop: threading.Event) -> None:
    context, done = JobContext(job, jobs, stop), threading.Event()
    beating = threading.Thread(target=_beat, args=(jobs, context, done), name="penstock-heartbeat", daemon=True)
    beating.start()
    try:
        result, error = handler(job.payload, context), None
    except Exception as raised:
        result, error = None, f"{type(raised).__name__}: {raised}"
    finally:
        done.set()
        beating.join()
    if context.lost.is_set():
        log.warn("job_lost", job_id=job.job_id)
        return
    try:
        _settle(jobs, job, result, error)
    except (JobLost, JobNotFound) as lost:
        log.warn("job_result_dropped", job_id=job.job_id, error=lost)


def _settle(jobs: "JobQueue", job: ClaimedJob, result: Any, error: str | None) -> None:
    if error is None:
        try:
            jobs.complete(job, result)
            return
        except UsageError as unfit:  # a result that is not JSON counts as a failure of the handler
            error = f"the handler's result can't be kept: {unfit}"
    jobs.fail(job, error)


def _beat(jobs: "JobQueue", context: JobContext, done: threading.Event) -> None:
    while not done.wait(jobs.heartbeat_seconds):
        try:
            jobs.heartbeat(context.job)
        except (JobLost, JobNotFound):
            context.lost.set()
            return
        except PenstockError as error:
            log.warn("heartbeat_failed", job_id=context.job.job_id, error=error)
