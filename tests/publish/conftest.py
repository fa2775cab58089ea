"""Shared fixtures: a Valkey server and its client, an HTTP receiver, publishers, and reading of JSON lines."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from http_receiver import TAKEN, Receiver
from valkey import Valkey

from penstock.publish.api import Publisher
from penstock.publish.json_message import payload_bytes
from penstock.publish.registry import open_publisher
from tests.support.servers import ValkeyServer


@pytest.fixture
def client(valkey_server: ValkeyServer) -> Iterator[Any]:
    """A client of the server. At the end of the test, restores a running, empty server with the default settings."""
    with Valkey(port=valkey_server.port) as client:
        client.flushall()
        yield client
        if not valkey_server.running:
            valkey_server.start()
        client.execute_command("REPLICAOF", "NO", "ONE")
        # This connection is older than any password of the test, and so still has access.
        client.config_set("requirepass", "")
        client.config_set("maxmemory", "0")
        client.flushall()


@pytest.fixture
def broker(valkey_server: ValkeyServer, client: Any) -> ValkeyServer:
    """The Valkey server, restored by `client` after the test."""
    return valkey_server


@pytest.fixture
def as_received() -> Callable[[dict[str, Any]], Any]:
    """A function that returns the stored message of a JSON line's fields."""
    # Imported here, after pytest has registered the module for assertion rewriting.
    from penstock.testing.publishers import StoredMessage

    def read(fields: dict[str, Any]) -> StoredMessage:
        return StoredMessage(
            **{name: fields[name] for name in StoredMessage._fields} | {"payload": payload_bytes(fields)}
        )

    return read


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver of webhooks in this process. Accepts all requests until a test changes its `answer`."""
    with Receiver(lambda _: TAKEN) as receiver:
        yield receiver


@pytest.fixture
def opened() -> Iterator[Callable[[str], Publisher]]:
    """A function that opens publishers, which are closed after the test."""
    publishers: list[Publisher] = []

    def open_one(url: str) -> Publisher:
        publishers.append(open_publisher(url))
        return publishers[-1]

    yield open_one
    for publisher in publishers:
        publisher.close()
