"""Parallel processes that start their work together, when all of them are ready."""

import subprocess
import sys
from collections.abc import Sequence

from benchmarks.cpu import cpu_seconds
from penstock.model.errors import PenstockError


def run_together(module: str, arguments: Sequence[object], count: int) -> float:
    """Run a module in `count` processes that start together, and wait until all have ended.

    Return the CPU seconds used since the common start, including PostgreSQL's.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
    ]
    before = 0.0
    try:
        if all(_is_ready(process) for process in processes):
            before = cpu_seconds()
            for process in processes:
                _start(process)
            for process in processes:
                process.wait()
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    if any(process.returncode for process in processes):
        raise PenstockError(f"a process of {module} failed; see its output above")
    return cpu_seconds() - before


def wait_for_start() -> None:
    """Report to the parent that this process is ready, and wait for the common start."""
    print("ready", flush=True)
    sys.stdin.readline()


def _is_ready(process: "subprocess.Popen[str]") -> bool:
    assert process.stdout is not None
    return process.stdout.readline() != ""


def _start(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()
