"""Random kills of three broker candidates and eight workers that share a queue on an S3 server: no job is lost, and no
job is completed twice."""

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.event import Event, EventId
from penstock.model.lifecycle import State
from penstock.model.selection import Selection
from penstock.store.api import Store
from penstock.store.objects.document import Document
from penstock.store.objects.store import ObjectStore
from penstock.store.registry import open_store
from tests.support.processes import free_port, wait_until
from tests.support.servers import S3Server

pytestmark = [pytest.mark.crash, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("object_workers.py")
BROKERS, WORKERS = 3, 8
JOBS = 600
JOBS_BETWEEN_KILLS = 30
SECONDS = 120.0


class Processes:
    """The broker and worker processes. Each killed process is replaced."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self._started = 0
        self._ports: dict[int, int] = {}
        self.brokers = [self.start("broker") for _ in range(BROKERS)]
        self.workers = [self.start("worker") for _ in range(WORKERS)]
        self.killed: Counter[str] = Counter()

    def start(self, kind: str) -> subprocess.Popen[bytes]:
        self._started += 1
        name = f"{kind}-{self._started}"
        port = free_port()
        options = {"broker": f"wait_seconds=5&listen=127.0.0.1:{port}", "worker": "broker=never"}[kind]
        command = [sys.executable, str(PROGRAM), kind, f"{self._url}&{options}"]
        if kind == "worker":
            command += [name, str(self._folder / f"{name}.log")]
        with (self._folder / f"{name}.err").open("wb") as errors:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=errors)
        self._ports[process.pid] = port
        return process

    def leader(self, store: ObjectStore) -> int:
        """Return the index of the broker that the document names, or 0 if that broker is not running."""
        version = store.bucket.load()
        assert version is not None
        named = Document.from_json(version.data).broker
        address = "" if named is None else named.address
        places = [place for place, one in enumerate(self.brokers) if address.endswith(f":{self._ports[one.pid]}")]
        return places[0] if places else 0

    def kill_one(self, kind: str, place: int) -> None:
        members = self.brokers if kind == "broker" else self.workers
        members[place].kill()
        _reap(members[place])
        self.killed[kind] += 1
        members[place] = self.start(kind)

    def applied(self) -> list[tuple[str, str]]:
        """Return job and token of each settle that was reported to a worker as applied, from the workers' logs."""
        lines = [line for log in self._folder.glob("*.log") for line in log.read_text().splitlines(keepends=True)]
        return [(job, token) for job, token in (line.split() for line in lines if line.endswith("\n"))]

    def errors(self) -> str:
        return "\n".join(f"{log.name}: {text}" for log in self._folder.glob("*.err") if (text := log.read_text()))

    def end(self) -> None:
        for process in (*self.workers, *self.brokers):
            process.kill()
        for process in (*self.workers, *self.brokers):
            _reap(process)


def _reap(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait()


@pytest.fixture
def url(s3_server: S3Server) -> str:
    name = s3_server.create_bucket(f"brokers-{time.time_ns()}")
    url = s3_server.url(name, "queue", broker_seconds=1.5)
    store = open_store(url)
    store.initialise()
    store.close()
    return url


@pytest.fixture
def processes(url: str, tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(url, tmp_path)
    yield processes
    processes.end()


def submit(url: str, submitted: list[EventId]) -> None:
    """Submit the jobs one at a time, while brokers are killed and replaced."""
    store = open_store(f"{url}&broker=never")
    for number in range(JOBS):
        submitted += store.append([Event(event_type="job", queue="jobs", payload=str(number).encode())])
    store.close()


@pytest.mark.parametrize("seed", [20_260_101])
def test_kills_lose_no_job_and_complete_none_twice(processes: Processes, url: str, seed: int) -> None:
    chance = random.Random(seed)
    print(f"seed {seed}")
    submitted: list[EventId] = []
    submitter = threading.Thread(target=submit, args=(url, submitted), daemon=True)
    submitter.start()
    store = open_store(f"{url}&broker=never")
    assert isinstance(store, ObjectStore)
    for goal in range(JOBS_BETWEEN_KILLS, JOBS, JOBS_BETWEEN_KILLS):
        assert wait_until(lambda goal=goal: len(processes.applied()) >= goal, SECONDS), processes.errors()
        match chance.choice(["the broker", "a candidate", "a worker", "a worker"]):
            case "the broker":
                processes.kill_one("broker", processes.leader(store))
            case "a candidate":
                processes.kill_one("broker", chance.randrange(BROKERS))
            case _:
                processes.kill_one("worker", chance.randrange(WORKERS))
    submitter.join(SECONDS)
    assert not submitter.is_alive(), processes.errors()
    assert wait_until(lambda: store.stats().total("published") >= JOBS, SECONDS), (store.stats(), processes.errors())
    print(f"killed: {dict(processes.killed)}")
    audit(store, submitted, processes)
    store.close()


def audit(store: Store, submitted: list[EventId], processes: Processes) -> None:
    """Check in the document that each submitted job exists once and is published.

    A job with an applied settle in a worker's log must have that settle's token as its result.
    """
    page = store.find(Selection(everything=True), limit=10 * JOBS)
    assert Counter(one.event_id for one in page.records) == Counter(submitted)
    assert sorted(int(one.payload) for one in page.records) == list(range(JOBS))
    assert {one.state for one in page.records} == {State.PUBLISHED}
    results = {str(one): note.result for one, note in store.notes(submitted).items()}
    applied = processes.applied()
    assert len({job for job, _ in applied}) == len(applied), "two settles of one job were told to be applied"
    assert all(results[job] == token.encode() for job, token in applied)
    # A log line is missing only if the worker was killed between the settle and the write of the line.
    assert JOBS - len(applied) <= processes.killed["worker"]
    assert processes.killed["broker"]
    assert processes.killed["worker"]
