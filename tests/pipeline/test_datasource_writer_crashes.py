"""Streams that emit events, killed at critical steps and restarted with other cores and partitions: exactly once."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from datasource_writer_processes import ROWS, NumberStream

from penstock.outbox import connect

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(params=["postgresql", "sqlite"])
def stream(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NumberStream]:
    url = f"sqlite:///{tmp_path}/shop.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with connect(url) as outbox:
        outbox.store.initialise()
        yield NumberStream(tmp_path, url, outbox)


only_on_postgres = pytest.mark.parametrize("stream", ["postgresql"], indirect=True)


@only_on_postgres
def test_kill_between_staging_and_commit_emits_each_row_once(stream: NumberStream) -> None:
    assert stream.run(2, 4, crash="after-stage:1:family") == -signal.SIGKILL, stream.log
    assert (stream.emitted(), stream.committed(), stream.known_to_spark()) == ({}, [], [])
    assert stream.staged() > 0
    assert stream.run(1, 3) == 0, stream.log
    stream.assert_each_once()


@only_on_postgres
def test_kill_during_commit_emits_each_row_once(stream: NumberStream) -> None:
    """The kill comes after the statement that turned rows into events, and before the commit."""
    assert stream.run(2, 2, crash="in-commit:6:family") == -signal.SIGKILL, stream.log
    assert (stream.emitted(), stream.committed(), stream.staged()) == ({}, [], ROWS)
    assert stream.run(3, 5) == 0, stream.log
    stream.assert_each_once()


def test_kill_before_spark_logs_commit_emits_each_row_once(stream: NumberStream) -> None:
    assert stream.run(2, 3, crash="after-commit:1:family") == -signal.SIGKILL, stream.log
    assert (sum(stream.emitted().values()), stream.committed(), stream.known_to_spark()) == (ROWS, [0], [])
    assert stream.run(3, 2) == 0, stream.log
    stream.assert_each_once()


@only_on_postgres
def test_worker_kill_after_staging_emits_each_row_once(stream: NumberStream) -> None:
    stream.plan.write_text("after-stage")
    assert stream.run(2, 3, crash=f"@{stream.plan}") == 0, stream.log
    assert stream.plan.with_name("plan.fired").exists()
    stream.assert_each_once()
