"""Tasks of a stream on the executors: assign rows to state partitions, and run the transaction of each state partition.

State stores and the outbox are opened lazily, once per Python worker process. Spark sends the stream itself to the
tasks: a small value with the user's functions.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import cache
from uuid import NAMESPACE_OID, UUID, uuid4, uuid5

import pyarrow as pa
from pyarrow import RecordBatch, Table

from penstock.model.errors import PenstockError, StoreConflict, StoreUnavailable
from penstock.model.event import DEFAULT_QUEUE
from penstock.model.lease import Lease, LeaseId, Token
from penstock.model.text import brief
from penstock.pipeline.streams.results import (
    APPLIED_COUNT,
    CLOCK_REPORT,
    LISTED,
    TaskError,
    TaskResult,
    all_alike,
    all_published,
    event_result,
    to_batch,
)
from penstock.pipeline.streams.rows import KEYING, Batches, Row, by_part, events_in, rows_in, values, widened
from penstock.pipeline.streams.task_spec import StreamTaskSpec, part_and_key
from penstock.runtime.lease_keeper import LeaseKeeper
from penstock.runtime.store_cache import store_of
from penstock.store.api import StagedPart
from penstock.streams.engine.arrow_work import HandlerFailed, in_order, is_plain, run_table
from penstock.streams.engine.partition import process_batch
from penstock.streams.engine.work import EventFailure
from penstock.streams.state.api import Fenced, StatePartition, StateStore, Superseded
from penstock.streams.state.registry import open_state

# Thresholds of Python's garbage collector for its young, middle and old generation.
COLLECTING = (100_000, 20, 100)


def assign(spec: StreamTaskSpec) -> Callable[[Batches], Batches]:
    """Return a function that adds the key and the state partition to each row. An invalid key fails only its event."""

    def run(batches: Batches) -> Batches:
        for batch in batches:
            rows = widened(pa.Table.from_batches([batch]))
            keyed = [part_and_key(spec, event) for event in events_in(rows, [""] * batch.num_rows)]
            parts = pa.array([part for part, _, _ in keyed], pa.int32())
            keys = pa.array([key for _, key, _ in keyed], pa.string())
            errors = pa.array([error for _, _, error in keyed], pa.string())
            names = ["part", *KEYING, *batch.schema.names]
            yield pa.RecordBatch.from_arrays([parts, keys, errors, *batch.columns], names=names)

    return run


def process(spec: StreamTaskSpec) -> Callable[[Batches], Batches]:
    """Return a function that runs the transaction of each state partition in the rows, and yields the results."""

    def run(batches: Batches) -> Batches:
        current = spec.for_this_job()
        with _rarely_collecting():
            for number, rows in by_part(current, batches):
                if current.listing:
                    yield from all_alike(number, in_order(rows), LISTED)
                else:
                    yield from _outcomes(current, number, rows)

    return run


def tick(spec: StreamTaskSpec) -> Callable[[Batches], Batches]:
    """Return a function that processes state partitions without events: those in the rows that the spec selects."""

    def run(batches: Batches) -> Batches:
        for batch in batches:
            for number in values(batch, "part"):
                if spec.parts is None or number in spec.parts:
                    yield from _outcomes(spec, number, None)

    return run


@contextmanager
def _rarely_collecting() -> Iterator[None]:
    """Raise the thresholds of Python's garbage collector. Rows are many small objects and none of them is garbage, but
    creating them triggers collections, which took a third of the time."""
    before = gc.get_threshold()
    gc.set_threshold(*COLLECTING)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _outcomes(spec: StreamTaskSpec, number: int, rows: Table | None) -> list[RecordBatch]:
    try:
        with _held(spec, rows):
            return _process_part(spec, number, rows)
    except Superseded as error:
        failed = TaskResult(TaskError.SUPERSEDED, str(error))
    except (Fenced, StoreConflict, StoreUnavailable) as error:
        failed = TaskResult(TaskError.WAITING, brief(error))
    except PenstockError as error:
        failed = TaskResult(TaskError.BROKEN, brief(error))
    return [to_batch(number, [failed])]


def _process_part(spec: StreamTaskSpec, number: int, rows: Table | None) -> list[RecordBatch]:
    with closing(_state(spec.state).open_part(spec.started, number)) as part:
        part.trim(spec.acknowledged.get(number, ()))
        results = None if rows is None else _as_a_table(spec, number, part, rows)
        if results is None:
            results = [to_batch(number, _one_by_one(spec, number, part, [] if rows is None else rows_in(spec, rows)))]
        _send(spec, number, part)
    return results


def _as_a_table(spec: StreamTaskSpec, number: int, part: StatePartition, rows: Table) -> list[RecordBatch] | None:
    """Run a batch handler on the whole table. Return None if the events must be processed one by one."""
    if spec.stream.batch is None or spec.forced_failures or not is_plain(rows):
        return None
    ordered = in_order(rows)
    try:
        with part.transaction() as tx:
            run_table(tx, spec.stream, ordered, time.time())
    except HandlerFailed:
        return None
    return all_published(spec, number, ordered)


def _one_by_one(spec: StreamTaskSpec, number: int, part: StatePartition, rows: list[Row]) -> list[TaskResult]:
    unkeyed = {row.event.arrival: EventFailure(row.key_error) for row in rows if row.key_error is not None}
    firing = replace(spec.firing, idle_advance=spec.idle_advances.get(number))
    forced_failures = {**unkeyed, **spec.forced_failures}
    events = [row.event for row in rows]
    applied, clock = process_batch(part, spec.stream, events, time.time(), forced_failures, firing)
    outcomes = zip(rows, applied, strict=True)
    results = [
        event_result(row, result.outcome)
        for row, result in outcomes
        if spec.wants_acknowledgements or row.lease is not None
    ]
    if len(results) < len(rows):
        results.append(TaskResult(APPLIED_COUNT, str(len(rows) - len(results))))
    return results if clock is None else [*results, TaskResult(CLOCK_REPORT, None, clock=clock.text())]


@contextmanager
def _held(spec: StreamTaskSpec, rows: Table | None) -> Iterator[None]:
    """Extend the leases of the rows while their handlers run."""
    if rows is None or rows.column("lease").null_count == rows.num_rows:
        yield
        return
    seconds = spec.stream.lease_seconds
    with ExitStack() as stack:
        lease_keeper = LeaseKeeper(store_of(spec.store), seconds / 3)
        stack.callback(lease_keeper.stop)
        for lease, token in set(zip(values(rows, "lease"), values(rows, "token"), strict=True)):
            if lease is not None:
                held = Lease(LeaseId(UUID(lease)), Token(UUID(token)), DEFAULT_QUEUE, seconds)
                stack.enter_context(lease_keeper.beating(held))
        yield


def _send(spec: StreamTaskSpec, number: int, part: StatePartition) -> None:
    """Write emitted events to the outbox, which commits each numbered batch once even if it is sent repeatedly."""
    write_id = uuid5(NAMESPACE_OID, f"{spec.started.identity}/{spec.stream.name}/{number}")
    store = store_of(spec.store)
    for outgoing in part.outgoing():
        staged = StagedPart(UUID(int=uuid4().int), write_id, outgoing.batch)
        store.stage(staged, outgoing.events)
        store.commit_staged(write_id, outgoing.batch, {staged.part_id: len(outgoing.events)}, once=True)
        part.sent(outgoing.batch)


@cache
def _state(url: str) -> StateStore:
    return open_state(url)
