"""Processes that share a queue on object storage, to be killed at any time.

python object_workers.py broker URL
python object_workers.py worker URL NAME LOG
"""

import os
import select
import sys
from contextlib import suppress
from pathlib import Path

from penstock.model.errors import StoreUnavailable
from penstock.model.outcome import Published
from penstock.store.registry import open_store

LEASE_SECONDS = 3.0
TEND_SECONDS = 0.2


def broker(url: str) -> None:
    """Take the broker lease whenever it is free, until standard input ends."""
    store = open_store(url)
    while not select.select([sys.stdin], [], [], TEND_SECONDS)[0]:
        with suppress(StoreUnavailable):
            store.maintain()
    store.close()


def worker(url: str, name: str, log: Path) -> None:
    """Claim jobs one at a time and publish them. Log each settle that the store reports as applied."""
    store = open_store(url)
    lines = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        claimed = store.claim("jobs", limit=1, claimant=name, lease_seconds=LEASE_SECONDS, max_attempts=1_000)
        for job in claimed.events:
            token = claimed.lease.token.hex
            settled = store.settle(claimed.lease, {job.seq: Published(result=token.encode())})
            if settled.published:
                os.write(lines, f"{job.event_id} {token}\n".encode())


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["broker", url]:
            broker(url)
        case ["worker", url, name, log]:
            worker(url, name, Path(log))
