"""Stateful events per second: Penstock's streams by state store, compared with PySpark's `transformWithState`.

All contenders alternate on the same files, with micro-batches of the same size, and the sums of each are checked. The
commits in Spark's checkpoints give the times; the first commits are excluded, and with them the start. Before the first
round the compared contenders run once as warm-up: the JVM compiles hot code in its first minutes, and streams run for
months.
"""

import json
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.cpu import CpuMeter
from benchmarks.ground import SETTINGS, Ground
from benchmarks.plan import Figure, Measured, at_least
from benchmarks.report import describe, documents, table
from benchmarks.stream_contenders import (
    BATCHES,
    PENSTOCK,
    Contender,
    Trial,
    penstock_queue,
    transform_with_state,
)
from benchmarks.stream_input import Input, prepare
from benchmarks.stream_recovery import Recovery, measure_recovery
from penstock.model.errors import PenstockError, UsageError
from penstock.pipeline.streams.sources.queue import QUEUE_LIMIT
from tests.support.servers import PostgresServer

SPARKS = "transformWithState"
OURS = PENSTOCK | BATCHES
WARMING = (*OURS, SPARKS)
GROWING = ("SQLite", "RocksDB", *BATCHES)
PACKAGES = ("penstock", "pyspark", "pyarrow", "rocksdict")
WATCH_SECONDS = 0.1
KEPT_BATCHES = "spark.sql.streaming.minBatchesToRetain"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsPlan:
    """Size of the benchmark."""

    events: int = 1_000_000
    keys: int = 10_000
    many_keys: int = 1_000_000
    batch: int = 20_000
    """Events per micro-batch: as many as two claims of a queue."""
    rounds: int = 3
    tasks: int = 2

    def __post_init__(self) -> None:
        least = 3 * max(self.batch, self.tasks * QUEUE_LIMIT)
        if self.events < least:
            raise UsageError(f"events must be at least {least:,} (three micro-batches), got {self.events:,}")


class Run(NamedTuple):
    """Result of one run of a contender."""

    per_second: float
    cpu_micros: float
    bytes_a_key: float


Runs = Mapping[str, list[Run]]


def measure(ground: Ground, plan: StreamsPlan) -> Measured:
    from penstock.pipeline import open_session

    # Settings for long-running streams. A new session ignores the settings of other benchmarks.
    spark = open_session(f"local[{plan.tasks}]", lasting=True).newSession()
    spark.conf.set(KEPT_BATCHES, str(2 + plan.events // plan.batch))  # the commit files give the times
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as made:
        folder = Path(made)
        few = _prepare(ground, plan, folder / "few", plan.keys)
        many = _prepare(ground, plan, folder / "many", plan.many_keys)
        contenders = _contenders(few, many)
        runs: dict[str, list[Run]] = {name: [] for name in contenders}
        for number in range(plan.rounds + 1):
            for name in contenders if number else WARMING:
                contender, given = contenders[name]
                ground.note(f"streams, round {number} of {plan.rounds}: {name}" + ("" if number else " (to warm up)"))
                place = folder / f"run-{number}-{name.replace(' ', '-')}"
                run = _run(contender, Trial(spark, ground, given, place, plan.tasks))
                ground.note("  {:,.0f} events a second, {:.1f} µs of CPU time each".format(*run))
                if number:
                    runs[name].append(run)
        ground.note("recovery after a kill, beside a cold start")
        recovery = measure_recovery("sqlite", few, folder / "recovery", plan.tasks)
    figures = (*_rates(runs), *_ratios(runs), *_recovery(recovery), *_sizes(runs))
    return Measured(figures, {name: [run._asdict() for run in of] for name, of in runs.items()})


def _contenders(few: Input, many: Input) -> dict[str, tuple[Contender, Input]]:
    """Return the contenders in the order of execution, each with its input.

    A run with many keys directly follows the one with few keys, because the machine's speed may change within minutes.
    """
    contenders: dict[str, tuple[Contender, Input]] = {}
    for name, run in OURS.items():
        contenders[name] = run, few
        if name in GROWING:
            contenders[_many(name)] = run, many
    return contenders | {SPARKS: (transform_with_state, few), "a queue": (penstock_queue, few)}


def _prepare(ground: Ground, plan: StreamsPlan, folder: Path, keys: int) -> Input:
    ground.note(f"writing {plan.events:,} events of {keys:,} keys")
    return prepare(folder, events=plan.events, keys=keys, batch=plan.batch, lines=plan.tasks)


def _many(name: str) -> str:
    return f"{name}, many keys"


def _rates(runs: Runs) -> list[Figure]:
    figures: list[Figure] = []
    for name, of in runs.items():
        figures.append(Figure(name, median(run.per_second for run in of), "events/s"))
        figures.append(Figure(f"{name}, CPU time", median(run.cpu_micros for run in of), "µs/event"))
    return figures


def _ratios(runs: Runs) -> list[Figure]:
    figures = []
    for name in OURS:
        target = at_least(10) if name in BATCHES else None
        figures.append(Figure(f"{name} / {SPARKS}", ratio(runs[name], runs[SPARKS]), "times", target))
        saved = (theirs.cpu_micros / ours.cpu_micros for theirs, ours in zip(runs[SPARKS], runs[name], strict=True))
        figures.append(Figure(f"{SPARKS} / {name}, CPU time", median(saved), "times"))
    for name in GROWING:
        figures.append(Figure(f"{name}, many keys / few", ratio(runs[_many(name)], runs[name]), "times", at_least(0.7)))
    return figures


def _recovery(recovery: Recovery) -> list[Figure]:
    return [
        Figure("first commit after a kill", recovery.after_kill, "s"),
        Figure("first commit after a cold start", recovery.cold_start, "s"),
    ]


def _sizes(runs: Runs) -> list[Figure]:
    return [
        Figure(f"state of a key, {name}", median(run.bytes_a_key for run in of), "bytes") for name, of in runs.items()
    ]


def ratio(ours: list[Run], theirs: list[Run]) -> float:
    """Return the median of the ratios of each round: a slowdown of the whole machine affects both contenders."""
    return median(one.per_second / other.per_second for one, other in zip(ours, theirs, strict=True))


def _run(contender: Contender, trial: Trial) -> Run:
    """Run a contender and check its sums. The first batches are excluded, because every contender starts slowly."""
    trial.folder.mkdir(parents=True)
    with _Watch(trial.checkpoint / "commits", warm=trial.given.batches // 10) as watch:
        outcome = contender(trial)
    if outcome.totals != trial.given.expected:
        raise PenstockError(f"invalid run: wrong sums, expected {trial.given.expected}, got {outcome.totals}")
    first, *_, last = watch.seen.items()
    batches = len(list(watch.folder.glob("[0-9]*")))
    events = trial.given.events * (last[0] - first[0]) / batches
    seconds = (watch.folder / str(last[0])).stat().st_mtime - (watch.folder / str(first[0])).stat().st_mtime
    return Run(events / seconds, 1e6 * (last[1] - first[1]) / events, outcome.size_bytes / outcome.totals.keys)


class _Watch:
    """Records the CPU time at each commit, from batch number `warm` on."""

    def __init__(self, folder: Path, *, warm: int) -> None:
        self.folder = folder
        self.seen: dict[int, float] = {}
        self._warm = warm
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "_Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        meter = CpuMeter()
        while not self._over.wait(WATCH_SECONDS):
            last, taken = max((int(path.name) for path in self.folder.glob("[0-9]*")), default=-1), meter.read()
            if last >= self._warm and last not in self.seen:
                self.seen[last] = taken


def print_report(plan: StreamsPlan, *, as_json: bool) -> None:
    """Start a server, measure, and print the figures on standard output."""
    machine = describe() | {name: version(name) for name in PACKAGES}
    with PostgresServer(fsync=True, settings=SETTINGS) as server:
        measured = measure(Ground(server), plan)
    if as_json:
        whole: dict[str, Any] = {"machine": machine, "plan": asdict(plan), "figures": documents(measured.figures)}
        print(json.dumps(whole | {"details": measured.details}, indent=2))
    else:
        print("\n".join(table(measured.figures)))
