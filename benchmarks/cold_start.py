"""Seconds from the command to the first delivered event: `penstock relay --once` with one pending event.

The first run has no class-data archive and no bytecode of Penstock and PySpark; the later runs use both, as left by the
first. A run ends with its JVM, which has then written the archive. The time of delivery is the event's settlement, by
the clock of the same machine.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import psycopg

from benchmarks.ground import Ground
from benchmarks.plan import EVENT_TYPE, PAYLOAD, Figure, Measured, Plan, at_most
from penstock import connect
from penstock.model.errors import PenstockError

# The code of the installed command.
_PENSTOCK = "import sys; from penstock.cli import main; sys.exit(main())"


def measure(ground: Ground, plan: Plan) -> Measured:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, ground.outbox() as url:
        environment = _fresh_environment(Path(folder))
        ground.note("cold start: first run ever")
        first = _start(url, environment)
        ground.note(f"  {first:.2f} s")
        warm = []
        for number in range(1, plan.cold_starts + 1):
            warm.append(_start(url, environment))
            ground.note(f"cold start with warm caches, {number} of {plan.cold_starts}: {warm[-1]:.2f} s")
    figures = (
        Figure("cold start, caches warm", median(warm), "s", at_most(6)),
        Figure("cold start, first run ever", first, "s", at_most(12)),
    )
    return Measured(figures, {"warm": warm})


def _fresh_environment(folder: Path) -> dict[str, str]:
    """Return the environment of an account that has never run Penstock."""
    environment = {**os.environ, "HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def _start(url: str, environment: Mapping[str, str]) -> float:
    """Return the seconds from the start of the command to the settlement of the event."""
    with connect(url) as outbox:
        event_id = outbox.emit(EVENT_TYPE, PAYLOAD)
    command = [sys.executable, "-c", _PENSTOCK, "relay", "--store", url, "--to", "null:", "--once"]
    began = time.time()
    # The JVM keeps the pipe open until it ends.
    done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise PenstockError(f"penstock relay ended with code {done.returncode}: {done.stderr[-2000:]}")
    with psycopg.connect(url) as connection:
        row = connection.execute(_SETTLED_AT, [event_id]).fetchone()
    assert row is not None, "the relay ended without settling the event"
    return float(row[0]) - began


_SETTLED_AT = """
SELECT extract(epoch FROM settled_at) FROM penstock_archive JOIN penstock_events USING (seq) WHERE event_id = %s
"""
