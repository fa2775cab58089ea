"""Functions for slices, importable by name, as Python worker processes need them. They leave traces in files."""

import os
import time
from pathlib import Path

from penstock.pipeline.spark.slices import Slice
from tests.support.files import write_whole

cached: list[int] = []


def describe(argument: str, current: Slice) -> tuple[str, int, int, int, int]:
    """Return the task's argument, slice and partition, its process id, and the number of calls in this process."""
    cached.append(current.number)
    while current.pause(0.01):
        pass
    return argument, current.number, current.partition, os.getpid(), len(cached)


def wait_long(folder: str, current: Slice) -> str:
    """Write a file when it runs, then wait for the slice to end."""
    write_whole(Path(folder, f"running-{current.partition}"), str(os.getpid()))
    while current.pause(60):
        pass
    return "left in good order"


def stumble_once(folder: str, current: Slice) -> str:
    """Kill the worker process at the first call, and succeed at the second."""
    marker = Path(folder, f"stumbled-{current.number}-{current.partition}")
    if not marker.exists():
        marker.touch()
        os._exit(3)
    return "up again"


def fail(message: str, _: Slice) -> None:
    raise ValueError(message)


def die(_: object, __: Slice) -> None:
    os._exit(3)


def ignore_the_end(folder: str, current: Slice) -> None:
    """Run without checking for a stop request."""
    Path(folder, f"running-{current.partition}").touch()
    time.sleep(60)


def die_often(folder: str, current: Slice) -> str:
    """Kill the worker process six times: more often than Spark lets a task fail."""
    deaths = len(list(Path(folder).glob("death-*")))
    if deaths < 6:
        Path(folder, f"death-{deaths}").touch()
        os._exit(3)
    return "alive"
