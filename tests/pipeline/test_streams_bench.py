"""Benchmark of streams on a small input: all contenders read the same input, and wrong sums are detected."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.ground import Ground
from benchmarks.stream_contenders import PENSTOCK, Contender, Trial, penstock_queue, transform_with_state
from benchmarks.stream_input import Input, add_up, prepare, read
from benchmarks.streams import OURS, StreamsPlan, _run
from penstock.model.errors import PenstockError, UsageError
from tests.support.servers import PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Input:
    return prepare(tmp_path_factory.mktemp("bench") / "input", events=1_200, keys=50, batch=400, lines=2)


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    with PostgresServer() as server:
        yield Ground(server)


@pytest.fixture
def trial(spark: "SparkSession", ground: Ground, given: Input, tmp_path: Path) -> Trial:
    return Trial(spark, ground, given, tmp_path / "run", 2)


def test_input_has_requested_size_and_sums(given: Input) -> None:
    events = list(read(given))
    assert (given.batches, given.events, len(events)) == (3, 1_200, 1_200)
    assert (given.expected.keys, given.expected.events) == (len({key for key, _ in events}), 1_200)
    assert add_up([("a", 1, 5), ("b", 1, 7)]) != add_up([("a", 1, 7), ("b", 1, 5)])


@pytest.mark.parametrize("contender", OURS.values(), ids=OURS)
def test_streams_compute_expected_sums(contender: Contender, trial: Trial) -> None:
    run = _run(contender, trial)
    assert min(run) > 0


def test_queue_computes_expected_sums(trial: Trial) -> None:
    trial.folder.mkdir()
    assert penstock_queue(trial).totals == trial.given.expected


def test_transform_with_state_computes_expected_sums(trial: Trial) -> None:
    run = _run(transform_with_state, trial)
    assert min(run) > 0


def test_too_few_events_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 60,000"):
        StreamsPlan(events=59_999)


def test_wrong_sums_are_detected(trial: Trial, given: Input) -> None:
    wrong = replace(given, expected=given.expected._replace(amount=1))
    with pytest.raises(PenstockError, match="wrong sums"):
        _run(PENSTOCK["SQLite"], replace(trial, given=wrong))
