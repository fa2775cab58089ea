"""Monitor of running streams: raises their errors, restarts queries, checks epochs and logs progress."""

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace

from penstock.model.errors import PipelineError, StoreConflict, StoreUnavailable
from penstock.pipeline.spark.errors import root_cause
from penstock.pipeline.streams.jobs import superseded
from penstock.pipeline.streams.run import Counts, StreamRun
from penstock.streams.state.registry import open_state
from penstock.telemetry import log

LOOK_SECONDS = 0.2
OWN_SECONDS = 5.0
LOG_SECONDS = 10.0
# Transient errors, after which a query is restarted. On an overloaded machine, a Python worker process may not connect
# within Spark's time-out of ten seconds. If the process in which Spark asks a source for its offsets is killed, Spark
# reports only that the query terminated.
PASSING = re.compile(
    r"Python worker failed to connect back|Broken pipe|Connection reset|terminated with exception:\s+SQLSTATE"
)
MOST_RESTARTS = 10

Progress = Callable[[Mapping[str, Counts]], None]


class Monitor:
    """Monitor of running streams. Raises `Superseded` if another driver has started one, even if no events arrive."""

    def __init__(self, runs: Sequence[StreamRun], state: str, progress: Progress | None = None) -> None:
        self._runs = runs
        self._state = state
        self._progress = progress
        self._logged = {run.stream.name: Counts() for run in runs}
        self._logged_at = self._looked_at = time.monotonic()
        self._failure: Exception | None = None
        self._restarts = 0
        self._changing = threading.Lock()

    def until(self, stop: threading.Event) -> None:
        """Start the timer threads, and monitor the streams until `stop` is set."""
        for run in self._runs:
            run.start_ticking()
        while not stop.wait(LOOK_SECONDS):
            self._look()

    def until_drained(self, stop: threading.Event) -> None:
        """Drain the streams one after the other, and monitor them until all are drained or `stop` is set."""
        draining = threading.Thread(target=self._drain, name="penstock-draining", daemon=True)
        draining.start()
        while draining.is_alive() and not stop.is_set():
            draining.join(LOOK_SECONDS)
            self._look()
        if self._failure is not None and not stop.is_set():
            raise PipelineError(f"stream failed: {root_cause(str(self._failure))}")

    def _drain(self) -> None:
        try:
            for run in self._runs:
                self._drain_events(run)
                while run.tick():  # fired timers may emit events that this stream reads
                    self._drain_events(run)
        except Exception as error:
            self._failure = error

    def _drain_events(self, run: StreamRun) -> None:
        """Drain the source, then the retry queue, to which failed events of the source are forwarded."""
        for at in range(len(run.queries)):
            drained = False
            while not drained:
                try:
                    run.queries[at].processAllAvailable()
                    drained = True
                except Exception:
                    if not self._restarted(run, at):
                        raise

    def _restarted(self, run: StreamRun, at: int) -> bool:
        """Restart a query that failed with a transient error. Return True if it runs again.

        True also if another thread has just restarted the query.
        """
        with self._changing:
            error = run.queries[at].exception()
            if run.error is not None:
                return False
            if error is None:
                return run.queries[at].isActive
            if not PASSING.search(str(error)) or self._restarts >= MOST_RESTARTS:
                return False
            self._restarts += 1
            log.warn("stream_restarted", stream=run.stream.name, error=root_cause(str(error)))
            run.launch_again(at)
            return True

    def _look(self) -> None:
        now = time.monotonic()
        for run in self._runs:
            self._look_at(run)
        if now - self._looked_at >= OWN_SECONDS:
            self._looked_at = now
            self._require_own()
        if now - self._logged_at >= LOG_SECONDS:
            self._log_progress(now - self._logged_at)
            self._logged_at = now
        if self._progress is not None:
            self._progress({run.stream.name: run.counts for run in self._runs})

    def _look_at(self, run: StreamRun) -> None:
        for at, query in enumerate(run.queries):
            if run.error is not None:
                raise run.error
            error = query.exception()
            if error is not None and not self._restarted(run, at):
                raise PipelineError(f"stream {run.stream.name!r} failed: {root_cause(str(error))}")

    def _require_own(self) -> None:
        """Raise `Superseded` if another driver has started a stream. A driver without events would not notice it."""
        try:
            with closing(open_state(self._state)) as state:
                known = {found.stream: found for found in state.streams()}
        except (StoreConflict, StoreUnavailable):
            return  # the next check may succeed
        for run in self._runs:
            if known.get(run.stream.name, run.started) != run.started:
                raise superseded(run.started)

    def _log_progress(self, seconds: float) -> None:
        for run in self._runs:
            before, now = asdict(self._logged[run.stream.name]), asdict(run.counts)
            fresh = {name: now[name] - before[name] for name in now if now[name] > before[name]}
            self._logged[run.stream.name] = replace(run.counts)
            if fresh:
                rate = fresh.get("applied", 0) / seconds
                log.info("stream_progress", stream=run.stream.name, **fresh, applied_per_second=f"{rate:.1f}")
