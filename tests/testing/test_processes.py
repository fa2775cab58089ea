"""Finding the processes of a session."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.processes import of_session

# A process and its child, which end when their standard input ends.
PROGRAM = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdout=subprocess.PIPE)
child.stdout.readline()  # between fork and exec a process has no environment
print(child.pid, flush=True)
child.wait()
"""


@contextmanager
def session(mark: str) -> Iterator[tuple[int, int]]:
    """Yield the process ids of a session's leader and its child."""
    command = [sys.executable, "-c", PROGRAM]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env={"MARK": mark}, start_new_session=True) as leader:
        assert leader.stdin is not None
        assert leader.stdout is not None
        yield leader.pid, int(leader.stdout.readline())
        leader.stdin.write(b"\n")


def test_all_processes_of_session_are_found() -> None:
    with session("of the first") as (leader, child):
        assert sorted(of_session(leader, "of the first")) == sorted([leader, child])
    assert of_session(leader, "of the first") == []


def test_session_with_reused_id_is_not_matched() -> None:
    """Cleaning up after a dead program must not kill processes that reuse its session id."""
    with session("of the second") as (leader, _):
        assert of_session(leader, "of the first") == []
