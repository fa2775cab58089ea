"""Fixtures of the pipeline tests, with one Spark session for all: starting a session takes seconds."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from step_env import Ground
from valkey import Valkey
from valkey_env import ValkeyGround

from penstock.model.errors import UsageError
from penstock.outbox import connect
from penstock.pipeline.spark import stop_channel
from penstock.pipeline.streams.sources.kafka.connector_jars import connector_jars
from tests.support.servers import ValkeyServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A JVM that writes the class-data archive takes long to end.
JVM_END_SECONDS = 120


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    from penstock.pipeline import open_session

    session = open_session("local[2]", "penstock-tests", jars=_connector())
    yield session
    session.stop()
    end_jvm()


def end_jvm() -> None:
    """End the JVM and wait for its exit. Without this call it would end only after this process."""
    from pyspark import SparkContext

    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(JVM_END_SECONDS)


def _connector() -> Sequence[Path]:
    """Return the jars of Spark's Kafka connector; none if they are not installed."""
    try:
        return connector_jars()
    except UsageError:
        return ()


@pytest.fixture(autouse=True)
def _no_connections_to_drivers() -> Iterator[None]:
    """Close the connections to drivers, which a Python worker process would keep open until its end."""
    yield
    for connection in stop_channel._connections.values():
        connection.close()
    stop_channel._connections.clear()


@pytest.fixture
def reads_kafka() -> None:
    """Skip a test that needs the Kafka connector if the connector is missing; fail the test in CI."""
    try:
        connector_jars()
    except UsageError as missing:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"{missing}; or fetch it with `make services`")


@pytest.fixture
def ground(postgres_url: str, tmp_path: Path) -> Iterator[Ground]:
    with connect(postgres_url) as outbox:
        outbox.store.initialise()
        yield Ground(postgres_url, outbox, tmp_path)


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Ground]:
    url = f"sqlite:///{tmp_path}/penstock.db"
    with connect(url) as outbox:
        outbox.store.initialise()
        yield Ground(url, outbox, tmp_path)


@pytest.fixture
def valkey(valkey_server: ValkeyServer) -> Iterator[ValkeyGround]:
    """The Valkey server: running, empty and without a password. A test may stop it or change its password."""
    with Valkey(port=valkey_server.port) as client:
        client.flushall()
        yield ValkeyGround(valkey_server, client)
        valkey_server.start()
        client.config_set("requirepass", "")
        client.flushall()
