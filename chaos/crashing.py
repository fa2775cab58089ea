"""Crash points of an exactly-once stream: its driver and tasks pass the points of `chaos.steps` and may die there.

The stream's code is unchanged; `arm()` wraps its functions from outside. The armed driver sends its tasks `assign` and
`process` of this module, which arm the Python worker processes, where the state store gets crash points too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any

from penstock.model.event import Event
from penstock.pipeline.streams import partitioning as stream_keys
from penstock.pipeline.streams import run as stream_batches
from penstock.pipeline.streams import task as stream_tasks
from penstock.pipeline.streams.jobs import Row
from penstock.pipeline.streams.rows import Batches
from penstock.pipeline.streams.run import StreamRun
from penstock.pipeline.streams.sources.base import SparkSource
from penstock.pipeline.streams.task_spec import StreamTaskSpec
from penstock.streams.app import Handler
from penstock.streams.state.api import (
    Arrival,
    PartTransaction,
    Saved,
    Started,
    StateColumns,
    StatePartition,
    StateStore,
)
from tests.support import crashes

_armed = False


def arm() -> None:
    """Install the crash points in this process if `PENSTOCK_CRASH` is set."""
    global _armed
    if _armed or not crashes.arm():
        return
    _armed = True
    stream_keys.assign = assign  # type: ignore[attr-defined]
    stream_keys.default_key = None  # type: ignore[assignment, attr-defined] # so that all rows pass through Python, and the crash point
    stream_batches.process = process  # type: ignore[attr-defined]
    stream_tasks.open_state = _opening(stream_tasks.open_state)  # type: ignore[assignment, attr-defined]
    StreamRun._acknowledge = _acknowledging(StreamRun._acknowledge)  # type: ignore[assignment, method-assign]


def assign(spec: StreamTaskSpec) -> Callable[[Batches], Batches]:
    """Return the function that reads and keys events, for a worker process that arms itself first."""
    inner = stream_tasks.assign(spec)

    def run(batches: Batches) -> Batches:
        arm()
        for batch in inner(batches):
            crashes.reach("stream-read")
            yield batch

    return run


def process(spec: StreamTaskSpec) -> Callable[[Batches], Batches]:
    """Return the function that processes state partitions, for a worker process that arms itself first."""
    inner = stream_tasks.process(replace(spec, stream=replace(spec.stream, handler=_passing(spec.stream.handler))))

    def run(batches: Batches) -> Batches:
        arm()
        return inner(_shuffled(batches))

    return run


def _shuffled(batches: Batches) -> Batches:
    for batch in batches:
        crashes.reach("stream-shuffled")
        yield batch


def _passing(handler: Callable[..., None]) -> Handler:
    def handle(event: Any, ctx: Any) -> None:
        handler(event, ctx)
        crashes.reach("stream-handled")

    return handle


def _opening(open_state: Callable[[str], StateStore]) -> Callable[[str], Any]:
    return lambda url: CrashingState(open_state(url))


Acknowledge = Callable[[StreamRun, SparkSource, Sequence[Row]], None]


def _acknowledging(acknowledge: Acknowledge) -> Acknowledge:
    @wraps(acknowledge)
    def wrapped(run: StreamRun, source: SparkSource, rows: Sequence[Row]) -> None:
        crashes.reach("stream-before-acknowledgement")
        if len(rows) > 1 and (crash := crashes.due("stream-in-acknowledgement")):
            acknowledge(run, source, rows[: len(rows) // 2])
            crashes.kill(crash.victim)
        acknowledge(run, source, rows)
        crashes.reach("stream-acknowledged")

    return wrapped


class _Around:
    """Base of the wrappers: delegates all other attributes to the wrapped object."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class CrashingState(_Around):
    """A state store whose state partitions have crash points."""

    _inner: StateStore

    def open_part(self, started: Started, number: int) -> "CrashingPart":
        part = CrashingPart(self._inner.open_part(started, number))
        crashes.reach("stream-opened")
        return part


class CrashingPart(_Around):
    """A state partition with crash points before and after a commit and after a trim."""

    _inner: StatePartition

    @contextmanager
    def transaction(self) -> Iterator["CrashingTransaction"]:
        with self._inner.transaction() as transaction:
            yield CrashingTransaction(transaction)
            crashes.reach("stream-before-commit")
        crashes.reach("stream-committed")

    def trim(self, arrivals: Sequence[Arrival]) -> None:
        self._inner.trim(arrivals)
        if arrivals:
            crashes.reach("stream-trimmed")


class CrashingTransaction(_Around):
    """A transaction with a crash point after each kind of write."""

    _inner: PartTransaction

    def fresh(self, arrivals: Sequence[Arrival]) -> set[Arrival]:
        entered = self._inner.fresh(arrivals)
        if entered:
            crashes.reach("stream-entered")
        return entered

    def advance(self, offsets: Mapping[str, int]) -> None:
        self._inner.advance(offsets)
        crashes.reach("stream-entered")

    def save(self, changed: Mapping[str, Saved | None]) -> None:
        self._inner.save(changed)
        crashes.reach("stream-saved")

    def save_columns(self, columns: StateColumns, expires_at: float | None) -> None:
        self._inner.save_columns(columns, expires_at)
        crashes.reach("stream-saved")

    def emit(self, events: Sequence[Event]) -> None:
        self._inner.emit(events)
        crashes.reach("stream-emitted")
