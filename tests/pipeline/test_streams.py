"""Streams on Spark produce exactly the expected state, emitted events and dead letters on each state store."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from stream_processes import application, check, emit_orders, unsettled

from penstock import Outbox, connect
from penstock.pipeline.streams.driver import run_streams
from penstock.runtime.store_cache import close_stores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SECONDS = 400.0


@pytest.fixture(params=["sqlite", "rocksdb", "postgresql"])
def state(request: pytest.FixtureRequest, tmp_path: Path, postgres_url: str) -> str:
    return postgres_url if request.param == "postgresql" else f"{request.param}:///{tmp_path / 'state'}"


@pytest.fixture
def outbox(postgres_url: str) -> Iterator[Outbox]:
    with connect(postgres_url) as made:
        made.store.initialise()
        yield made
    close_stores()


def test_state_events_and_dead_letters_are_exact(
    spark: "SparkSession", outbox: Outbox, postgres_url: str, state: str, tmp_path: Path
) -> None:
    emit_orders(outbox)
    app = application(postgres_url, state)
    until = time.monotonic() + SECONDS
    while unsettled(outbox) and time.monotonic() < until:
        run_streams(app, spark=spark, once=True)
    check(outbox, state)
    assert not list(tmp_path.rglob("*.db-wal")), "a stream that has stopped leaves no logs beside its files"
