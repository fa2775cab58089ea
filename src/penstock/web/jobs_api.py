"""HTTP API of the job queue: one endpoint for each operation of `Jobs`.

Store calls run in threads. A request that waits for a job holds no thread while it waits.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from typing import Annotated, Any, cast
from uuid import UUID

from anyio import to_thread
from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response, Security
from fastapi.concurrency import run_in_threadpool
from fastapi.security import HTTPBearer

from penstock.jobs.job import ClaimedJob, Job, JobPage
from penstock.jobs.queue import Jobs
from penstock.jobs.wakeup import pauses
from penstock.model.errors import UsageError
from penstock.model.event import EventId
from penstock.model.lifecycle import State
from penstock.model.selection import Selection
from penstock.web import job_schemas as schemas
from penstock.web import problems
from penstock.web.auth import RequestGuard

MAX_BODY_BYTES = 1_048_576
THREADS = 15
OPEN_PATHS = frozenset({"/health", "/openapi.json"})
SAID = ("job_id", "type", "lease", "attempts", "max_attempts", "priority", "headers", "submitted_at")
NO_EVENT = EventId(UUID(int=0))


class JobsApp(FastAPI):
    """The ASGI application of one job queue."""

    jobs: Jobs
    max_wait_seconds: float
    closing: threading.Event

    def openapi(self) -> dict[str, Any]:
        schema = super().openapi()
        problem = schemas.Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        parts = problem.pop("$defs")
        schema["components"]["schemas"] |= {"Problem": problem, **parts}
        return schema

    def end_waiting(self) -> None:
        """Answer all waiting requests, so that the server can stop."""
        self.closing.set()
        self.jobs.wakeup.notify()


def create_app(
    jobs: Jobs,
    tokens: Sequence[str] = (),
    *,
    max_body_bytes: int = MAX_BODY_BYTES,
    max_wait_seconds: float = schemas.LONGEST_WAIT_SECONDS,
) -> JobsApp:
    """Return the HTTP API of a job queue. With `tokens`, requests need a token, except for health and schema."""
    app = JobsApp(
        title="Penstock jobs",
        version=version("penstock"),
        description="Submit jobs, claim them under a lease, extend the lease, and settle the jobs.",
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan,
    )
    app.jobs, app.max_wait_seconds, app.closing = jobs, max_wait_seconds, threading.Event()
    bearer = HTTPBearer(auto_error=False, description="One of the server's tokens, if it has any.")
    app.include_router(router, dependencies=[Security(bearer)] if tokens else [])
    app.include_router(open_router)
    app.add_middleware(RequestGuard, tokens=tuple(tokens), max_body_bytes=max_body_bytes, open_paths=OPEN_PATHS)
    problems.install(app, router, open_router)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    # Limit the threads to the store's connections: a further thread would only wait for a connection.
    to_thread.current_default_thread_limiter().total_tokens = THREADS
    yield
    cast(JobsApp, app).end_waiting()


def _jobs(request: Request) -> Jobs:
    return cast(JobsApp, request.app).jobs


def _once_each(request: Request) -> None:
    """Reject repeated query parameters, because only one of their values would be used."""
    for name in request.query_params:
        if len(request.query_params.getlist(name)) > 1:
            raise UsageError(f"duplicate parameter {name!r}; pass it once")


Queue = Annotated[Jobs, Depends(_jobs)]

open_router = APIRouter()
router = APIRouter(prefix="/v1", dependencies=[Depends(_once_each)])


@open_router.get("/health", responses={503: problems.answers()[503]})
def health(jobs: Queue) -> schemas.Health:
    """Check that the server runs and reaches its store."""
    jobs.store.find(Selection(ids=frozenset({NO_EVENT})), limit=1)
    return schemas.Health()


@router.post("/jobs", status_code=201, responses=problems.answers(409))
def submit(asked: schemas.Submission, jobs: Queue) -> schemas.Submitted:
    """Submit a job."""
    job_id = jobs.submit(
        asked.type,
        asked.payload,
        max_attempts=asked.max_attempts,
        job_id=asked.job_id,
        priority=asked.priority,
        delay=asked.delay_seconds,
        dedupe_key=asked.dedupe_key,
        headers=asked.headers,
    )
    return schemas.Submitted(job_id=job_id)


@router.post(
    "/jobs/claim",
    response_model=schemas.ClaimedDocument,
    responses={204: {"description": "No job is available"}, **problems.answers()},
)
async def claim(asked: schemas.ClaimRequest, request: Request, jobs: Queue) -> schemas.ClaimedDocument | Response:
    """Claim the next job. Return 204 if no job becomes available within `wait_seconds`."""
    job = await _claimed(request, jobs, asked)
    if job is None:
        return Response(status_code=204)
    if await request.is_disconnected():  # return the job without counting the attempt: the client has disconnected
        await run_in_threadpool(jobs.release, job)
        return Response(status_code=204)
    said = {name: getattr(job, name) for name in SAID} | {"payload": job.json}
    return schemas.ClaimedDocument(
        **said, heartbeat_seconds=jobs.heartbeat_seconds, timeout_seconds=jobs.timeout_seconds
    )


@router.post("/jobs/{job_id:uuid}/heartbeat", responses=problems.answers(404, 409))
def heartbeat(job_id: UUID, asked: schemas.Heartbeat, jobs: Queue) -> schemas.Standing:
    """Extend the job's lease. 409 means that the worker has lost the job and should stop."""
    jobs.heartbeat((job_id, asked.lease), asked.progress)
    return schemas.Standing(job_id=job_id, state=State.CLAIMED)


@router.post("/jobs/{job_id:uuid}/complete", responses=problems.answers(404, 409))
def complete(job_id: UUID, asked: schemas.Completion, jobs: Queue) -> schemas.Standing:
    """Complete the job. The worker that completed the job may repeat the request."""
    jobs.complete((job_id, asked.lease), asked.result)
    return schemas.Standing(job_id=job_id, state=State.PUBLISHED)


@router.post("/jobs/{job_id:uuid}/fail", responses=problems.answers(404, 409))
def fail(job_id: UUID, asked: schemas.Failure, jobs: Queue) -> schemas.Standing:
    """Record a failure: the job becomes PENDING, or DEAD after its last attempt."""
    return schemas.Standing(
        job_id=job_id, state=jobs.fail((job_id, asked.lease), asked.reason, delay=asked.delay_seconds)
    )


@router.post("/jobs/{job_id:uuid}/release", responses=problems.answers(404, 409))
def release(job_id: UUID, asked: schemas.Release, jobs: Queue) -> schemas.Standing:
    """Return the job to the queue without counting the attempt."""
    jobs.release((job_id, asked.lease))
    return schemas.Standing(job_id=job_id, state=State.PENDING)


@router.post("/jobs/{job_id:uuid}/cancel", responses=problems.answers(404, 409))
def cancel(job_id: UUID, asked: schemas.Cancellation, jobs: Queue) -> schemas.Standing:
    """Make an unsettled job DEAD."""
    jobs.cancel(job_id, asked.reason, by="http")
    return schemas.Standing(job_id=job_id, state=State.DEAD)


@router.get("/jobs/{job_id:uuid}", responses=problems.answers(404))
async def get(job_id: UUID, asked: Annotated[schemas.WaitParameters, Query()], request: Request, jobs: Queue) -> Job:
    """Return a job; with `wait_seconds`, wait until the job is settled or the time is over."""
    until = _now() + min(asked.wait_seconds, _app(request).max_wait_seconds)
    for pause in pauses():
        job = await run_in_threadpool(jobs.get, job_id)
        left = until - _now()
        if job.settled or left <= 0 or _app(request).closing.is_set() or await request.is_disconnected():
            return job
        await asyncio.sleep(min(pause, left))
    raise AssertionError("unreachable")


@router.get("/jobs", responses=problems.answers())
def list_jobs(asked: Annotated[schemas.Listing, Query()], jobs: Queue) -> JobPage:
    """List jobs, newest first, in pages."""
    return jobs.list(asked.state, asked.type, limit=asked.limit, after=asked.after)


@router.get("/stats", responses=problems.answers())
def stats(jobs: Queue) -> schemas.StatsDocument:
    """Count jobs by type and state."""
    return schemas.StatsDocument.model_validate(jobs.stats(), from_attributes=True)


async def _claimed(request: Request, jobs: Jobs, asked: schemas.ClaimRequest) -> ClaimedJob | None:
    """Claim a job, now or within `wait_seconds`. A submit to this server ends a pause early; otherwise poll."""
    loop, woken = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # the event loop has ended, and no request waits
            loop.call_soon_threadsafe(woken.set)

    until = _now() + min(asked.wait_seconds, _app(request).max_wait_seconds)
    with jobs.wakeup.listening(wake):
        for pause in pauses():
            woken.clear()
            job = await run_in_threadpool(jobs.claim, asked.worker_id, asked.types)
            left = until - _now()
            if job or left <= 0 or _app(request).closing.is_set() or await request.is_disconnected():
                return job
            with suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), min(pause, left))
    raise AssertionError("unreachable")


def _app(request: Request) -> JobsApp:
    return cast(JobsApp, request.app)


def _now() -> float:
    return asyncio.get_running_loop().time()
