"""How processes are found."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.processes import of_session

# A process and its child, which end with their input.
PROGRAM = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdout=subprocess.PIPE)
child.stdout.readline()  # between fork and exec a process has no environment
print(child.pid, flush=True)
child.wait()
"""


@contextmanager
def session(mark: str) -> Iterator[tuple[int, int]]:
    """The numbers of a leader and of its child, in a session of their own."""
    command = [sys.executable, "-c", PROGRAM]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env={"MARK": mark}, start_new_session=True) as leader:
        assert leader.stdin is not None
        assert leader.stdout is not None
        yield leader.pid, int(leader.stdout.readline())
        leader.stdin.write(b"\n")


def test_all_of_a_session_are_found() -> None:
    with session("of the first") as (leader, child):
        assert sorted(of_session(leader, "of the first")) == sorted([leader, child])
    assert of_session(leader, "of the first") == []


def test_another_session_that_was_given_the_same_number_is_not_taken_for_it() -> None:
    """Who ends what is left of a long dead program would else kill strangers."""
    with session("of the second") as (leader, _):
        assert of_session(leader, "of the first") == []
