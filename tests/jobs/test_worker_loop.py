"""Waiting for jobs and for their results, payload models, and the worker loop."""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from pydantic import BaseModel

from penstock.jobs import JobContext, Jobs
from penstock.model.errors import InvalidEvent, JobFailed, JobUnfinished, UsageError
from penstock.model.event import Event
from penstock.model.lifecycle import State
from penstock.model.retry import RetryPolicy
from penstock.store.sql.store import SqlStore

SOON = 30.0


class Email(BaseModel):
    to: str
    copies: int = 1


@pytest.fixture
def opened(url: str) -> Any:
    """A function that opens the live queue with other settings."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(Jobs(url, **settings))


@pytest.fixture
def worked(live: Jobs, opened: Any) -> Any:
    """A function that runs a worker on the live queue, in a thread, until the test ends."""
    stop = threading.Event()
    threads: list[threading.Thread] = []

    def start(handlers: dict[str, Callable[..., Any]], jobs: Jobs = live, **settings: Any) -> None:
        work = {"worker_id": "worker", "stop": stop, **settings}
        threads.append(threading.Thread(target=jobs.work, args=(handlers,), kwargs=work))
        threads[-1].start()

    yield start
    stop.set()
    for thread in threads:
        thread.join(SOON)
        assert not thread.is_alive()


class TestWaiting:
    def test_waiting_claim_returns_submitted_job(self, live: Jobs) -> None:
        asked = threading.Event()
        look = live.store.ready

        def looked(*arguments: Any, **named: Any) -> bool:
            found = look(*arguments, **named)
            asked.set()
            return found

        live.store.ready = looked  # type: ignore[method-assign]
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(live.claim, "worker", ["a"], wait_seconds=SOON)
            assert asked.wait(SOON)
            job_id = live.submit("a")
            job = waiting.result(SOON)
        assert job is not None
        assert job.job_id == job_id

    def test_waiting_claim_ends_on_stop_or_close(self, live: Jobs) -> None:
        stop = threading.Event()
        with ThreadPoolExecutor(2) as thread:
            stopped = thread.submit(live.claim, "worker", wait_seconds=600, stop=stop)
            stop.set()
            assert stopped.result(SOON) is None
            jobs = Jobs(live.store)
            closed = thread.submit(jobs.claim, "worker", wait_seconds=600)
            jobs.close()
            assert closed.result(SOON) is None

    def test_wait_returns_result(self, live: Jobs) -> None:
        job_id = live.submit("a")
        job = live.claim("worker")
        assert job is not None
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(live.wait, job_id, SOON)
            live.complete(job, {"sent": 3})
            assert waiting.result(SOON).result == {"sent": 3}

    def test_wait_for_dead_job_raises_job_failed(self, live: Jobs) -> None:
        job_id = live.submit("a")
        live.cancel(job_id, "nobody wants it")
        with pytest.raises(JobFailed, match="is dead: nobody wants it"):
            live.wait(job_id)

    def test_wait_timeout_raises_job_unfinished(self, live: Jobs) -> None:
        with pytest.raises(JobUnfinished, match="still PENDING"):
            live.wait(live.submit("a"), timeout_seconds=0)


class TestModels:
    @pytest.fixture
    def jobs(self, still: SqlStore) -> Jobs:
        return Jobs(still, models={"email:send": Email})

    def test_payload_not_matching_model_is_refused_at_submit(self, jobs: Jobs) -> None:
        with pytest.raises(InvalidEvent, match=r"invalid payload: to: Field required; copies: Input should be"):
            jobs.submit("email:send", {"copies": "many"})
        assert jobs.list().jobs == ()

    def test_claimed_payload_is_model_instance(self, jobs: Jobs) -> None:
        jobs.submit("email:send", {"to": "ada", "copies": "2"})
        jobs.submit("email:send", Email(to="bob"))
        taken = [jobs.claim("worker"), jobs.claim("worker")]
        assert [job.payload for job in taken if job] == [Email(to="ada", copies=2), Email(to="bob")]
        assert [job.json for job in taken if job] == [{"to": "ada", "copies": "2"}, {"to": "bob", "copies": 1}]

    @pytest.mark.parametrize("types", [None, ["email:send"], ["email:send", "other"]])
    def test_stored_payload_not_matching_model_becomes_dead(
        self, jobs: Jobs, still: SqlStore, types: list[str] | None
    ) -> None:
        unchecked = Jobs(still)
        bad = unchecked.submit("email:send", {"copies": []})
        good = jobs.submit("email:send", {"to": "ada"})
        worse = unchecked.submit("email:send", [])
        job = jobs.claim("worker", types)
        assert job is not None
        assert job.job_id == good
        assert jobs.claim("worker", types) is None
        dead = jobs.get(bad)
        assert (dead.state, dead.attempts, dead.payload) == (State.DEAD, 1, {"copies": []})
        assert dead.error is not None
        assert dead.error.startswith("invalid payload: to: Field required; copies: ")
        assert jobs.get(worse).state is State.DEAD

    @pytest.mark.parametrize("payload", [b"\xff", b"{", b"NaN", b'"\\ud800"', b"[" * 100_000, b"1" * 5_000])
    def test_stored_payload_that_is_not_json_becomes_dead(self, jobs: Jobs, still: SqlStore, payload: bytes) -> None:
        (job_id,) = still.append([Event(event_type="a", queue="jobs/a", payload=payload)])
        assert jobs.claim("worker") is None
        dead = jobs.get(job_id)
        assert dead.state is State.DEAD
        assert "invalid payload: not JSON" in str(dead.error)
        assert isinstance(dead.payload, str)


class TestWorking:
    def test_results_are_kept_and_failures_retried(self, live: Jobs, worked: Any) -> None:
        tries: Counter[int] = Counter()

        def send(payload: dict[str, int], context: JobContext) -> dict[str, int]:
            tries[payload["n"]] += 1
            context.progress({"try": tries[payload["n"]]})
            if payload["n"] == 2 and tries[2] == 1:
                raise ConnectionError("smtp is down")
            return {"sent": payload["n"]}

        live.retry = RetryPolicy.constant(0)
        ids = [live.submit("email:send", {"n": number}) for number in (1, 2, 3)]
        worked({"email:send": send})
        done = [live.wait(job_id, SOON) for job_id in ids]
        assert [job.result for job in done] == [{"sent": 1}, {"sent": 2}, {"sent": 3}]
        assert [job.progress for job in done] == [{"try": 1}, {"try": 2}, {"try": 1}]
        assert [job.attempts for job in done] == [1, 2, 1]
        assert done[1].error == "ConnectionError: smtp is down"

    def test_handler_context_signals_lost_job(self, opened: Any, live: Jobs, worked: Any) -> None:
        lost = threading.Event()
        begun = threading.Event()

        def send(_: Any, context: JobContext) -> str:
            begun.set()
            assert context.lost.wait(SOON)
            lost.set()
            return "too late"

        job_id = live.submit("a")
        worked({"a": send, "b": lambda *_: None}, opened(heartbeat_seconds=0.01))
        assert begun.wait(SOON)
        live.cancel(job_id, "called off")
        assert lost.wait(SOON)
        live.wait(live.submit("b"), SOON)  # the worker has ended the lost job and continues with the next
        job = live.get(job_id)
        assert (job.state, job.error, job.result) == (State.DEAD, "called off", None)

    def test_heartbeats_keep_lease_of_long_job(self, opened: Any, worked: Any) -> None:
        """The job takes longer than the timeout: a job without heartbeats, claimed later, has expired before."""

        def send(_: Any, context: JobContext) -> str:
            begun.set()
            assert taken_back.wait(SOON)
            return "done"

        begun, taken_back = threading.Event(), threading.Event()
        jobs = opened(heartbeat_seconds=0.1, timeout_seconds=4.0)
        abandoned, long = jobs.submit("abandoned"), jobs.submit("long")
        worked({"long": send}, jobs)
        assert begun.wait(SOON)
        assert jobs.claim("crashed", ["abandoned"]) is not None
        again = jobs.claim("other", ["abandoned"], wait_seconds=SOON)
        assert (again.job_id, again.attempts) == (abandoned, 2)
        taken_back.set()
        done = jobs.wait(long, SOON)
        assert (done.result, done.attempts) == ("done", 1)

    def test_result_that_is_not_json_fails_job(self, live: Jobs, worked: Any) -> None:
        job_id = live.submit("a", max_attempts=1)
        worked({"a": lambda *_: object()})
        with pytest.raises(JobFailed, match="cannot store the handler's result"):
            live.wait(job_id, SOON)

    def test_worker_without_handlers_is_usage_error(self, live: Jobs) -> None:
        with pytest.raises(UsageError, match="handler"):
            live.work({}, "worker", stop=threading.Event())

    def test_every_job_is_completed_once(self, url: str, live: Jobs) -> None:
        """Four workers with separate connections and different type filters share 200 jobs of 5 types."""
        handled: Counter[int] = Counter()
        lock = threading.Lock()
        ids = [live.submit(f"type-{number % 5}", number) for number in range(200)]
        filters = (None, None, [f"type-{number}" for number in range(5)], ["type-1", "type-2"])
        together = threading.Barrier(4)

        def work(types: list[str] | None) -> None:
            with Jobs(url) as jobs:
                together.wait()
                while job := jobs.claim(threading.current_thread().name, types):
                    with lock:
                        handled[job.payload] += 1
                    jobs.complete(job, job.payload)

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(work, filters))
        assert handled == Counter(range(200))
        assert live.stats().completed_total == 200
        assert {live.get(job_id).attempts for job_id in ids} == {1}
