"""Slices: first the tests without Spark, then those on a real Spark session."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import slice_functions

from penstock.model.errors import PipelineError, UsageError
from penstock.pipeline.spark.errors import root_cause
from penstock.pipeline.spark.slices import Patience, QueryOptions, Slice, run_slices
from penstock.pipeline.spark.stop_channel import StopChannel, connection_to

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORKER_DIED = """An error occurred while calling o1.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, \
most recent failure: Lost task 0.3 in stage 3.0 (TID 7) (host executor driver): org.apache.spark.SparkException: \
Python worker exited unexpectedly (crashed)
\tat org.apache.spark.api.python.BasePythonRunner
"""
PYTHON_FAILED = """most recent failure: Lost task 0.3 in stage 3.0 (TID 7): org.apache.spark.PythonException: \
Traceback (most recent call last):
  File "a.py", line 1, in f
    one()
KeyError: 'first'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 2, in f
    two()
ValueError: second
with a second line

\tat org.apache.spark.api.python.BasePythonRunner
"""
DAEMON_FAILED = """org.apache.spark.SparkException:
Error from python worker:
  Traceback (most recent call last):
    File "<frozen runpy>", line 189, in _run_module_as_main
  ModuleNotFoundError: No module named 'penstock'
PYTHONPATH was:
  /somewhere
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (WORKER_DIED, "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"),
        (PYTHON_FAILED, "ValueError: second"),
        (DAEMON_FAILED, "ModuleNotFoundError: No module named 'penstock'"),
        ("An error occurred while calling o1.x.\n: a.b.C: [SOME_ERROR] plain\n\tat java", "a.b.C: [SOME_ERROR] plain"),
        ("", "Spark reported no error message"),
    ],
)
def test_root_cause_is_one_line(text: str, line: str) -> None:
    assert root_cause(text) == line


def test_slice_ends_at_deadline() -> None:
    with StopChannel("127.0.0.1", "127.0.0.1") as channel:
        current = Slice(0, 0, 0.05, connection_to(channel.address))
        assert not current.over
        assert current.remaining_seconds > 0
        assert not current.pause(10)
        assert current.over
        assert current.remaining_seconds == 0


def test_slice_ends_if_driver_closes_stop_channel() -> None:
    with StopChannel("127.0.0.1", "127.0.0.1") as channel:
        answered, waiting = (Slice(0, 0, 60, connection_to(channel.address)) for _ in range(2))
        channel.answer()
        threading.Timer(0.05, channel.hang_up).start()
        assert not answered.pause(60)
        assert waiting.over
        channel.answer()
    assert Slice(1, 0, 60, connection_to(channel.address)).over


@pytest.mark.parametrize("function", [lambda _, __: None, threading.Lock().acquire])
def test_unimportable_slice_function_is_refused(function: Any) -> None:
    with pytest.raises(UsageError, match="slice function must be importable by name"):
        run_slices(None, function, None, parallelism=1, slice_seconds=1, on_slice=lambda *_: False)  # type: ignore[arg-type]


@pytest.mark.spark
def test_slices_run_on_all_partitions_in_same_workers(spark: "SparkSession") -> None:
    slices: list[tuple[int, list[Any]]] = []

    def on_slice(number: int, results: list[Any]) -> bool:
        slices.append((number, results))
        return number < 3

    run_slices(spark, slice_functions.describe, "x", parallelism=2, slice_seconds=0.05, on_slice=on_slice)
    assert [number for number, _ in slices] == [0, 1, 2, 3]
    for number, results in slices:
        assert [result[:3] for result in results] == [("x", number, 0), ("x", number, 1)]
    workers = {result[3] for _, results in slices for result in results}
    assert len(workers) == 2
    assert max(result[4] for result in slices[-1][1]) > 1


@pytest.mark.spark
def test_stop_ends_running_slice_and_returns_results(spark: "SparkSession", tmp_path: Path) -> None:
    stop, results = threading.Event(), list[str]()
    watcher = threading.Thread(target=lambda: (wait_for(tmp_path, "running-*", 2), stop.set()))
    watcher.start()
    run_slices(
        spark,
        slice_functions.wait_long,
        str(tmp_path),
        parallelism=2,
        slice_seconds=60,
        on_slice=lambda _, found: bool(results.extend(found)) or True,
        options=QueryOptions(stop=stop, name="one"),
    )
    watcher.join()
    assert results == ["left in good order"] * 2
    assert not spark.streams.active


@pytest.mark.spark
def test_slice_ignoring_stop_ends_after_grace_period(spark: "SparkSession", tmp_path: Path) -> None:
    stop = threading.Event()
    watcher = threading.Thread(target=lambda: (wait_for(tmp_path, "running-*", 1), stop.set()))
    watcher.start()
    started = time.monotonic()
    with pytest.raises(PipelineError, match=r"^slice did not end within 0\.2 s of the stop request"):
        run_slices(
            spark,
            slice_functions.ignore_the_end,
            str(tmp_path),
            parallelism=1,
            slice_seconds=60,
            on_slice=lambda *_: True,
            options=QueryOptions(stop=stop, grace_seconds=0.2),
        )
    watcher.join()
    assert time.monotonic() - started < 30


@pytest.mark.spark
def test_spark_retries_task_of_dead_worker(spark: "SparkSession", tmp_path: Path) -> None:
    results: list[str] = []
    run_slices(
        spark,
        slice_functions.stumble_once,
        str(tmp_path),
        parallelism=2,
        slice_seconds=0.1,
        on_slice=lambda _, found: bool(results.extend(found)),
    )
    assert results == ["up again"] * 2


@pytest.mark.spark
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (slice_functions.fail, r"^slice failed: ValueError: the reason$"),
        (slice_functions.die, r"^slice failed: .*Python worker exited unexpectedly.*$"),
    ],
)
def test_persistent_slice_failure_is_one_line_error(spark: "SparkSession", function: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message) as raised:
        run_slices(spark, function, "the reason", parallelism=1, slice_seconds=0.1, on_slice=lambda *_: True)
    assert "\n" not in str(raised.value)
    assert not spark.streams.active


def test_pauses_after_failures_grow_up_to_limit() -> None:
    patience = Patience(first_seconds=0.5, cap_seconds=3.0)
    assert [patience.pause_seconds(failures) for failures in (1, 2, 3, 4, 5_000)] == [0.5, 1.0, 2.0, 3.0, 3.0]


@pytest.mark.spark
def test_patience_limits_and_reports_consecutive_failures(spark: "SparkSession") -> None:
    reported: list[tuple[str, float]] = []
    with pytest.raises(PipelineError, match=r"^slice failed: ValueError: the reason$"):
        run_slices(
            spark,
            slice_functions.fail,
            "the reason",
            parallelism=1,
            slice_seconds=0.1,
            on_slice=lambda *_: True,
            options=QueryOptions(
                patience=Patience(failures=3, through_deaths=True, first_seconds=0.1),
                on_failure=lambda cause, seconds: reported.append((cause, seconds)),
            ),
        )
    assert reported == [("ValueError: the reason", 0.1), ("ValueError: the reason", 0.2)]
    assert not spark.streams.active


@pytest.mark.spark
def test_dead_workers_do_not_end_query(spark: "SparkSession", tmp_path: Path) -> None:
    reported: list[str] = []
    results: list[str] = []
    run_slices(
        spark,
        slice_functions.die_often,
        str(tmp_path),
        parallelism=1,
        slice_seconds=0.1,
        on_slice=lambda _, found: bool(results.extend(found)),
        options=QueryOptions(
            patience=Patience(failures=1, through_deaths=True, first_seconds=0.1),
            on_failure=lambda cause, _: reported.append(cause),
        ),
    )
    assert results == ["alive"]
    assert reported == ["org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)."]


@pytest.mark.spark
def test_failed_query_is_restarted(spark: "SparkSession", tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    reported: list[str] = []

    def mend(cause: str, _: float) -> None:
        reported.append(cause)
        checkpoint.unlink()

    def on_slice(number: int, _: list[Any]) -> bool:
        if not reported and number == 1:
            shutil.rmtree(checkpoint)
            checkpoint.write_text("in the way")
        return not (reported and number == 1)

    run_slices(
        spark,
        slice_functions.describe,
        "x",
        parallelism=1,
        slice_seconds=0.05,
        on_slice=on_slice,
        options=QueryOptions(
            checkpoint=str(checkpoint), patience=Patience(failures=2, first_seconds=0.1), on_failure=mend
        ),
    )
    assert len(reported) == 1
    assert not spark.streams.active


@pytest.mark.spark
def test_error_in_on_slice_is_raised_unchanged(spark: "SparkSession") -> None:
    def on_slice(_: int, __: list[Any]) -> bool:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        run_slices(spark, slice_functions.describe, "x", parallelism=1, slice_seconds=0.05, on_slice=on_slice)
    assert not spark.streams.active


@pytest.mark.spark
def test_checkpoint_continues_slice_numbers(spark: "SparkSession", tmp_path: Path) -> None:
    numbers: list[int] = []

    def two_more(number: int, _: list[Any]) -> bool:
        numbers.append(number)
        return len(numbers) % 2 == 1

    for _ in range(2):
        run_slices(
            spark,
            slice_functions.describe,
            "x",
            parallelism=1,
            slice_seconds=0.05,
            on_slice=two_more,
            options=QueryOptions(checkpoint=str(tmp_path / "checkpoint")),
        )
    assert numbers[:2] == [0, 1]
    assert numbers[2] in (1, 2, 3)  # the last batch may run again, as after a crash
    assert numbers[3] == numbers[2] + 1


DRIVER = """
import sys, signal, threading
import slice_functions
from penstock.pipeline import open_session
from penstock.pipeline.spark.slices import QueryOptions, run_slices

folder, stop = sys.argv[1], threading.Event()
spark = open_session("local[2]", "driver")
signal.signal(signal.SIGINT, lambda *_: stop.set())
signal.signal(signal.SIGTERM, lambda *_: stop.set())
print(spark.sparkContext._gateway.proc.pid, flush=True)
run_slices(spark, slice_functions.wait_long, folder, parallelism=2, slice_seconds=60, options=QueryOptions(stop=stop),
           on_slice=lambda _, results: print(*results, sep="; ", flush=True) or True)
spark.stop()
"""


@contextmanager
def a_driver(folder: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A driver in a separate process, and the ids of its JVM and its Python worker processes."""
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    command = [sys.executable, "-c", DRIVER, str(folder)]
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as driver:
        try:
            assert driver.stdout is not None
            java = int(driver.stdout.readline())
            yield driver, [java, *(int(found.read_text()) for found in wait_for(folder, "running-*", 2))]
        finally:
            driver.kill()


@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_to_process_group_ends_slice_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with a_driver(tmp_path) as (driver, others):
        os.killpg(driver.pid, number)
        output, _ = driver.communicate(timeout=60)
    assert output == "left in good order; left in good order\n"
    assert driver.returncode == 0
    assert_gone(others)


@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.slow
def test_no_process_survives_killed_driver(tmp_path: Path) -> None:
    with a_driver(tmp_path) as (driver, others):
        driver.kill()
    assert_gone(others)


def wait_for(folder: Path, pattern: str, count: int, seconds: float = 60) -> list[Path]:
    deadline = time.monotonic() + seconds
    while len(found := list(folder.glob(pattern))) < count:
        assert time.monotonic() < deadline, f"no {pattern} after {seconds} s"
        time.sleep(0.02)
    return found


def assert_gone(processes: list[int], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while left := [process for process in processes if alive(process)]:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.05)


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
