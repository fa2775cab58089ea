"""Crash simulator: kills a process at a named crash point, so that a test can check the state that remains.

    PENSTOCK_CRASH="after-publish"           each process dies when it first reaches the point
    PENSTOCK_CRASH="after-publish:3"         the third time
    PENSTOCK_CRASH="after-publish:1%"        each time with a probability of 1 in 100
    PENSTOCK_CRASH="after-claim:1:driver"    the relay's driver dies instead; `family`: all processes of the relay
    PENSTOCK_CRASH="refuse:2%"               no process dies: each event is refused with a probability of 2 in 100
    PENSTOCK_CRASH="poison:bad"              a process dies before it publishes an event with `bad` in the payload
    PENSTOCK_CRASH="@plan.txt"               a crash described in a file, once the file exists; one file is one crash

Several crashes are separated by commas and counted independently. A process that executes the crash of a file first
renames the file to `plan.txt.fired`: no other process repeats the crash, and the test sees that it happened.

The code under test contains no crash points. `arm()` wraps its functions from outside, in the calling process. To reach
a relay's workers, `arm()` makes the relay send `tests.support.crashes.deliver` or `send_partition`, which arm the
workers as well. `tests.support.crashing_sink` arms the workers of a stream that writes. `chaos.crashing` arms the
workers of an exactly-once stream and defines its crash points.
"""

import os
import random
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from chaos.steps import STEPS
from penstock.model.errors import UsageError
from penstock.model.outcome import Retry
from penstock.pipeline.counts import SliceCounts
from penstock.pipeline.datasource import publish as publishing
from penstock.pipeline.datasource import sender
from penstock.pipeline.datasource.sender import Dispatch, RelayTaskSpec
from penstock.pipeline.lake.files import LakeFolder
from penstock.pipeline.relay import driver as relay
from penstock.pipeline.relay import task as relay_task
from penstock.pipeline.spark.slices import Slice
from penstock.pipeline.spark.stop_channel import StopAddress
from penstock.publish.api import Message, Outcomes, Publisher
from penstock.store.sql.store import SqlStore
from penstock.store.sql.transaction import Transaction
from penstock.worker.executors import Executor
from tests.support.processes import living

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_send_partition = publishing.send_partition
VARIABLE = "PENSTOCK_CRASH"
DRIVER_VARIABLE = "PENSTOCK_CRASH_DRIVER"
POINTS = {
    "in-claim": "after a statement of a claim's transaction; each statement is a passage",
    "after-claim": "events are claimed, and nothing else happened yet",
    "in-publish": "half of a batch is out",
    "after-publish": "a batch is out, and its store doesn't know",
    "in-settle": "after a statement of a settle's transaction; each statement is a passage",
    "after-settle": "a batch is settled, and nobody was told",
    "after-handler": "a handler has returned, and its outcome is nowhere but in this process",
    "in-transaction": "after a statement that settles in a handler's own transaction; each statement is a passage",
    "after-transaction": "an event is settled in its handler's transaction, which is not yet committed",
    "after-stage": "a task of a write has staged rows, and nobody was told",
    "in-commit": "after a statement of the transaction that makes events of staged rows; each statement is a passage",
    "after-commit": "staged rows are events, and Spark doesn't know",
    "in-lake": "a file of a batch is moved into the lake; each file is a passage",
} | {step.point: step.what for step in STEPS}
POISON = "poison"
REFUSE = "refuse"
VICTIMS = ("self", "driver", "family")

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Crash:
    """A crash: its point, its victim, and the passage or the probability that triggers it."""

    point: str
    passage: int = 1
    chance: float | None = None
    victim: str = "self"
    payload: bytes = b""

    @classmethod
    def parse(cls, text: str) -> "Crash":
        """Parse a crash from its text in the environment variable or a file."""
        point, _, rest = text.strip().partition(":")
        if point == POISON and rest:
            return cls(point, payload=rest.encode())
        found = re.fullmatch(r"(?:(\d+)|([\d.]+)%)?(?::(\w+))?", rest)
        if point not in (*POINTS, REFUSE) or found is None or (found[3] or "self") not in VICTIMS:
            raise UsageError(
                f"{text!r} is not a crash; one looks like after-publish:3 or after-claim:5%:driver, at one of "
                f"{', '.join(POINTS)}, and its victim is {', '.join(VICTIMS)}"
            )
        chance = float(found[2]) / 100 if found[2] else None
        return cls(point, int(found[1] or 1), chance, found[3] or "self")

    def strikes(self, passages: int) -> bool:
        return passages == self.passage if self.chance is None else random.random() < self.chance


class Plan:
    """The crashes of an armed process, with the number of passages for each."""

    def __init__(self, text: str) -> None:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        self._crashes = [Crash.parse(part) for part in parts if not part.startswith("@")]
        self._files = [_File(Path(part[1:])) for part in parts if part.startswith("@")]
        self._passages: Counter[Crash] = Counter()
        self._lock = threading.Lock()

    def due(self, point: str) -> Crash | None:
        """Count a passage of the point and return the crash that it triggers, if any."""
        with self._lock:
            for crash in self._crashes:
                if crash.point == point:
                    self._passages[crash] += 1
                    if crash.strikes(self._passages[crash]):
                        return crash
            return next(filter(None, (file.due(point) for file in self._files)), None)

    def refused(self, messages: Sequence[Message]) -> set[int]:
        """Return the seqs of messages that the destination refuses, chosen at random."""
        chance = max((crash.chance or 0.0 for crash in self._crashes if crash.point == REFUSE), default=0.0)
        return {message.event.seq for message in messages if random.random() < chance} if chance else set()

    def poisoned(self, messages: Sequence[Message]) -> bool:
        poisons = [crash.payload for crash in self._crashes if crash.point == POISON]
        return any(poison in message.event.payload for poison in poisons for message in messages)


class _File:
    """A crash described in a file. It is active from the creation of the file until a process executes the crash."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._crash: Crash | None = None
        self._written = 0
        self._passages = 0

    def due(self, point: str) -> Crash | None:
        self._read()
        if self._crash is None or self._crash.point != point:
            return None
        self._passages += 1
        if self._crash.strikes(self._passages):
            with suppress(FileNotFoundError):
                self._path.rename(f"{self._path}.fired")
                return self._crash
        return None

    def _read(self) -> None:
        try:
            written = self._path.stat().st_mtime_ns
            if written != self._written:
                self._crash, self._written, self._passages = Crash.parse(self._path.read_text()), written, 0
        except FileNotFoundError:
            self._crash, self._written = None, 0


_plan: Plan | None = None
_inside = threading.local()


def arm(text: str | None = None) -> bool:
    """Wrap this process's functions for the crashes in `text` or `PENSTOCK_CRASH`. Return True if it is armed."""
    global _plan
    if text is not None:
        os.environ[VARIABLE] = text  # for child processes
    wanted = os.environ.get(VARIABLE, "")
    if _plan is not None or not wanted:
        return _plan is not None
    _plan = Plan(wanted)
    os.environ.setdefault(DRIVER_VARIABLE, str(os.getpid()))
    SqlStore.claim = _around(SqlStore.claim, "claim")  # type: ignore[method-assign]
    SqlStore.settle = _around(SqlStore.settle, "settle")  # type: ignore[method-assign]
    SqlStore.settle_in = _around(SqlStore.settle_in, "transaction")  # type: ignore[method-assign]
    Executor.finish = _before(Executor.finish, "after-handler")  # type: ignore[method-assign]
    SqlStore.stage = _around(SqlStore.stage, "stage")  # type: ignore[method-assign]
    SqlStore.commit_staged = _around(SqlStore.commit_staged, "commit")  # type: ignore[method-assign]
    Transaction._execute = _between(Transaction._execute)  # type: ignore[method-assign]
    sender.open_publisher = _crashing(sender.open_publisher)  # type: ignore[assignment, attr-defined]
    relay.deliver = deliver  # type: ignore[attr-defined]
    publishing.send_partition = send_partition
    LakeFolder.move = _after(LakeFolder.move, "in-lake")  # type: ignore[method-assign]
    return True


def deliver(spec: RelayTaskSpec, current: Slice) -> SliceCounts:
    """Arm the process, then deliver; sent to the workers of an armed relay."""
    arm()
    return relay_task.deliver(spec, current)


def send_partition(
    spec: Dispatch, stop_address: StopAddress | None, batches: Iterator["RecordBatch"]
) -> Iterator["RecordBatch"]:
    """Arm the process, then dispatch; sent to the workers of an armed relay with a step."""
    arm()
    return _send_partition(spec, stop_address, batches)


def family(pid: int) -> list[int]:
    """Return the process and its living descendants, parents first."""
    parents = living()
    found = [pid]
    for parent in found:
        found += [child for child, its_parent in parents.items() if its_parent == parent]
    return found


def _around(verb: Callable[Parameters, Result], name: str) -> Callable[Parameters, Result]:
    """Wrap a store operation: mark its transaction, and pass a crash point after it unless a claim is empty."""

    @wraps(verb)
    def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with _within(name):
            result = verb(*args, **kwargs)
        if name != "claim" or result:
            reach(f"after-{name}")
        return result

    return wrapped


def _after(step: Callable[Parameters, Result], point: str) -> Callable[Parameters, Result]:
    @wraps(step)
    def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        result = step(*args, **kwargs)
        reach(point)
        return result

    return wrapped


def _before(step: Callable[Parameters, Result], point: str) -> Callable[Parameters, Result]:
    @wraps(step)
    def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        reach(point)
        return step(*args, **kwargs)

    return wrapped


def _between(execute: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    @wraps(execute)
    def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        result = execute(*args, **kwargs)
        if name := getattr(_inside, "verb", None):
            reach(f"in-{name}")
        return result

    return wrapped


@contextmanager
def _within(name: str) -> Iterator[None]:
    _inside.verb = name
    try:
        yield
    finally:
        _inside.verb = None


def _crashing(open_publisher: Callable[[str], Publisher]) -> Callable[[str], Publisher]:
    return lambda url: CrashingPublisher(open_publisher(url))


class CrashingPublisher:
    """A publisher that can kill its process before, in the middle of, and after a batch."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self.in_order = publisher.in_order

    def publish(self, messages: Sequence[Message]) -> Outcomes:
        assert _plan is not None
        if _plan.poisoned(messages):
            kill("self")
        if crash := _plan.due("in-publish"):
            self._publisher.publish(messages[: len(messages) // 2])
            kill(crash.victim)
        refused = _plan.refused(messages)
        outcomes = self._publisher.publish([message for message in messages if message.event.seq not in refused])
        reach("after-publish")
        return {**outcomes, **dict.fromkeys(refused, Retry("refused by chance"))}

    def close(self) -> None:
        self._publisher.close()


def due(point: str) -> Crash | None:
    """Return the crash due at this passage of the point, for callers that act before the crash."""
    return None if _plan is None else _plan.due(point)


def reach(point: str) -> None:
    """Pass a crash point: kill the victim if a crash is due."""
    if crash := due(point):
        kill(crash.victim)


def kill(victim: str) -> None:
    """Kill the victim: this process, the driver, or all processes of the driver's family."""
    for pid in _doomed(victim, int(os.environ[DRIVER_VARIABLE])):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _doomed(victim: str, driver: int) -> list[int]:
    own = os.getpid()
    match victim:
        case "driver":
            return [driver]
        case "family":
            return [*(pid for pid in family(driver) if pid != own), own]
        case _:
            return [own]
