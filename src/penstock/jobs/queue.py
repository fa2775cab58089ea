"""The verbs of a job queue, over any store: submit, claim, heartbeat, complete, fail, and what is beside them.

Each type of job has a queue of its own in the store, `jobs/email:send`, and each claimed job a lease of its own.
Everything else is the store's: there is no second life cycle here.
"""

import random
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from penstock.config import store_url
from penstock.errors import InvalidEvent, JobFailed, JobLost, JobNotFound, JobSettled, JobUnfinished, UsageError
from penstock.event import NAME_LIMIT, Event
from penstock.jobs.bell import Bell, pauses
from penstock.jobs.job import (
    NOTHING_SAID,
    ClaimedJob,
    Holding,
    Job,
    JobId,
    JobPage,
    JobStats,
    TypeStats,
    as_job_id,
    claimed_job,
    holding,
    job,
)
from penstock.jobs.payloads import Unfit, encode, fitted
from penstock.jobs.work import Handler, run
from penstock.lifecycle import Dead, Outcome, Published, Released, Retry, State
from penstock.retry import RetryPolicy
from penstock.store import Store, open_store
from penstock.store.base import Claim, Record, Selection, Settlement

if TYPE_CHECKING:
    from pydantic import BaseModel

Held = ClaimedJob | tuple[UUID | str, str]

DEFAULT_NAME = "jobs"
MAX_ATTEMPTS = 3
HEARTBEAT_SECONDS = 5.0
TIMEOUT_SECONDS = 30.0
EXPIRE_EVERY_SECONDS = 1.0
EXPIRE_BATCH = 1_000
LOOKS = 3


class Jobs:
    """A job queue in a store. Any thread may call any verb; processes share a queue by sharing the store and its name.

    A worker sends a heartbeat every `heartbeat_seconds`; a job without one for `timeout_seconds` is taken back.
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
        if not name or "/" in name:
            raise UsageError(f"a job queue's name has no '/', which goes before the type: {name!r}")
        if not 0 < heartbeat_seconds < timeout_seconds:
            raise UsageError("heartbeat_seconds must be greater than 0 and less than timeout_seconds")
        self._owned = store is None or isinstance(store, str)
        self.store: Store = open_store(store_url(store)) if store is None or isinstance(store, str) else store
        self.name = name
        self.heartbeat_seconds = heartbeat_seconds
        self.timeout_seconds = timeout_seconds
        self.models = dict(models or {})
        self.retry = retry or RetryPolicy()
        self.bell = Bell()
        self._prefix = f"{name}/"
        self._expired_at = -EXPIRE_EVERY_SECONDS
        self._closed = threading.Event()

    # -- submit -----------------------------------------------------------------------------------------------

    def submit(
        self,
        type: str,  # noqa: A002
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
        """Write a job; with `connection`, in the caller's transaction, so that both commit or neither does.

        The payload is JSON, and has to fit the type's model. With a `job_id` a repeat adds nothing.
        """
        event = Event(
            event_type=type,
            queue=self._queue(type),
            payload=self._fitting(type, payload),
            headers={"content-type": "application/json", **(headers or {})},
            max_attempts=max_attempts,
            priority=priority,
            delay_seconds=delay,
            dedupe_key=dedupe_key,
            event_id=None if job_id is None else as_job_id(job_id),
        )
        submitted = self._append(event, connection)
        self.bell.ring()
        return submitted

    def _fitting(self, kind: str, payload: Any) -> bytes:
        body = encode("the payload", payload)
        try:
            fitted(body, self.models.get(kind))
        except Unfit as error:
            raise InvalidEvent(str(error)) from error
        return body

    def _append(self, event: Event, connection: object | None) -> JobId:
        try:
            return self.store.append([event], connection=connection)[0]
        except InvalidEvent:
            if event.event_id is None or connection is not None:
                raise
            if not self._same(event, self._find(event.event_id)):
                raise InvalidEvent(f"{event.event_id} is the id of something else; give a new one") from None
            return event.event_id

    def _same(self, event: Event, record: Record | None) -> bool:
        """Whether that record came of an earlier submit of this event."""
        return record is not None and (record.queue, record.payload) == (event.queue, event.payload)

    # -- claim ------------------------------------------------------------------------------------------------

    def claim(
        self,
        worker_id: str,
        types: Collection[str] | None = None,
        *,
        wait_seconds: float = 0,
        stop: threading.Event | None = None,
    ) -> ClaimedJob | None:
        """The next job of these types (or of any), for `worker_id` alone; None if there is none.

        First in, first out, but higher priorities first. With `wait_seconds` it waits that long for one to come;
        `stop` and `close` end the waiting.
        """
        if not worker_id or len(worker_id) > NAME_LIMIT or "\x00" in worker_id:
            raise UsageError(f"a worker's id has 1 to {NAME_LIMIT} characters, and no NUL among them")
        queues = None if types is None else [self._queue(one) for one in types]
        rung, until = threading.Event(), time.monotonic() + wait_seconds
        with self.bell.heard_by(rung.set):
            for pause in pauses():
                rung.clear()
                found = self._next(worker_id, queues)
                left = until - time.monotonic()
                if found or left <= 0 or self._closed.is_set() or (stop is not None and stop.is_set()):
                    return found
                rung.wait(min(pause, left))
        raise AssertionError("unreachable")

    def _next(self, worker_id: str, queues: Sequence[str] | None) -> ClaimedJob | None:
        self._expire_now_and_then()
        looks = 0
        while looks < LOOKS:
            claim = next(filter(None, (self._take(queue, worker_id) for queue in self._turns(queues))), None)
            found = self._accepted(claim) if claim else None
            if found is not None:
                return found
            if claim is None:
                looks = looks + 1 if self._turns(queues) else LOOKS  # others were faster, or nothing is there
        return None

    def _turns(self, queues: Sequence[str] | None) -> Iterator[str] | Sequence[str]:
        """The queues that have something ready, in the order of whose turn it is."""
        if queues is not None and len(queues) == 1:
            return queues if self.store.ready(queues[0]) else ()
        heads = self.store.heads(self._prefix, queues=queues)
        return [head.queue for head in heads if head.queue.startswith(self._prefix)]

    def _take(self, queue: str, worker_id: str) -> Claim:
        return self.store.claim(queue, limit=1, claimant=worker_id, lease_seconds=self.timeout_seconds)

    def _accepted(self, claim: Claim) -> ClaimedJob | None:
        """The job, if its payload can be handled; if not it is dead, and nobody gets it."""
        (delivery,) = claim.events
        try:
            payload = fitted(delivery.payload, self.models.get(delivery.event_type))
        except Unfit as error:
            self.store.settle(claim.lease, {delivery.seq: Dead(str(error))})
            return None
        return claimed_job(delivery, claim.lease, payload)

    # -- what a worker says of its job ------------------------------------------------------------------------

    def heartbeat(self, held: Held, progress: Any = None) -> None:
        """The worker is still at it, and has come so far. `JobLost` says that it should stop."""
        said = None if progress is None else encode("the progress", progress)
        holds = self._holding(held)
        if not self.store.extend([holds.lease]):
            raise self._lost(holds)
        if said is not None and holds.seq not in self.store.note(holds.lease, {holds.seq: said}):
            raise self._lost(holds)

    def complete(self, held: Held, result: Any = None) -> None:
        """The job is done. A repeat by the one who completed it says the same again."""
        said = None if result is None else encode("the result", result)
        holds = self._holding(held)
        settlement = self._settle(holds, Published(said))
        if settlement.already_settled and self._record(holds.job_id).state is not State.PUBLISHED:
            raise self._lost(holds)

    def fail(self, held: Held, reason: str, *, delay: float | None = None) -> State:
        """The job failed: PENDING again after `delay` seconds, or as the retry policy says; DEAD at its last attempt."""
        holds = self._holding(held)
        record = self._record(holds.job_id)
        outcome = self._after_failure(record, reason, delay)
        settlement = self._settle(holds, outcome)
        if not settlement.already_settled:
            return State.DEAD if settlement.dead else State.PENDING
        if record.state is State.DEAD and record.last_error != outcome.error:
            raise self._lost(holds)
        return record.state

    def release(self, held: Held) -> None:
        """The worker gives the job back untouched; the attempt doesn't count."""
        holds = self._holding(held)
        settlement = self._settle(holds, Released())
        if settlement.already_settled and self._record(holds.job_id).state in (State.PUBLISHED, State.DEAD):
            raise self._lost(holds)
        self.bell.ring()

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

    def _settle(self, holds: Holding, outcome: Outcome) -> Settlement:
        settlement = self.store.settle(holds.lease, {holds.seq: outcome})
        if settlement.lost:
            raise self._lost(holds)
        return settlement

    def _holding(self, held: Held) -> Holding:
        job_id, lease = (held.job_id, held.lease) if isinstance(held, ClaimedJob) else held
        return holding(job_id, lease, self._prefix, self.timeout_seconds)

    def _lost(self, holds: Holding) -> Exception:
        """What to tell a worker who no longer holds its job: where the job is now."""
        record = self._find(holds.job_id)
        if record is None:
            return JobNotFound(holds.job_id, self.name)
        match record.state:
            case State.PENDING:
                now = f"it was given back, or had no heartbeat for {self.timeout_seconds:g} s, and waits to be claimed"
            case State.CLAIMED:
                now = f"it was taken back, and {record.claimed_by} has claimed it since"
            case State.PUBLISHED:
                now = "it is completed"
            case State.DEAD:
                now = f"it is dead: {record.last_error}"
        return JobLost(f"job {holds.job_id} is no longer yours: {now}")

    # -- beside the flow --------------------------------------------------------------------------------------

    def cancel(self, job_id: UUID | str, reason: str = "cancelled", *, by: str = "operator") -> None:
        """Make a job that is not settled DEAD. A worker that has it is told so at its next heartbeat."""
        wanted = self._record(as_job_id(job_id)).event_id
        if self.store.cancel(Selection(ids=frozenset({wanted})), reason=reason, by=by):
            return
        record = self._record(wanted)
        if record.state is not State.DEAD or record.last_error != reason:
            raise JobSettled(f"job {wanted} can't be cancelled: it is {record.state} already")

    def expire(self) -> int:
        """Take back the jobs without heartbeats; DEAD at their last attempt. Claims see to it by themselves."""
        return self.store.reap(limit=EXPIRE_BATCH)

    def _expire_now_and_then(self) -> None:
        now = time.monotonic()
        if now - self._expired_at >= EXPIRE_EVERY_SECONDS:
            self._expired_at = now
            self.expire()

    # -- looking ----------------------------------------------------------------------------------------------

    def get(self, job_id: UUID | str) -> Job:
        return self._seen([self._record(as_job_id(job_id))])[0]

    def list(
        self,
        state: State | None = None,
        type: str | None = None,  # noqa: A002
        *,
        limit: int = 100,
        after: int | None = None,
    ) -> JobPage:
        """Jobs, newest first, a page at a time."""
        if limit < 1:
            raise UsageError(f"the limit must be 1 or more, not {limit}")
        queues = frozenset(self._queues()) if type is None else frozenset({self._queue(type)})
        if not queues:
            return JobPage((), None)
        states = None if state is None else frozenset({state})
        page = self.store.find(Selection(queues=queues, states=states), after=after, limit=limit)
        return JobPage(self._seen(page.records), page.after)

    def stats(self) -> JobStats:
        counted = {one.queue: one for one in self.store.stats().queues}
        return JobStats(
            [
                TypeStats(queue.removeprefix(self._prefix), one.pending, one.claimed, one.published, one.dead)
                for queue, one in counted.items()
                if queue.startswith(self._prefix)
            ]
        )

    def wait(self, job_id: UUID | str, timeout_seconds: float | None = None) -> Job:
        """The job, once it is PUBLISHED. `JobFailed` if it is DEAD, `JobUnfinished` if time is up before."""
        wanted, started = as_job_id(job_id), time.monotonic()
        for pause in pauses():
            found = self.get(wanted)
            if found.state is State.DEAD:
                raise JobFailed(f"job {wanted} is dead: {found.error}")
            if found.settled:
                return found
            left = pause if timeout_seconds is None else started + timeout_seconds - time.monotonic()
            if left <= 0 or self._closed.wait(min(pause, left)):
                raise JobUnfinished(f"job {wanted} is still {found.state} after {time.monotonic() - started:.1f} s")
        raise AssertionError("unreachable")

    def _queues(self) -> Iterator[str]:
        return (one.queue for one in self.store.stats().queues if one.queue.startswith(self._prefix))

    def _queue(self, kind: str) -> str:
        longest = NAME_LIMIT - len(self._prefix)
        if not isinstance(kind, str) or not 0 < len(kind) <= longest:
            raise InvalidEvent(f"a job's type has 1 to {longest} characters")
        return self._prefix + kind

    def _find(self, job_id: JobId) -> Record | None:
        records = self.store.find(Selection(ids=frozenset({job_id})), limit=1).records
        return next((one for one in records if one.queue.startswith(self._prefix)), None)

    def _record(self, job_id: JobId) -> Record:
        record = self._find(job_id)
        if record is None:
            raise JobNotFound(job_id, self.name)
        return record

    def _seen(self, records: Sequence[Record]) -> "list[Job]":
        notes = self.store.notes([one.event_id for one in records])
        return [job(one, notes.get(one.event_id, NOTHING_SAID)) for one in records]

    # -- working ----------------------------------------------------------------------------------------------

    def work(
        self,
        handlers: Mapping[str, Handler],
        worker_id: str,
        *,
        stop: threading.Event,
        concurrency: int = 1,
    ) -> None:
        """Claim and handle jobs until `stop` is set: see `penstock.jobs.work`."""
        run(self, handlers, worker_id, stop=stop, concurrency=concurrency)

    def close(self) -> None:
        """End all waiting, and close the store if it was opened here."""
        self._closed.set()
        self.bell.ring()
        if self._owned:
            self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
