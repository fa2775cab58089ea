"""HTTP client with the operations of `Jobs`.

Operations that are safe to repeat are retried when the connection breaks. A claim is retried only if its request did
not reach the server: otherwise a claimed job could be lost with the response.
"""

import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any, Self
from uuid import UUID

import uuid_utils.compat as uuid7

from penstock.config.extras import needs_extra
from penstock.config.urls import mask_url
from penstock.jobs.job import ClaimedJob, Job, JobId, JobPage, JobStats, TypeStats, as_job_id
from penstock.jobs.payloads import encode
from penstock.jobs.queue import HEARTBEAT_SECONDS, MAX_ATTEMPTS, Held
from penstock.jobs.worker_loop import Handler, run
from penstock.model.errors import (
    JobError,
    JobFailed,
    JobLost,
    JobNotFound,
    JobSettled,
    JobUnfinished,
    PenstockError,
    StoreUnavailable,
    UsageError,
)
from penstock.model.lifecycle import State

with needs_extra("the jobs client", "jobs"):
    import httpx

TIMEOUT_SECONDS = 10.0
TRIES = 5
FIRST_PAUSE_SECONDS = 0.1
LONGEST_POLL_SECONDS = 30.0
STOPPABLE_POLL_SECONDS = 2.0
# Errors raised before the request reaches the server, after which even a claim may be retried.
UNREACHED = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class JobsClient:
    """Client of a job server. All methods are thread-safe."""

    def __init__(self, url: str, token: str | None = None, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.url = mask_url(url)
        self.heartbeat_seconds = HEARTBEAT_SECONDS
        self._timeout_seconds = timeout_seconds
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout_seconds)
        except (httpx.InvalidURL, ValueError) as error:
            raise UsageError(f"{self.url!r} can't be used; a server is at such as http://127.0.0.1:8070") from error

    def submit(
        self,
        type: str,
        payload: Any = None,
        *,
        max_attempts: int = MAX_ATTEMPTS,
        job_id: UUID | str | None = None,
        priority: int = 0,
        delay: float | None = None,
        dedupe_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> JobId:
        """Submit a job. The client generates the id, so that a retry does not submit the job twice."""
        asked = {
            "type": type,
            "payload": payload,
            "max_attempts": max_attempts,
            "job_id": str(as_job_id(job_id or uuid7.uuid7())),
            "priority": priority,
            "delay_seconds": delay,
            "dedupe_key": dedupe_key,
            "headers": dict(headers or {}),
        }
        return as_job_id(self._call("POST", "/v1/jobs", json=asked)["job_id"])

    def claim(
        self,
        worker_id: str,
        types: Collection[str] | None = None,
        *,
        wait_seconds: float = 0,
        stop: threading.Event | None = None,
    ) -> ClaimedJob | None:
        """Claim the next job of these types (None: any); return None if none arrives within `wait_seconds`."""
        until = time.monotonic() + wait_seconds
        longest = LONGEST_POLL_SECONDS if stop is None else STOPPABLE_POLL_SECONDS
        while True:
            wait = max(0.0, min(until - time.monotonic(), longest))
            asked = {"worker_id": worker_id, "types": None if types is None else list(types), "wait_seconds": wait}
            answer = self._call("POST", "/v1/jobs/claim", json=asked, once=True, wait=wait)
            if answer is not None:
                self.heartbeat_seconds = answer["heartbeat_seconds"]
                return _claimed(answer)
            if time.monotonic() >= until or (stop is not None and stop.is_set()):
                return None

    def heartbeat(self, held: Held, progress: Any = None) -> None:
        """Extend the lease of a job and report its progress. Raise `JobLost` if the worker should stop."""
        self._say(held, "heartbeat", progress=progress)

    def complete(self, held: Held, result: Any = None) -> None:
        """Complete a job and store its result."""
        self._say(held, "complete", result=result)

    def fail(self, held: Held, reason: str, *, delay: float | None = None) -> State:
        """Fail a job; return its new state: PENDING for a retry, or DEAD after the last attempt."""
        return State(self._say(held, "fail", reason=reason, delay_seconds=delay)["state"])

    def release(self, held: Held) -> None:
        """Return the job to its queue without counting an attempt."""
        self._say(held, "release")

    def cancel(self, job_id: UUID | str, reason: str = "cancelled") -> None:
        """Make an unsettled job DEAD."""
        self._call("POST", f"/v1/jobs/{as_job_id(job_id)}/cancel", JobSettled, json={"reason": reason})

    def get(self, job_id: UUID | str) -> Job:
        return self._get(as_job_id(job_id), 0.0)

    def wait(self, job_id: UUID | str, timeout_seconds: float | None = None) -> Job:
        """Wait until the job is PUBLISHED and return it.

        Raise `JobFailed` if the job is DEAD, and `JobUnfinished` after `timeout_seconds`.
        """
        wanted, started = as_job_id(job_id), time.monotonic()
        while True:
            spent = time.monotonic() - started
            left = LONGEST_POLL_SECONDS if timeout_seconds is None else max(0.0, timeout_seconds - spent)
            job = self._get(wanted, min(left, LONGEST_POLL_SECONDS))
            if job.state is State.DEAD:
                raise JobFailed(f"job {wanted} is dead: {job.error}")
            if job.settled:
                return job
            if timeout_seconds is not None and time.monotonic() - started >= timeout_seconds:
                raise JobUnfinished(f"job {wanted} is still {job.state} after {timeout_seconds:g} s")

    def stats(self) -> JobStats:
        answer = self._call("GET", "/v1/stats")
        types = [TypeStats(**one) for one in answer["types"]]
        return JobStats(types, purged=answer["completed_total"] - sum(one.completed for one in types))

    def work(
        self, handlers: Mapping[str, Handler], worker_id: str, *, stop: threading.Event, concurrency: int = 1
    ) -> None:
        """Claim and handle jobs until `stop` is set; see `penstock.jobs.worker_loop`."""
        run(self, handlers, worker_id, stop=stop, concurrency=concurrency)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _get(self, job_id: JobId, wait: float) -> Job:
        return _job(self._call("GET", f"/v1/jobs/{job_id}", query={"wait_seconds": wait}, wait=wait))

    def _say(self, held: Held, verb: str, **said: Any) -> Any:
        job_id, lease = (held.job_id, held.lease) if isinstance(held, ClaimedJob) else held
        return self._call("POST", f"/v1/jobs/{as_job_id(job_id)}/{verb}", JobLost, json={"lease": lease, **said})

    def _call(
        self,
        method: str,
        path: str,
        conflict: type[JobError] = JobError,
        *,
        json: Any = None,
        query: Mapping[str, Any] | None = None,
        once: bool = False,
        wait: float = 0.0,
    ) -> Any:
        """Send a request and return the decoded response; raise an error response as an exception.

        With `once`, do not retry a request that may have reached the server.
        """
        body = None if json is None else encode("the request", json)
        again = UNREACHED if once else (httpx.TransportError,)
        pause = FIRST_PAUSE_SECONDS
        for left in reversed(range(TRIES)):
            try:
                answer = self._http.request(
                    method,
                    path,
                    content=body,
                    params=query,
                    headers={"Content-Type": "application/json"},
                    timeout=self._timeout_seconds + wait,
                )
                return _read(answer, conflict)
            except httpx.TransportError as error:
                if not left or not isinstance(error, again):
                    raise StoreUnavailable(f"can't reach the job server at {self.url}: {error!r}") from error
            time.sleep(pause)
            pause *= 2
        raise AssertionError("unreachable")

    # Defined last: in the rest of the class body, the name hides the built-in type.
    def list(
        self, state: State | None = None, type: str | None = None, *, limit: int = 100, after: int | None = None
    ) -> JobPage:
        """Return a page of jobs, newest first."""
        asked = {"state": state, "type": type, "limit": limit, "after": after}
        query = {name: str(value) for name, value in asked.items() if value is not None}
        answer = self._call("GET", "/v1/jobs", query=query)
        return JobPage([_job(one) for one in answer["jobs"]], answer["after"])


def _read(answer: httpx.Response, conflict: type[JobError]) -> Any:
    if answer.status_code == 204:
        return None
    if answer.is_success:
        return answer.json()
    try:
        detail = str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        detail = f"{answer.reason_phrase}, with no reason that can be read"
    raise _error(answer.status_code, detail, conflict)


def _error(status: int, detail: str, conflict: type[JobError]) -> PenstockError:
    match status:
        case 404:
            return JobNotFound(detail)
        case 409:
            return conflict(detail)
        case 503:
            return StoreUnavailable(detail)
        case _ if status < 500:
            return UsageError(f"the job server refused: {detail}")
        case _:
            return PenstockError(f"the job server failed: {detail}")


def _claimed(answer: Mapping[str, Any]) -> ClaimedJob:
    read = {
        "job_id": as_job_id(answer["job_id"]),
        "json": answer["payload"],
        "submitted_at": datetime.fromisoformat(answer["submitted_at"]),
    }
    return ClaimedJob(**{field.name: answer[field.name] for field in fields(ClaimedJob) if field.name in answer} | read)


def _job(answer: Mapping[str, Any]) -> Job:
    times = ("submitted_at", "available_at", "claimed_at", "expires_at", "settled_at")
    read = {name: answer[name] and datetime.fromisoformat(answer[name]) for name in times}
    return Job(**{**answer, **read, "job_id": as_job_id(answer["job_id"]), "state": State(answer["state"])})
