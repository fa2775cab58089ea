"""CPU time, which says what work costs even where other programs take their share of the machine."""

import os
from pathlib import Path

from tests.support.processes import living

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> float:
    """The CPU time of this process and of all below it, those that have ended included: PostgreSQL, Java, workers."""
    parents = living()
    return sum(_ticks(pid) for pid in parents if _descends(pid, parents)) / _TICKS


def _descends(pid: int, parents: dict[int, int]) -> bool:
    own = os.getpid()
    while pid not in (own, 0) and pid in parents:
        pid = parents[pid]
    return pid == own


def _ticks(pid: int) -> int:
    """User and system time of a process and of the children that it has waited for; 0 where /proc doesn't tell."""
    return sum(map(int, _stat(pid)[11:15]))


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


class CpuMeter:
    """The same for a run in which processes end that nobody waits for, as Spark's workers do: what they took until the
    last look stays counted. To be read often."""

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
    """When a process was started, and its own user and system time."""
    fields = _stat(pid)
    return (int(fields[19]), int(fields[11]) + int(fields[12])) if fields else (0, 0)
