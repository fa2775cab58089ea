"""CPU time, which says what work costs even where other programs take their share of the machine."""

import os
from pathlib import Path

from penstock.testing.processes import living

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
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(map(int, fields[11:15]))
