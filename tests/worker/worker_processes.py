"""A worker in a separate process, to be killed by tests; started as a script with a kind and a store.

python worker_processes.py poison URL     a handler that ends its process when it receives a poison event
python worker_processes.py effects URL    a handler whose effects and settlement commit together
python worker_processes.py plain URL      a handler whose effects commit before the settlement
"""

import os
import random
import subprocess
import sys
import threading
from pathlib import Path

from sqlalchemy import text

from penstock import Received, RetryPolicy, Worker

LEASE = {"release_stuck_timeout": 2.5, "release_stuck_interval": 0.1, "max_fetch_interval": 0.05}
FOLDER = Path(__file__).parent


def start(kind: str, url: str, crash: str = "") -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "PENSTOCK_CRASH": crash}
    return subprocess.Popen([sys.executable, str(FOLDER / "worker_processes.py"), kind, url], env=environment)


def poison(url: str) -> Worker:
    worker = Worker(url)

    @worker.handler("mixed", max_workers=4, fetch_batch_size=50, max_deliveries=3, **LEASE)
    def handle(event: Received) -> None:
        if event.text() == "poison":
            os._exit(9)
        threading.Event().wait(0.002)

    @worker.handler("beside", max_workers=2, retry=RetryPolicy(max_attempts=2), **LEASE)
    async def beside(event: Received) -> None:
        if event.text() == "poison":
            os._exit(9)

    return worker


def effects(url: str) -> Worker:
    worker = Worker(url)

    @worker.handler(max_workers=4, fetch_batch_size=20, retry=RetryPolicy.constant(0.01, max_attempts=1_000), **LEASE)
    def handle(event: Received) -> None:
        with event.transaction() as connection:
            connection.execute(text("INSERT INTO effects (number) VALUES (:number)"), {"number": int(event.text())})
            if random.random() < 0.05:
                raise ConnectionError("by chance")

    return worker


def plain(url: str) -> Worker:
    worker = Worker(url)

    @worker.handler(max_workers=4, fetch_batch_size=20, **LEASE)
    def handle(event: Received) -> None:
        with worker.outbox.store.transaction() as connection:
            connection.execute(text("INSERT INTO effects (number) VALUES (:number)"), {"number": int(event.text())})

    return worker


if __name__ == "__main__":
    if os.environ.get("PENSTOCK_CRASH"):
        from tests.support import crashes

        crashes.arm()
    {"poison": poison, "effects": effects, "plain": plain}[sys.argv[1]](sys.argv[2]).run()
