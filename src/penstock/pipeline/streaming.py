"""Streams on Spark, the driver's side: a streaming query for each, whose micro-batches are claimed, shuffled to the
parts that their keys belong to, processed there, and then acknowledged."""

import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from penstock.errors import PipelineError, UsageError
from penstock.pipeline.session import is_local, open_session
from penstock.pipeline.spark_state import SparkStateRun, is_sparks, require_checkpoint
from penstock.pipeline.stream_batches import Counts, StreamRun
from penstock.streams.app import Stream, StreamSet
from penstock.streams.state import open_state
from penstock.streams.state.base import Started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_SECONDS = 0.2


def run_streams(
    app: StreamSet,
    *,
    spark: "SparkSession | None" = None,
    master: str | None = None,
    names: Sequence[str] | None = None,
    once: bool = False,
    checkpoint: str | None = None,
    stop: threading.Event | None = None,
    parallelism: int = 2,
) -> Mapping[str, Counts]:
    """Run an application's streams until `stop` is set; with `once`, until nothing is ready. Returns what became of
    the events, by stream.

    Spark's checkpoint keeps nothing that counts, except for sources that only it knows the progress of, and for
    `state="spark:"`; without `checkpoint` it lies in a temporary folder. `Superseded` if another driver has started one
    of the streams.
    """
    chosen = _chosen(app, names)
    if is_sparks(app.state):
        require_checkpoint(checkpoint)
    session = spark or open_session(master or "local[*]")
    runs: list[StreamRun]
    if is_sparks(app.state):
        runs = [SparkStateRun(session, app, stream, parallelism) for stream in chosen]
    else:
        started = _started_state(session, app.state, chosen)
        runs = [StreamRun(session, app, stream, one, parallelism) for stream, one in zip(chosen, started, strict=True)]
    with _folder(checkpoint) as folder, _started(runs, folder) as queries:
        _watch(runs, queries, once=once, stop=stop or threading.Event())
    return {run.stream.name: run.counts for run in runs}


def _started_state(session: "SparkSession", url: str, streams: Sequence[Stream]) -> list[Started]:
    state = open_state(url)
    if not state.shared and not is_local(session.sparkContext.master or ""):
        raise UsageError(f"{state.url} is on one machine's disk; on a cluster keep the state in PostgreSQL")
    started = [state.start(stream.name, stream.parts) for stream in streams]
    state.close()
    return started


def _chosen(app: StreamSet, names: Sequence[str] | None) -> list[Stream]:
    unknown = sorted(set(names or ()) - app.streams.keys())
    if unknown:
        raise UsageError(f"there is no stream {unknown[0]!r}; there are: {', '.join(sorted(app.streams)) or 'none'}")
    if not app.streams:
        raise UsageError('this application has no streams: give it one, @app.stream("queue")')
    return [stream for name, stream in app.streams.items() if names is None or name in names]


@contextmanager
def _folder(checkpoint: str | None) -> Iterator[str]:
    if checkpoint is not None:
        yield checkpoint
        return
    made = mkdtemp(prefix="penstock-streams-")
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextmanager
def _started(runs: Sequence[StreamRun], folder: str) -> "Iterator[list[StreamingQuery]]":
    queries: list[Any] = []
    try:
        for run in runs:
            queries.append(run.start(f"{folder}/{run.stream.name}"))
        yield queries
    finally:
        for run in runs:
            run.stop()
        for query in queries:
            query.stop()


def _watch(
    runs: Sequence[StreamRun], queries: "Sequence[StreamingQuery]", *, once: bool, stop: threading.Event
) -> None:
    if once:
        for run, query in zip(runs, queries, strict=True):
            _drain(run, query)
        return
    while not stop.wait(LOOK_SECONDS):
        for run, query in zip(runs, queries, strict=True):
            _require_well(run, query)


def _drain(run: StreamRun, query: "StreamingQuery") -> None:
    try:
        query.processAllAvailable()
    except Exception:
        _require_well(run, query)
        raise
    _require_well(run, query)


def _require_well(run: StreamRun, query: "StreamingQuery") -> None:
    if run.error is not None:
        raise run.error
    error = query.exception()
    if error is not None:
        raise PipelineError(f"stream {run.stream.name} has failed: {str(error).splitlines()[0]}")
