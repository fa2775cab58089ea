"""Operations of a job queue: submit, claim in order, heartbeat, and settle by the current claimant only."""

from uuid import uuid4

import pytest

from penstock.jobs import ClaimedJob, Jobs
from penstock.model.errors import InvalidEvent, JobError, JobLost, JobNotFound, JobSettled, UsageError
from penstock.model.event import Event
from penstock.model.lifecycle import State
from penstock.model.retry import RetryPolicy
from penstock.model.selection import Selection
from penstock.store.sql.store import SqlStore
from penstock.testing.stores import ManualClock

TIMEOUT = 30.0


def claimed(jobs: Jobs, worker_id: str = "worker", *types: str) -> ClaimedJob:
    job = jobs.claim(worker_id, types or None)
    assert job is not None
    return job


class TestSubmitting:
    def test_submitted_job_is_pending(self, jobs: Jobs, clock: ManualClock) -> None:
        job_id = jobs.submit("email:send", {"to": "ada"}, priority=3, headers={"tenant": "eu"})
        job = jobs.get(job_id)
        assert (job.state, job.attempts, job.max_attempts) == (State.PENDING, 0, 3)
        assert (job.type, job.payload, job.priority, job.submitted_at) == ("email:send", {"to": "ada"}, 3, clock.now)
        assert job.headers == {"content-type": "application/json", "tenant": "eu"}

    def test_repeated_submit_with_same_id_adds_no_job(self, jobs: Jobs) -> None:
        job_id = uuid4()
        assert jobs.submit("email:send", [1], job_id=job_id) == jobs.submit("email:send", [1], job_id=str(job_id))
        assert len(jobs.list().jobs) == 1

    def test_id_of_another_job_is_refused(self, jobs: Jobs) -> None:
        job_id = jobs.submit("email:send", [1])
        with pytest.raises(JobError, match="already belongs to another event"):
            jobs.submit("email:send", [2], job_id=job_id)

    def test_dedupe_key_returns_first_id(self, jobs: Jobs) -> None:
        first = jobs.submit("email:send", [1], dedupe_key="welcome/ada")
        assert jobs.submit("email:send", [2], dedupe_key="welcome/ada") == first
        assert jobs.submit("email:check", [2], dedupe_key="welcome/ada") != first

    def test_submit_joins_transaction_of_caller(self, jobs: Jobs, still: SqlStore) -> None:
        with still.transaction() as connection:
            jobs.submit("email:send", connection=connection)
            connection.rollback()
        with still.transaction() as connection:
            kept = jobs.submit("email:send", connection=connection)
        assert [job.job_id for job in jobs.list().jobs] == [kept]

    @pytest.mark.parametrize("payload", [float("nan"), "\ud800", {"a": {1, 2}}, {"\udfff": 1}])
    def test_payload_that_is_not_json_is_refused(self, jobs: Jobs, payload: object) -> None:
        with pytest.raises(InvalidEvent, match="cannot encode payload as JSON"):
            jobs.submit("email:send", payload)

    def test_payload_nested_too_deep_is_refused(self, jobs: Jobs) -> None:
        deep: list[object] = []
        for _ in range(5_000):
            deep = [deep]
        with pytest.raises(InvalidEvent, match="levels deep"):
            jobs.submit("email:send", deep)

    @pytest.mark.parametrize("kind", ["", "x" * 251, "a\x00b", "\ud800"])
    def test_invalid_job_type_is_refused(self, jobs: Jobs, kind: str) -> None:
        with pytest.raises(InvalidEvent):
            jobs.submit(kind)

    def test_invalid_settings_are_refused(self, still: SqlStore) -> None:
        with pytest.raises(UsageError, match="heartbeat"):
            Jobs(still, heartbeat_seconds=30, timeout_seconds=30)
        with pytest.raises(UsageError, match="'/'"):
            Jobs(still, "jobs/email")


class TestClaiming:
    def test_claim_without_jobs_returns_none(self, jobs: Jobs) -> None:
        assert jobs.claim("worker") is None
        assert jobs.claim("worker", ["email:send"]) is None
        assert jobs.claim("worker", ["email:send", "email:check"]) is None

    def test_jobs_are_claimed_first_in_first_out_for_every_filter(self, jobs: Jobs, clock: ManualClock) -> None:
        submitted = []
        for number in range(9):
            clock.advance(1)
            submitted.append((jobs.submit("abc"[number % 3], number), number))
        taken = [claimed(jobs, "worker", *types).payload for types in (("b",), (), ("b", "c"), ("c",), (), ())]
        assert taken == [1, 0, 2, 5, 3, 4]
        assert [claimed(jobs).payload for _ in range(3)] == [6, 7, 8]

    def test_higher_priority_is_claimed_first_across_types(self, jobs: Jobs) -> None:
        for kind, priority in (("a", 0), ("b", 5), ("a", 9), ("c", -1)):
            jobs.submit(kind, priority, priority=priority)
        assert [claimed(jobs).payload for _ in range(4)] == [9, 5, 0, -1]

    def test_delayed_job_is_not_claimed_early(self, jobs: Jobs, clock: ManualClock) -> None:
        jobs.submit("email:send", delay=10)
        assert jobs.claim("worker") is None
        clock.advance(10)
        assert jobs.claim("worker") is not None

    def test_job_queues_of_other_names_are_left_alone(self, jobs: Jobs, still: SqlStore) -> None:
        Jobs(still, "jobs2").submit("a")
        Jobs(still, "job_").submit("a")
        still.append([Event(event_type="a", queue="outbox"), Event(event_type="a", queue="jobs")])
        assert jobs.claim("worker") is None
        assert jobs.list().jobs == ()
        assert jobs.stats().types == []
        assert claimed(Jobs(still, "job_")).type == "a"

    def test_paused_type_does_not_block_other_types(self, jobs: Jobs, still: SqlStore) -> None:
        jobs.submit("a")
        jobs.submit("b")
        still.pause("jobs/a")
        assert claimed(jobs).type == "b"
        assert jobs.claim("worker") is None
        assert jobs.claim("worker", ["a"]) is None

    def test_type_at_limit_does_not_block_other_types(self, jobs: Jobs, still: SqlStore) -> None:
        for kind in ("a", "a", "b"):
            jobs.submit(kind)
        still.limit("jobs/a", 1)
        assert [claimed(jobs).type, claimed(jobs).type] == ["a", "b"]
        assert jobs.claim("worker") is None

    def test_invalid_worker_id_is_refused(self, jobs: Jobs) -> None:
        for worker_id in ("", "a\x00", "x" * 256, "\ud800"):
            with pytest.raises(UsageError, match="worker"):
                jobs.claim(worker_id)


class TestSpecificationTimeline:
    """A job is submitted at 0 s, claimed at 0.1 s, and has a heartbeat at 5 s; the tests are the two continuations."""

    @pytest.fixture
    def job(self, jobs: Jobs, clock: ManualClock) -> ClaimedJob:
        jobs.submit("email:send", {"to": "user@example.com"})
        clock.advance(0.1)
        job = claimed(jobs, "worker-1", "email:send")
        assert job.attempts == 1
        clock.advance(4.9)
        jobs.heartbeat(job)
        return job

    def test_worker_completes_job(self, jobs: Jobs, clock: ManualClock, job: ClaimedJob) -> None:
        clock.advance(5)
        jobs.heartbeat(job)
        clock.advance(2)
        jobs.complete(job)
        assert jobs.get(job.job_id).state is State.PUBLISHED
        assert jobs.stats().completed_total == 1
        jobs.store.purge(Selection(everything=True))
        assert jobs.stats().types == []
        assert jobs.stats().completed_total == 1

    def test_crash_at_8_s_returns_job_to_queue(self, jobs: Jobs, clock: ManualClock, job: ClaimedJob) -> None:
        clock.advance(3)  # 8 s: no more heartbeats
        clock.advance(27)  # 35 s: the last heartbeat was exactly one timeout ago
        assert jobs.expire() == 0
        assert jobs.claim("worker-2") is None
        assert jobs.get(job.job_id).worker == "worker-1"
        clock.advance(3)  # 38 s
        assert jobs.expire() == 1
        back = jobs.get(job.job_id)
        assert (back.state, back.attempts, back.worker) == (State.PENDING, 1, None)
        clock.advance(1)  # 39 s
        again = claimed(jobs, "worker-2")
        assert (again.job_id, again.attempts) == (job.job_id, 2)
        clock.advance(5)  # 44 s
        jobs.complete(again)
        done = jobs.get(job.job_id)
        assert (done.state, done.attempts) == (State.PUBLISHED, 2)


class TestLeases:
    def test_timeout_restarts_at_each_heartbeat(self, jobs: Jobs, clock: ManualClock) -> None:
        jobs.submit("a")
        job = claimed(jobs)
        for _ in range(10):
            clock.advance(TIMEOUT)
            assert jobs.expire() == 0
            jobs.heartbeat(job)

    def test_heartbeat_beyond_max_lease_age_loses_job(self, jobs: Jobs, clock: ManualClock) -> None:
        jobs.submit("a")
        job = claimed(jobs)
        for _ in range(119):
            clock.advance(TIMEOUT)
            jobs.heartbeat(job)
        clock.advance(TIMEOUT)
        with pytest.raises(JobLost, match="max_lease_age_seconds"):
            jobs.heartbeat(job)

    def test_claim_takes_expired_job(self, still: SqlStore, clock: ManualClock) -> None:
        jobs = Jobs(still)
        jobs.submit("a")
        Jobs(still).claim("worker-1")
        clock.advance(TIMEOUT + 1)
        assert claimed(jobs, "worker-2").attempts == 2

    def test_exhausted_jobs_are_dead_and_kept(self, jobs: Jobs, clock: ManualClock) -> None:
        job_id = jobs.submit("a", {"n": 1}, max_attempts=2)
        for _ in range(2):
            claimed(jobs)
            clock.advance(TIMEOUT + 1)
            assert jobs.expire() == 1
        job = jobs.get(job_id)
        assert (job.state, job.attempts, job.payload) == (State.DEAD, 2, {"n": 1})
        assert job.error == "lease expired"
        assert [one.job_id for one in jobs.list(State.DEAD).jobs] == [job_id]
        assert jobs.claim("worker") is None

    def test_worker_with_lost_lease_gets_job_lost(self, jobs: Jobs, clock: ManualClock) -> None:
        jobs.submit("a")
        stale = claimed(jobs, "worker")
        clock.advance(TIMEOUT + 1)
        jobs.expire()
        with pytest.raises(JobLost, match="no heartbeat for 30 s"):
            jobs.heartbeat(stale)
        holder = claimed(jobs, "worker")  # the same worker id does not make the old lease valid
        for verb in (jobs.heartbeat, jobs.complete, jobs.release, lambda held: jobs.fail(held, "broken")):
            with pytest.raises(JobLost, match="worker has claimed it since"):
                verb(stale)
        jobs.complete(holder)
        with pytest.raises(JobLost, match="it is completed"):
            jobs.complete(stale)

    def test_job_is_settled_by_id_and_lease(self, jobs: Jobs) -> None:
        jobs.submit("a")
        job = claimed(jobs)
        jobs.heartbeat((str(job.job_id), job.lease), {"done": 1})
        jobs.complete((job.job_id, job.lease))
        assert jobs.get(job.job_id).state is State.PUBLISHED

    def test_invalid_or_foreign_lease_is_refused(self, jobs: Jobs) -> None:
        jobs.submit("a")
        jobs.submit("a")
        one, other = claimed(jobs), claimed(jobs)
        for lease in ("", "x", one.lease[:-1], one.lease[:-1] + "!", "ü" * 75):
            with pytest.raises(UsageError, match="invalid lease"):
                jobs.complete((one.job_id, lease))
        with pytest.raises(JobLost, match="lease does not belong to job"):
            jobs.complete((one.job_id, other.lease))
        with pytest.raises(JobNotFound):
            jobs.complete((uuid4(), other.lease))
        forged = "A" * 21 + one.lease[21:]
        with pytest.raises(JobLost):
            jobs.complete((one.job_id, forged))
        assert jobs.get(one.job_id).state is State.CLAIMED


class TestSettling:
    def test_progress_and_result_are_kept(self, jobs: Jobs) -> None:
        jobs.submit("a")
        job = claimed(jobs)
        jobs.heartbeat(job, {"percent": 40})
        assert jobs.get(job.job_id).progress == {"percent": 40}
        jobs.complete(job, {"sent": True, "to": ["ü"]})
        done = jobs.get(job.job_id)
        assert (done.result, done.progress) == ({"sent": True, "to": ["ü"]}, {"percent": 40})
        assert jobs.list().jobs == [done]

    def test_repeated_complete_has_no_effect(self, jobs: Jobs) -> None:
        jobs.submit("a")
        job = claimed(jobs)
        jobs.complete(job, 1)
        jobs.complete(job, 1)
        assert jobs.get(job.job_id).result == 1
        assert jobs.stats().completed_total == 1

    def test_failed_job_is_retried_by_policy_until_dead(self, still: SqlStore, clock: ManualClock) -> None:
        jobs = Jobs(still, retry=RetryPolicy.constant(10))
        job_id = jobs.submit("a", max_attempts=2)
        assert jobs.fail(claimed(jobs), "smtp\x00 is down") is State.PENDING
        assert jobs.get(job_id).error == "smtp\ufffd is down"
        clock.advance(9.9)
        assert jobs.claim("worker") is None
        clock.advance(0.1)
        last = claimed(jobs)
        assert (last.attempts, jobs.fail(last, "still down")) == (2, State.DEAD)
        dead = jobs.get(job_id)
        assert (dead.state, dead.attempts, dead.error) == (State.DEAD, 2, "still down")

    def test_job_without_max_attempts_is_tried_three_times(
        self, jobs: Jobs, still: SqlStore, clock: ManualClock
    ) -> None:
        """Failing jobs and jobs with a lost worker, submitted without `max_attempts` or emitted without `submit`."""
        jobs.submit("failing")
        still.append([Event(event_type="failing", payload=b"{}", queue=jobs.queue("failing"))])
        still.append([Event(event_type="losing", payload=b"{}", queue=jobs.queue("losing"))])
        for _ in range(3):
            for _ in range(2):
                jobs.fail(claimed(jobs, "worker", "failing"), "broken")
            claimed(jobs, "worker", "losing")
            clock.advance(TIMEOUT + 1)
            assert jobs.expire() == 1
        assert [(job.state, job.attempts) for job in jobs.list().jobs] == [(State.DEAD, 3)] * 3

    def test_default_retry_delay_is_half_to_one_second(self, jobs: Jobs, clock: ManualClock) -> None:
        for _ in range(20):
            jobs.submit("a")
        for _ in range(20):
            jobs.fail(claimed(jobs), "broken")
        clock.advance(0.49)
        assert jobs.claim("worker") is None
        clock.advance(0.51)
        assert [claimed(jobs).attempts for _ in range(20)] == [2] * 20

    def test_fail_with_delay_overrides_policy(self, jobs: Jobs, clock: ManualClock) -> None:
        jobs.submit("a")
        jobs.fail(claimed(jobs), "later", delay=100)
        clock.advance(99)
        assert jobs.claim("worker") is None
        clock.advance(1)
        assert claimed(jobs).attempts == 2

    def test_repeated_fail_returns_same_state(self, jobs: Jobs) -> None:
        jobs.submit("a")
        jobs.submit("b", max_attempts=1)
        for expected in (State.PENDING, State.DEAD):
            job = claimed(jobs)
            assert [jobs.fail(job, "no"), jobs.fail(job, "no")] == [expected, expected]

    def test_failed_job_can_not_be_completed(self, jobs: Jobs) -> None:
        jobs.submit("a")
        job = claimed(jobs)
        jobs.fail(job, "no")
        with pytest.raises(JobLost):
            jobs.complete(job)

    def test_release_counts_no_attempt(self, jobs: Jobs) -> None:
        jobs.submit("a")
        job = claimed(jobs)
        jobs.release(job)
        jobs.release(job)
        assert claimed(jobs).attempts == 1


class TestCancelling:
    def test_cancelled_pending_job_is_dead(self, jobs: Jobs) -> None:
        job_id = jobs.submit("a")
        jobs.cancel(job_id, "no longer wanted")
        jobs.cancel(job_id, "no longer wanted")
        job = jobs.get(job_id)
        assert (job.state, job.error, job.attempts) == (State.DEAD, "no longer wanted", 0)
        assert jobs.claim("worker") is None

    def test_cancelled_claimed_job_is_lost_to_worker(self, jobs: Jobs) -> None:
        job_id = jobs.submit("a")
        job = claimed(jobs)
        jobs.cancel(job_id, "no longer wanted")
        for verb in (
            jobs.heartbeat,
            lambda held: jobs.heartbeat(held, {"percent": 1}),
            jobs.complete,
            jobs.release,
            lambda held: jobs.fail(held, "broken"),
        ):
            with pytest.raises(JobLost, match="it is dead: no longer wanted"):
                verb(job)
        assert jobs.get(job_id).progress is None

    def test_settled_job_can_not_be_cancelled(self, jobs: Jobs) -> None:
        jobs.submit("a")
        job = claimed(jobs)
        jobs.complete(job)
        with pytest.raises(JobSettled, match="already PUBLISHED"):
            jobs.cancel(job.job_id)

    def test_ids_outside_job_queue_are_not_found(self, jobs: Jobs, still: SqlStore) -> None:
        (event_id,) = still.append([Event(event_type="order.placed")])
        for job_id in (event_id, uuid4()):
            with pytest.raises(JobNotFound):
                jobs.cancel(job_id)
            with pytest.raises(JobNotFound):
                jobs.get(job_id)
        with pytest.raises(UsageError, match="invalid job id"):
            jobs.get("12")


class TestListing:
    def test_list_pages_are_newest_first(self, jobs: Jobs) -> None:
        submitted = [jobs.submit("ab"[number % 2]) for number in range(5)]
        first = jobs.list(limit=3)
        rest = jobs.list(limit=3, after=first.after)
        assert [job.job_id for job in (*first.jobs, *rest.jobs)] == submitted[::-1]
        assert rest.after is None
        assert [job.type for job in jobs.list(type="b").jobs] == ["b", "b"]
        assert jobs.list(State.DEAD).jobs == []

    def test_stats_count_jobs_by_type_and_state(self, jobs: Jobs) -> None:
        for kind in ("a", "a", "a", "b"):
            jobs.submit(kind, max_attempts=1)
        jobs.complete(claimed(jobs, "worker", "a"))
        claimed(jobs, "worker", "a")
        jobs.fail(claimed(jobs, "worker", "b"), "no")
        assert jobs.stats().as_json() == {
            "completed_total": 1,
            "types": [
                {"type": "a", "pending": 1, "claimed": 1, "completed": 1, "dead": 0},
                {"type": "b", "pending": 0, "claimed": 0, "completed": 0, "dead": 1},
            ],
        }
