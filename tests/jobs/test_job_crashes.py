"""Jobs of killed workers, and the modules that `import penstock` loads."""

import signal
import subprocess
import sys

import pytest

from penstock.jobs import Jobs
from penstock.model.errors import JobLost
from penstock.model.lifecycle import State

SOON = 60.0
WORKER = """
import sys, threading
from penstock.jobs import Jobs

def handle(payload, context):
    context.progress(context.job.lease)
    print("begun", flush=True)
    threading.Event().wait()

Jobs(sys.argv[1], heartbeat_seconds=0.2, timeout_seconds=4.0).work({"a": handle}, "worker", stop=threading.Event())
"""


@pytest.mark.crash
def test_job_of_killed_worker_is_claimed_by_another(url: str) -> None:
    with Jobs(url, heartbeat_seconds=0.2, timeout_seconds=4.0) as jobs:
        job_id = jobs.submit("a", {"n": 1})
        with subprocess.Popen([sys.executable, "-c", WORKER, url], stdout=subprocess.PIPE) as worker:
            assert worker.stdout is not None
            assert worker.stdout.readline() == b"begun\n"
            worker.send_signal(signal.SIGKILL)
        job = jobs.claim("worker", wait_seconds=SOON)
        assert job is not None
        assert (job.job_id, job.payload, job.attempts) == (job_id, {"n": 1}, 2)
        old_lease = jobs.get(job_id).progress
        with pytest.raises(JobLost):
            jobs.complete((job_id, old_lease))
        jobs.complete(job, "done")
        done = jobs.get(job_id)
        assert (done.state, done.result, done.error) == (State.PUBLISHED, "done", "lease expired")


@pytest.mark.crash
def test_job_that_kills_workers_becomes_dead(url: str) -> None:
    poison = WORKER.replace("threading.Event().wait()", "import os; os._exit(9)")
    with Jobs(url, heartbeat_seconds=0.2, timeout_seconds=4.0) as jobs:
        job_id = jobs.submit("a", max_attempts=2)
        neighbour = jobs.submit("b")
        for _ in range(2):
            died = subprocess.run([sys.executable, "-c", poison, url], stdout=subprocess.PIPE, timeout=SOON)
            assert died.returncode == 9
        while not jobs.get(job_id).settled:
            jobs.expire()
        dead = jobs.get(job_id)
        assert (dead.state, dead.attempts, dead.error) == (State.DEAD, 2, "lease expired")
        job = jobs.claim("worker")
        assert job is not None
        assert job.job_id == neighbour


def test_import_of_penstock_loads_no_heavy_modules() -> None:
    script = """
import sys, penstock
heavy = {"fastapi", "pydantic", "httpx", "uvicorn", "sqlalchemy", "starlette"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
penstock.Jobs
assert not (heavy - {"sqlalchemy"}) & set(sys.modules), heavy & set(sys.modules)
penstock.JobsClient
assert not {"fastapi", "uvicorn", "starlette"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=SOON)
