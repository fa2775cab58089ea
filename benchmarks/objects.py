"""Jobs per second through a queue on object storage, with group commit and with one write for each change.

Clients are threads of one process. Each repeatedly submits a job, claims one and completes it. Both contenders run the
same code; the second puts only one change into a write. They alternate, each for a fixed number of seconds, on an S3
server on this machine, and on the same server behind a proxy that adds the minimum latency of a cloud's object store.
The target is for the second server: where a write takes no longer than its processing, grouping saves little.
"""

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any
from uuid import uuid4

from benchmarks.plan import Figure, Measured, Target
from benchmarks.report import describe, documents, table
from penstock.model.event import Event
from penstock.model.outcome import PUBLISHED
from penstock.store.objects import group_commit
from penstock.store.objects.store import ObjectStore
from penstock.store.registry import open_store
from tests.support.gates import Gate
from tests.support.servers import S3Server

PAYLOAD = b'{"to": "user@example.com", "subject": "Hello"}'
TARGET = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectsPlan:
    """Size of the benchmark."""

    clients: int = 64
    seconds: float = 8.0
    rounds: int = 3
    way_seconds: float = 0.02
    """Delay that the proxy adds to each response."""


@dataclass(frozen=True, slots=True)
class Run:
    """Result of one run."""

    jobs_per_second: float
    changes_per_write: float


def measure(server: S3Server, plan: ObjectsPlan) -> Measured:
    figures: list[Figure] = []
    details: dict[str, Any] = {"plan": asdict(plan)}
    with Gate(server.port, delay_seconds=plan.way_seconds) as gate:
        places = {
            "S3 on this machine": server.endpoint,
            f"S3, {plan.way_seconds * 1e3:g} ms away": f"http://127.0.0.1:{gate.port}",
        }
        for place, endpoint in places.items():
            runs = [_round(server, endpoint, plan, f"{place}, round {number}") for number in range(1, plan.rounds + 1)]
            figures += _figures(place, runs, Target(TARGET) if endpoint != server.endpoint else None)
            details[place] = [{name: asdict(run) for name, run in one.items()} for one in runs]
    return Measured(tuple(figures), details)


def _round(server: S3Server, endpoint: str, plan: ObjectsPlan, what: str) -> dict[str, Run]:
    runs = {"grouped": _run(server, endpoint, plan), "one by one": _run_ungrouped(server, endpoint, plan)}
    rates = ", ".join(f"{name} {run.jobs_per_second:,.0f} jobs a second" for name, run in runs.items())
    print(f"{what}: {rates}", file=sys.stderr, flush=True)
    return runs


def _figures(place: str, runs: list[dict[str, Run]], target: Target | None) -> Iterator[Figure]:
    for name in ("grouped", "one by one"):
        yield Figure(f"{place}: {name}", median(run[name].jobs_per_second for run in runs), "jobs/s")
    yield Figure(f"{place}: changes in a write", median(run["grouped"].changes_per_write for run in runs), "changes")
    ratio = median(run["grouped"].jobs_per_second / run["one by one"].jobs_per_second for run in runs)
    yield Figure(f"{place}: grouped / one by one", ratio, "times", target)


def _run_ungrouped(server: S3Server, endpoint: str, plan: ObjectsPlan) -> Run:
    before, group_commit.GROUP = group_commit.GROUP, 1
    try:
        return _run(server, endpoint, plan)
    finally:
        group_commit.GROUP = before


def _run(server: S3Server, endpoint: str, plan: ObjectsPlan) -> Run:
    with _queue(server, endpoint) as store:
        store.append([Event(event_type="job", queue="jobs", payload=PAYLOAD) for _ in range(plan.clients)])
        committer = store.runtime.committer
        assert committer is not None
        before, began = committer.writes, time.monotonic()
        over = began + plan.seconds
        done = [0] * plan.clients
        threads = [
            threading.Thread(target=_client, args=(store, over, done, number), daemon=True)
            for number in range(plan.clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds, writes = time.monotonic() - began, committer.writes - before
        return Run(sum(done) / seconds, 3 * sum(done) / writes)


def _client(store: ObjectStore, over: float, done: list[int], number: int) -> None:
    job = [Event(event_type="job", queue="jobs", payload=PAYLOAD)]
    while time.monotonic() < over:
        store.append(job)
        claim = store.claim("jobs", limit=1, claimant=f"client-{number}")
        for event in claim.events:
            done[number] += len(store.settle(claim.lease, {event.seq: PUBLISHED}).published)


@contextmanager
def _queue(server: S3Server, endpoint: str) -> Iterator[ObjectStore]:
    name = server.create_bucket(f"bench-{uuid4().hex}")
    store = open_store(server.url(name, endpoint=endpoint))
    assert isinstance(store, ObjectStore)
    store.initialise()
    try:
        yield store
    finally:
        store.close()


def print_report(plan: ObjectsPlan, *, as_json: bool) -> None:
    """Start a server, measure on it, and print the figures on standard output."""
    machine = describe()
    with S3Server() as server:
        measured = measure(server, plan)
    if as_json:
        figures = documents(measured.figures)
        print(json.dumps({"machine": machine, "figures": figures, "details": measured.details}, indent=2))
    else:
        print("\n".join(table(measured.figures)))
