"""CPU time of processes, which measures the cost of work even on a shared machine."""

import os
from pathlib import Path

from tests.support.processes import living

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its descendants, including ended ones: PostgreSQL, JVM, workers."""
    parents = living()
    return sum(_ticks(pid) for pid in parents if _descends(pid, parents)) / _TICKS


def _descends(pid: int, parents: dict[int, int]) -> bool:
    own = os.getpid()
    while pid not in (own, 0) and pid in parents:
        pid = parents[pid]
    return pid == own


def _ticks(pid: int) -> int:
    """Return user and system time of a process and of the children that it has waited for; 0 if /proc has no data."""
    return sum(map(int, _stat(pid)[11:15]))


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


class CpuMeter:
    """CPU time that includes processes for which no parent waits, such as Spark's workers.

    Time used until the last `read` stays counted, so `read` must be called often.
    """

    def __init__(self) -> None:
        self._taken: dict[tuple[int, int], int] = {}

    def read(self) -> float:
        parents = living()
        for pid in parents:
            if _descends(pid, parents):
                started, ticks = _own(pid)
                self._taken[pid, started] = max(ticks, self._taken.get((pid, started), 0))
        return sum(self._taken.values()) / _TICKS


def _own(pid: int) -> tuple[int, int]:
    """Return the start time of a process, and its own user and system time."""
    fields = _stat(pid)
    return (int(fields[19]), int(fields[11]) + int(fields[12])) if fields else (0, 0)
