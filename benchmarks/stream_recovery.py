"""Recovery time of a stream after its driver was killed, compared with a plain start.

Both are measured from the start of the process to its first commit. The final sums are checked.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.stream_contenders import STREAM, application, embedded_store, totals_in
from benchmarks.stream_input import Input
from penstock.model.errors import PenstockError
from tests.support.processes import wait_until

SECONDS = 600.0


class Recovery(NamedTuple):
    """Seconds to the first commit."""

    cold_start: float
    after_kill: float


def measure_recovery(kind: str, given: Input, folder: Path, tasks: int) -> Recovery:
    """Start a stream, kill its driver in the middle of the input, and start the stream again."""
    folder.mkdir(parents=True)
    arguments = [given.folder, str(given.lines), embedded_store(folder), f"{kind}:///{folder / 'state'}", str(tasks)]
    commits = folder / "checkpoint" / STREAM / "commits"
    cold_start, process = _start([*arguments, str(folder / "checkpoint")], commits)
    wait_until(lambda: _last(commits) >= given.batches // 2 or process.poll() is not None, SECONDS)
    _kill(process)
    after_kill, process = _start([*arguments, str(folder / "checkpoint")], commits)
    if process.wait(SECONDS) != 0 or totals_in(f"{kind}:///{folder / 'state'}") != given.expected:
        raise PenstockError("invalid run: the stream has wrong sums after a kill")
    return Recovery(cold_start, after_kill)


def _start(arguments: list[str], commits: Path) -> "tuple[float, subprocess.Popen[bytes]]":
    """Start a process that runs the stream. Return the seconds to its first commit, and the process."""
    before, began = _last(commits), time.time()
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, *arguments], stderr=subprocess.DEVNULL, start_new_session=True
    )
    wait_until(lambda: _last(commits) > before or process.poll() is not None, SECONDS)
    if _last(commits) <= before:
        raise PenstockError("the stream ended before it committed anything")
    return (commits / str(before + 1)).stat().st_mtime - began, process


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill the driver and its child processes, which could otherwise still commit."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last(commits: Path) -> int:
    """Return the number of the last committed batch; -1 before the first."""
    return max((int(path.name) for path in commits.glob("[0-9]*")), default=-1)


def _main(folder: str, lines: str, store: str, state: str, tasks: str, checkpoint: str) -> None:
    from benchmarks.stream_input import Totals
    from penstock.streams.sources import Frame

    given = Input(folder, int(lines), 0, 0, Totals(0, 0, 0, 0))
    app = application(Frame(given.open), store, state, int(tasks))
    app.run(master=f"local[{tasks}]", once=True, checkpoint=checkpoint)


if __name__ == "__main__":
    _main(*sys.argv[1:])
