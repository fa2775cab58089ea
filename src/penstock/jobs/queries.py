"""Read-only queries of a job queue: get, list, count and wait."""

import threading
import time
from collections.abc import Iterator, Sequence
from uuid import UUID

from penstock.jobs.job import NOTHING_SAID, Job, JobId, JobPage, JobStats, TypeStats, as_job_id, job
from penstock.jobs.wakeup import pauses
from penstock.model.errors import InvalidEvent, JobFailed, JobNotFound, JobUnfinished, UsageError
from penstock.model.event import NAME_LIMIT
from penstock.model.lifecycle import State
from penstock.model.records import Record
from penstock.model.selection import Selection
from penstock.store.api import Store

LONGEST_NAME = 50


class JobQueries:
    """Read-only operations of a job queue."""

    def __init__(self, store: Store, name: str) -> None:
        if not 0 < len(name) <= LONGEST_NAME or "/" in name:
            raise UsageError(f"a job queue's name has 1 to {LONGEST_NAME} characters, and no '/' among them: {name!r}")
        self.store = store
        self.name = name
        self.prefix = f"{name}/"
        self._closed = threading.Event()

    def get(self, job_id: UUID | str) -> Job:
        return self._seen([self.record(as_job_id(job_id))])[0]

    def stats(self) -> JobStats:
        found = self.store.stats()
        return JobStats(
            [
                TypeStats(one.queue.removeprefix(self.prefix), one.pending, one.claimed, one.published, one.dead)
                for one in found.queues
                if one.queue.startswith(self.prefix)
            ],
            purged=sum(count for queue, count in found.purged.items() if queue.startswith(self.prefix)),
        )

    def wait(self, job_id: UUID | str, timeout_seconds: float | None = None) -> Job:
        """Wait until the job is PUBLISHED and return it.

        Raise `JobFailed` if the job is DEAD, and `JobUnfinished` after `timeout_seconds` or once the queue is closed.
        """
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
        return (one.queue for one in self.store.stats().queues if one.queue.startswith(self.prefix))

    def queue(self, kind: str) -> str:
        longest = NAME_LIMIT - len(self.prefix)
        if not isinstance(kind, str) or not 0 < len(kind) <= longest:
            raise InvalidEvent(f"a job's type has 1 to {longest} characters")
        return self.prefix + kind

    def find(self, job_id: JobId) -> Record | None:
        records = self.store.find(Selection(ids=frozenset({job_id})), limit=1).records
        return next((one for one in records if one.queue.startswith(self.prefix)), None)

    def record(self, job_id: JobId) -> Record:
        record = self.find(job_id)
        if record is None:
            raise JobNotFound.of(job_id, self.name)
        return record

    def _seen(self, records: Sequence[Record]) -> list[Job]:
        notes = self.store.notes([one.event_id for one in records])
        return [job(one, notes.get(one.event_id, NOTHING_SAID)) for one in records]

    def list(
        self,
        state: State | None = None,
        type: str | None = None,
        *,
        limit: int = 100,
        after: int | None = None,
    ) -> JobPage:
        """Return a page of jobs, newest first."""
        if limit < 1:
            raise UsageError(f"the limit must be 1 or more, not {limit}")
        queues = frozenset(self._queues()) if type is None else frozenset({self.queue(type)})
        if not queues:
            return JobPage((), None)
        states = None if state is None else frozenset({state})
        page = self.store.find(Selection(queues=queues, states=states), after=after, limit=limit)
        return JobPage(self._seen(page.records), page.after)
