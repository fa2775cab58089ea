"""Driver of streams on Spark: starts, monitors and stops the streaming queries of each stream.

A micro-batch is read, shuffled to the state partitions of its keys, processed there, and then acknowledged.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from penstock.config.urls import url_scheme
from penstock.model.errors import UsageError
from penstock.pipeline.spark.code_shipping import parcel_of
from penstock.pipeline.spark.errors import gone, java_is_gone
from penstock.pipeline.spark.session import DEFAULT_MASTER, is_local, is_running, open_session
from penstock.pipeline.spark.shutdown import open_unless
from penstock.pipeline.streams.monitor import Monitor, Progress
from penstock.pipeline.streams.run import Counts, StreamRun
from penstock.pipeline.streams.sources.kafka.connector_jars import connector_jars
from penstock.runtime.housekeeping import Housekeeper
from penstock.runtime.signals import stopped_by_signals
from penstock.store.api import require_staging
from penstock.store.registry import open_store
from penstock.streams.app import Stream, StreamSet
from penstock.streams.sources import Kafka
from penstock.streams.state.api import StateStore
from penstock.streams.state.registry import open_state


def run_streams(
    app: StreamSet,
    *,
    spark: SparkSession | None = None,
    master: str | None = None,
    names: Sequence[str] | None = None,
    once: bool = False,
    checkpoint: str | None = None,
    stop: threading.Event | None = None,
    parallelism: int = 2,
    progress: Progress | None = None,
    jars: str | None = None,
) -> Mapping[str, Counts]:
    """Run an application's streams until `stop`, SIGTERM or Ctrl-C; with `once`, until nothing is ready.

    The current batch is finished first. Return the counts of each stream; `progress` is called with the counts
    meanwhile. Spark's checkpoint may be lost, unless it alone records the progress of a source. Without `checkpoint`, a
    temporary folder is used. `jars` is a folder with the jars of Spark's Kafka connector, for streams that read Kafka.
    Raise `Superseded` if another driver has started one of the streams.
    """
    _require_exactly_once(app.store)
    chosen = choose(app, names)
    _require_stores(app, (master or DEFAULT_MASTER) if spark is None else spark.sparkContext.master)
    ending = stop or threading.Event()
    with stopped_by_signals(ending), _java():
        session = open_unless(ending, lambda: spark or _open_session(master, chosen, jars, lasting=not once))
        if session is None:
            return {stream.name: Counts() for stream in chosen}
        _require_stores(app, session.sparkContext.master)
        runs = _runs(session, app, chosen, parallelism)
        with (
            _kept(app, chosen),
            _folder(checkpoint) as folder,
            _started(runs, folder),
        ):
            monitor = Monitor(runs, app.state, progress)
            (monitor.until_drained if once else monitor.until)(ending)
    return {run.stream.name: run.counts for run in runs}


def _require_stores(app: StreamSet, master: str | None) -> None:
    """Refuse state or events on one machine's disk if tasks run on other machines."""
    require_reachable(open_state(app.state), master)
    if url_scheme(app.store).startswith("sqlite") and not is_local(master or ""):
        raise UsageError(f"{app.store} is on the disk of one machine; on a cluster, keep events in PostgreSQL")


def _runs(spark: SparkSession, app: StreamSet, streams: Sequence[Stream], parallelism: int) -> list[StreamRun]:
    with closing(open_state(app.state)) as state:
        started = [state.start(stream.name, stream.parts) for stream in streams]
    return [StreamRun(spark, app, stream, one, parallelism) for stream, one in zip(streams, started, strict=True)]


def require_reachable(state: StateStore, master: str | None) -> None:
    """Refuse state on one machine's disk if tasks run on other machines."""
    if not state.shared and not is_local(master or ""):
        raise UsageError(f"{state.url} is on the disk of one machine; on a cluster, keep the state in PostgreSQL")


def _open_session(master: str | None, streams: Sequence[Stream], jars: str | None, *, lasting: bool) -> SparkSession:
    session = open_session(master, "penstock streams", jars=_needed_jars(streams, jars), lasting=lasting)
    if not is_local(session.sparkContext.master or ""):
        functions = [function for stream in streams for function in (stream.handler, stream.key)]
        if (code := parcel_of(functions)) is not None:
            session.sparkContext.addPyFile(str(code))
    return session


def choose(app: StreamSet, names: Sequence[str] | None = None) -> list[Stream]:
    """Return the streams of an application, or only the named ones."""
    unknown = sorted(set(names or ()) - app.streams.keys())
    if unknown:
        raise UsageError(
            f"stream {unknown[0]!r} is not defined; defined streams: {', '.join(sorted(app.streams)) or 'none'}"
        )
    if not app.streams:
        raise UsageError('application has no streams; define one with @app.stream("queue")')
    return [stream for name, stream in app.streams.items() if names is None or name in names]


def _needed_jars(streams: Sequence[Stream], folder: str | None) -> Sequence[Path]:
    """Return the jars for the class path of a new JVM. A running JVM takes no more jars."""
    reads_kafka = any(isinstance(stream.source, Kafka) for stream in streams)
    return connector_jars(folder) if reads_kafka and not is_running() else ()


def _require_exactly_once(url: str) -> None:
    """Refuse a store without staging: it cannot store emitted events exactly once."""
    with closing(open_store(url)) as store:
        require_staging(store.url, store.capabilities)


@contextmanager
def _kept(app: StreamSet, streams: Sequence[Stream]) -> Iterator[None]:
    """Reap expired leases and keep the state files open while the streams run.

    This process must reap the leases, because possibly no other process does. Tasks open and close state files at a
    lower cost while the files are open here, too.
    """
    with ExitStack() as stack:
        store = stack.enter_context(closing(open_store(app.store)))
        stack.enter_context(Housekeeper(store, [], min(stream.lease_seconds for stream in streams)))
        state = stack.enter_context(closing(open_state(app.state)))
        for stream in streams:
            stack.enter_context(state.held(stream.name))
        yield


def _folder(checkpoint: str | None) -> AbstractContextManager[str]:
    if checkpoint is not None:
        return nullcontext(checkpoint)
    return TemporaryDirectory(prefix="penstock-streams-", ignore_cleanup_errors=True)


@contextmanager
def _java() -> Iterator[None]:
    """Convert errors of a lost JVM into a one-line error."""
    try:
        yield
    except Exception as error:
        if java_is_gone(error):
            raise gone(error) from None
        raise


@contextmanager
def _started(runs: Sequence[StreamRun], folder: str) -> Iterator[None]:
    try:
        for run in runs:
            run.launch(folder)
        yield
    finally:
        for run in runs:
            run.stop()
        with ExitStack() as stack:  # finishes every run, even if another one fails
            for run in reversed(runs):
                stack.callback(run.finish)
