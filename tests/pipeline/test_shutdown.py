"""Shutdown of drivers that are still starting."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NoReturn

import pytest
from step_env import Ground

from penstock import Streams
from penstock.model.errors import PipelineError
from penstock.pipeline.spark.shutdown import open_unless
from penstock.pipeline.streams.driver import run_streams
from penstock.runtime.store_cache import close_stores
from tests.support.processes import command_of, living, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = 120.0
RUNNER = "python_streaming_source_runner"


def _fails() -> NoReturn:
    raise PipelineError("Java ended with code -15")


def test_jvm_ended_by_stop_signal_is_no_error() -> None:
    ending = threading.Event()
    ending.set()
    assert open_unless(ending, _fails) is None


def test_failure_to_start_without_stop_is_error() -> None:
    with pytest.raises(PipelineError, match="-15"):
        open_unless(threading.Event(), _fails)


@pytest.mark.spark
@pytest.mark.parametrize("seconds", [0.0, 0.3, 1.0])
def test_stream_stopped_during_start_leaves_no_process(spark: "SparkSession", embedded: Ground, seconds: float) -> None:
    app = Streams(embedded.url, state=f"sqlite:///{embedded.folder}/state")
    app.stream("orders", parts=2)(lambda event, ctx: None)
    ending = threading.Event()

    def end() -> None:
        wait_until(lambda: bool(spark.streams.active), SECONDS)
        ending.wait(seconds)
        ending.set()

    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(end)
        run_streams(app, spark=spark, stop=ending)
        future.result(SECONDS)
    close_stores()
    assert wait_until(lambda: not runners(spark), SECONDS)


def runners(spark: "SparkSession") -> list[int]:
    """Return the Python processes of this session that plan data sources."""
    java = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    return [pid for pid, parent in living().items() if parent == java and RUNNER.encode() in command_of(pid)]
