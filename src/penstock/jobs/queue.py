"""Job queues over any store: submit, claim, heartbeat, complete, fail, cancel and expire.

Each job type has a queue in the store, such as `jobs/email:send`, and each claimed job a separate lease. The job
lifecycle is the event lifecycle of the store.
"""

import random
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from penstock.config.urls import store_url
from penstock.jobs.job import ClaimedJob, HeldJob, JobId, as_job_id, claimed_job, held_job
from penstock.jobs.payloads import encode, fitted
from penstock.jobs.queries import JobQueries
from penstock.jobs.wakeup import Wakeup, pauses
from penstock.jobs.worker_loop import Handler, run
from penstock.model.errors import InvalidEvent, InvalidPayload, JobError, JobLost, JobNotFound, JobSettled, UsageError
from penstock.model.event import NAME_LIMIT, Event
from penstock.model.lease import Claim, Settlement
from penstock.model.lifecycle import State
from penstock.model.outcome import Dead, Outcome, Published, Released, Retry
from penstock.model.records import Record
from penstock.model.retry import RetryPolicy
from penstock.model.selection import Selection
from penstock.model.text import storable
from penstock.store.api import Store
from penstock.store.registry import open_store

if TYPE_CHECKING:
    from pydantic import BaseModel

Held = ClaimedJob | tuple[UUID | str, str]

DEFAULT_NAME = "jobs"
MAX_ATTEMPTS = 3
# Half jitter: with full jitter, all attempts of a job could fail in quick succession.
RETRY = RetryPolicy(max_attempts=MAX_ATTEMPTS, jitter=0.5)
HEARTBEAT_SECONDS = 5.0
TIMEOUT_SECONDS = 30.0
EXPIRE_EVERY_SECONDS = 1.0
EXPIRE_BATCH = 1_000
LOOKS = 3


class Jobs(JobQueries):
    """A job queue in a store. All methods are thread-safe; processes share a queue by store and name.

    A worker sends a heartbeat every `heartbeat_seconds`. A job without a heartbeat for `timeout_seconds` expires.
    """

    def __init__(
        self,
        store: Store | str | None = None,
        name: str = DEFAULT_NAME,
        *,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        timeout_seconds: float = TIMEOUT_SECONDS,
        models: "Mapping[str, type[BaseModel]] | None" = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        if not 0 < heartbeat_seconds < timeout_seconds:
            raise UsageError(
                f"heartbeat_seconds must be greater than 0 and less than timeout_seconds, got {heartbeat_seconds}"
            )
        self._owned = store is None or isinstance(store, str)
        opened = open_store(store_url(store)) if store is None or isinstance(store, str) else store
        super().__init__(opened, name)
        self.heartbeat_seconds = heartbeat_seconds
        self.timeout_seconds = timeout_seconds
        self.models = dict(models or {})
        self.retry = retry or RETRY
        self.wakeup = Wakeup()
        self._expired_at = -EXPIRE_EVERY_SECONDS

    # -- submit -----------------------------------------------------------------------------------------------

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
        connection: object | None = None,
    ) -> JobId:
        """Submit a job, with `connection` in the caller's transaction.

        The payload is JSON and must fit the type's model. Submitting the same job again with its `job_id` has no
        effect.
        """
        event = Event(
            event_type=type,
            queue=self.queue(type),
            payload=self._fitting(type, payload),
            headers={"content-type": "application/json", **(headers or {})},
            max_attempts=max_attempts,
            priority=priority,
            delay_seconds=delay,
            dedupe_key=dedupe_key,
            event_id=None if job_id is None else as_job_id(job_id),
        )
        submitted = self._append(event, connection)
        self.wakeup.notify()
        return submitted

    def _fitting(self, kind: str, payload: Any) -> bytes:
        body = encode("payload", payload)
        try:
            fitted(body, self.models.get(kind))
        except InvalidPayload as error:
            raise InvalidEvent(str(error)) from error
        return body

    def _append(self, event: Event, connection: object | None) -> JobId:
        try:
            return self.store.append([event], connection=connection)[0]
        except InvalidEvent:
            if event.event_id is None or connection is not None:
                raise
            earlier = self.find(event.event_id)
            if earlier is None or (earlier.queue, earlier.payload) != (event.queue, event.payload):
                raise JobError(f"id {event.event_id} already belongs to another event; choose another job_id") from None
            return event.event_id

    # -- claim ------------------------------------------------------------------------------------------------

    def claim(
        self,
        worker_id: str,
        types: Collection[str] | None = None,
        *,
        wait_seconds: float = 0,
        stop: threading.Event | None = None,
    ) -> ClaimedJob | None:
        """Claim the next job of these types (None: any) for `worker_id`; return None if there is none.

        Jobs are claimed by priority, then first in, first out. With `wait_seconds`, wait up to that time for a job;
        `stop` and `close` end the wait.
        """
        if not 0 < len(worker_id) <= NAME_LIMIT or storable(worker_id) != worker_id:
            raise UsageError(f"invalid worker id {worker_id!r}; expected 1 to {NAME_LIMIT} Unicode characters, no NUL")
        queues = None if types is None else [self.queue(one) for one in types]
        woken, until = threading.Event(), time.monotonic() + wait_seconds
        with self.wakeup.listening(woken.set):
            for pause in pauses():
                woken.clear()
                found = self._next(worker_id, queues)
                left = until - time.monotonic()
                if found or left <= 0 or self._closed.is_set() or (stop is not None and stop.is_set()):
                    return found
                woken.wait(min(pause, left))
        raise AssertionError("unreachable")

    def _next(self, worker_id: str, queues: Sequence[str] | None) -> ClaimedJob | None:
        self._expire_now_and_then()
        looks = LOOKS
        while looks and (ready := self._queues_with_jobs(queues)):
            claim = next(filter(None, (self._take(queue, worker_id) for queue in ready)), None)
            if claim is None:  # other workers claimed first, or a limit is reached
                looks -= 1
            elif found := self._accepted(claim):
                return found
        return None

    def _queues_with_jobs(self, queues: Sequence[str] | None) -> Sequence[str]:
        """Return the queues with claimable jobs, in the order in which to serve the queues."""
        if queues is not None and len(queues) == 1:
            return queues if self.store.ready(queues[0]) else ()
        heads = self.store.heads(self.prefix, queues=queues)
        return [head.queue for head in heads if head.queue.startswith(self.prefix)]

    def _take(self, queue: str, worker_id: str) -> Claim:
        attempts = self.retry.max_attempts
        return self.store.claim(
            queue, limit=1, claimant=worker_id, lease_seconds=self.timeout_seconds, max_attempts=attempts
        )

    def _accepted(self, claim: Claim) -> ClaimedJob | None:
        """Return the job if its payload is valid. Otherwise make the job DEAD and return None."""
        (delivery,) = claim.events
        try:
            payload = fitted(delivery.payload, self.models.get(delivery.event_type))
        except InvalidPayload as error:
            self.store.settle(claim.lease, {delivery.seq: Dead(str(error))})
            return None
        return claimed_job(delivery, claim.lease, payload)

    # -- operations of the worker that holds a job ------------------------------------------------------------

    def heartbeat(self, held: Held, progress: Any = None) -> None:
        """Extend the lease of a job and store its progress. Raise `JobLost` if the worker should stop."""
        said = None if progress is None else encode("progress", progress)
        holds = self._held_job(held)
        if not self.store.extend([holds.lease]):
            raise self._lost(holds)
        if said is not None and holds.seq not in self.store.note(holds.lease, {holds.seq: said}):
            raise self._lost(holds)

    def complete(self, held: Held, result: Any = None) -> None:
        """Complete a job and store its result. Safe to repeat."""
        said = None if result is None else encode("result", result)
        holds = self._held_job(held)
        settlement = self._settle(holds, Published(said))
        if settlement.already_settled and self.record(holds.job_id).state is not State.PUBLISHED:
            raise self._lost(holds)

    def fail(self, held: Held, reason: str, *, delay: float | None = None) -> State:
        """Fail a job; return its new state: PENDING for a retry, or DEAD after the last attempt.

        The retry is due after `delay` seconds; without `delay`, the retry policy decides.
        """
        holds = self._held_job(held)
        record = self.record(holds.job_id)
        outcome = self._after_failure(record, reason, delay)
        settlement = self._settle(holds, outcome)
        if not settlement.already_settled:
            return State.DEAD if settlement.dead else State.PENDING
        if record.state is State.DEAD and not (record.last_error or "").startswith(storable(reason)):
            raise self._lost(holds)  # dead for a different reason
        return record.state

    def release(self, held: Held) -> None:
        """Return the job to its queue without counting an attempt."""
        holds = self._held_job(held)
        settlement = self._settle(holds, Released())
        if settlement.already_settled and self.record(holds.job_id).state in (State.PUBLISHED, State.DEAD):
            raise self._lost(holds)
        self.wakeup.notify()

    def _after_failure(self, record: Record, reason: str, delay: float | None) -> Retry | Dead:
        decided = self.retry.decide(
            reason,
            attempts=record.attempts,
            age_seconds=((record.claimed_at or record.created_at) - record.created_at).total_seconds(),
            roll=random.random(),
            event_max_attempts=record.max_attempts,
        )
        if delay is not None and isinstance(decided, Retry):
            return replace(decided, delay_seconds=delay)
        return decided

    def _settle(self, holds: HeldJob, outcome: Outcome) -> Settlement:
        settlement = self.store.settle(holds.lease, {holds.seq: outcome})
        if settlement.lost:
            raise self._lost(holds)
        return settlement

    def _held_job(self, held: Held) -> HeldJob:
        job_id, lease = (held.job_id, held.lease) if isinstance(held, ClaimedJob) else held
        try:
            return held_job(job_id, lease, self.prefix, self.timeout_seconds)
        except JobLost:
            self.record(as_job_id(job_id))  # raise the more precise JobNotFound if the job does not exist
            raise

    def _lost(self, holds: HeldJob) -> Exception:
        """Return the error for a worker that lost its job, with the current state of the job."""
        record = self.find(holds.job_id)
        if record is None:
            return JobNotFound.of(holds.job_id, self.name)
        match record.state:
            case State.PENDING:
                now = f"it was released, or had no heartbeat for {self.timeout_seconds:g} s, and is pending"
            case State.CLAIMED if self._still_named(holds):
                now = "its lease is older than the store's max_lease_age_seconds"
            case State.CLAIMED:
                now = f"its lease has ended, and {record.claimed_by} has claimed it since"
            case State.PUBLISHED:
                now = "it is completed"
            case State.DEAD:
                now = f"it is dead: {record.last_error}"
        return JobLost(f"job {holds.job_id} is no longer claimed by this worker: {now}")

    def _still_named(self, holds: HeldJob) -> bool:
        return any(held.lease.token == holds.lease.token for held in self.store.held([holds.lease.lease_id]))

    # -- administration ---------------------------------------------------------------------------------------

    def cancel(self, job_id: UUID | str, reason: str = "cancelled", *, by: str = "operator") -> None:
        """Make an unsettled job DEAD. The next heartbeat of its worker raises `JobLost`."""
        wanted = self.record(as_job_id(job_id)).event_id
        if self.store.cancel(Selection(ids=frozenset({wanted})), reason=reason, by=by):
            return
        record = self.record(wanted)
        if record.state is not State.DEAD or record.last_error != storable(reason):
            raise JobSettled(f"cannot cancel job {wanted}: it is already {record.state}")

    def cancel_pending(
        self, type: str, reason: str = "cancelled", *, by: str = "operator", dry_run: bool = False
    ) -> int:
        """Make all pending jobs of a type DEAD and return their number. Claimed jobs are not affected."""
        return self.store.cancel(Selection(queue=self.queue(type)), reason=reason, by=by, dry_run=dry_run)

    def expire(self) -> int:
        """Reap expired leases; return the number of their jobs, which become PENDING, or DEAD after the last attempt.

        `claim` calls this method itself, at most once per second.
        """
        return self.store.reap(limit=EXPIRE_BATCH)

    def _expire_now_and_then(self) -> None:
        now = time.monotonic()
        if now - self._expired_at >= EXPIRE_EVERY_SECONDS:
            self._expired_at = now
            self.expire()

    # -- working ----------------------------------------------------------------------------------------------

    def work(
        self, handlers: Mapping[str, Handler], worker_id: str, *, stop: threading.Event, concurrency: int = 1
    ) -> None:
        """Claim and handle jobs until `stop` is set; see `penstock.jobs.worker_loop`."""
        run(self, handlers, worker_id, stop=stop, concurrency=concurrency)

    def close(self) -> None:
        """End all waits for jobs in this process, and close the store if this queue opened it."""
        self._closed.set()
        self.wakeup.notify()
        if self._owned:
            self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
