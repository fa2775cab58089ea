"""Fixtures for all tests: real servers, shared by the session, and a fresh database for each test."""

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from penstock.model.errors import MissingDriver
from tests.support.servers import (
    KafkaServer,
    MariadbServer,
    NatsServer,
    PgBouncer,
    PostgresServer,
    RabbitServer,
    S3Server,
    Server,
    ValkeyServer,
)

# Rewrite the assertions of the shipped suites for readable failures, before any test module imports the suites.
pytest.register_assert_rewrite(
    "penstock.testing.publishers",
    "penstock.testing.brokers",
    "penstock.testing.states",
    "penstock.testing.stores",
    "penstock.testing.workers",
)

AnyServer = TypeVar("AnyServer", bound=Server)


@contextmanager
def started(server: AnyServer) -> Iterator[AnyServer]:
    """Run the server. If its binaries are missing, skip the test, but fail in CI."""
    try:
        server.start()
    except MissingDriver as missing:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(missing))
    with server:
        yield server


# A shell starts background processes with SIGINT ignored, and their children inherit that; tests send SIGINT.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _log_as_it_was() -> Iterator[None]:
    """Restore the log's settings after each test: commands that run in this process change them."""
    log = logging.getLogger("penstock")
    handlers, level, propagate = list(log.handlers), log.level, log.propagate
    yield
    log.handlers[:], log.propagate = handlers, propagate
    log.setLevel(level)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with started(PostgresServer(fsync=False)) as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """Create a fresh, empty database."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariadbServer]:
    with started(MariadbServer(fsync=False)) as server:
        yield server


@pytest.fixture
def mariadb_url(mariadb_server: MariadbServer) -> Iterator[str]:
    """Create a fresh, empty database."""
    url = mariadb_server.create_database()
    yield url
    mariadb_server.drop_database(url)


@pytest.fixture(scope="session")
def pgbouncer(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    with started(PgBouncer(postgres_server)) as pooler:
        yield pooler


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[ValkeyServer]:
    with started(ValkeyServer(fsync=False)) as server:
        yield server


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    with started(NatsServer(fsync=False)) as server:
        yield server


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaServer]:
    with started(KafkaServer(fsync=False)) as server:
        yield server


@pytest.fixture(scope="session")
def rabbit_server() -> Iterator[RabbitServer]:
    with started(RabbitServer()) as server:
        yield server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with started(S3Server()) as server:
        yield server
