"""PgQueuer, the fastest Python queue on PostgreSQL, for comparison. Set up for speed as its documentation advises.

Uses asyncpg under uvloop, one process per core, PgQueuer's autovacuum settings, tables as durable as Penstock's, and
the batch and chunk sizes that are fastest on this machine according to trial runs.
"""

import asyncio
import sys
import time
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

from benchmarks.plan import EVENT_TYPE, PAYLOAD
from benchmarks.workers import run_together, wait_for_start

CHUNKS = (1_000, 5_000, 10_000, 50_000)
SETUPS = ((1, 100), (1, 500), (1, 1_000), (2, 1_000), (2, 2_000))
"""Managers per process, each with a separate connection, and the batch size of each."""

Setup = tuple[int, int]
DONE = "SELECT created AS at FROM pgqueuer_log WHERE status = 'successful'"


def enqueue(url: str, jobs: int, chunk: int = 10_000) -> float:
    """Install PgQueuer and enqueue jobs, `chunk` per call. Return the jobs per second."""
    return jobs / uvloop.run(_enqueue(url, jobs, chunk))


def drain(url: str, setup: Setup, processes: int) -> float:
    """Run all jobs, each of which does nothing. Return the CPU seconds used."""
    return run_together(__name__, [url, *setup], processes)


async def _enqueue(url: str, jobs: int, chunk: int) -> float:
    """Return the seconds that enqueueing took."""
    connection = await asyncpg.connect(url)
    try:
        queries = Queries(AsyncpgDriver(connection))
        await queries.install()
        await queries.optimize_autovacuum()
        began = time.perf_counter()
        for start in range(0, jobs, chunk):
            count = min(chunk, jobs - start)
            await queries.enqueue([EVENT_TYPE] * count, [PAYLOAD] * count, [0] * count)
        return time.perf_counter() - began
    finally:
        await connection.close()


async def _drain(url: str, managers: int, batch: int) -> None:
    connections = [await asyncpg.connect(url) for _ in range(managers)]
    queuers = [PgQueuer(AsyncpgDriver(connection)) for connection in connections]
    for queuer in queuers:
        queuer.entrypoint(EVENT_TYPE)(_do_nothing)
    wait_for_start()
    # Disable the statistics that PgQueuer would write every 30 s: they are not part of the comparison.
    without_statistics = timedelta(0)
    await asyncio.gather(
        *(
            queuer.run(batch_size=batch, mode=QueueExecutionMode.drain, log_aggregation_interval=without_statistics)
            for queuer in queuers
        )
    )
    for connection in connections:
        await connection.close()


async def _do_nothing(job: Job) -> None:
    """Do nothing."""


if __name__ == "__main__":
    uvloop.run(_drain(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
