"""A broker for the tests of its publisher, lines of JSON read back, and readable failures from the shipped suite."""

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
    """A client of the server, which is up, empty and as configured at the start, whatever the test does to it."""
    with Valkey(port=valkey_server.port) as client:
        client.flushall()
        yield client
        if not valkey_server.running:
            valkey_server.start()
        client.execute_command("REPLICAOF", "NO", "ONE")
        # This connection was there before any password was set, and so may take it away.
        client.config_set("requirepass", "")
        client.config_set("maxmemory", "0")
        client.flushall()


@pytest.fixture
def broker(valkey_server: ValkeyServer, client: Any) -> ValkeyServer:
    """The server, and the promise of `client` about it."""
    return valkey_server


@pytest.fixture
def as_received() -> Callable[[dict[str, Any]], Any]:
    """What a line of JSON says was received."""
    # Imported here, after its asserts were registered for rewriting.
    from penstock.testing.publishers import StoredMessage

    def read(fields: dict[str, Any]) -> StoredMessage:
        return StoredMessage(
            **{name: fields[name] for name in StoredMessage._fields} | {"payload": payload_bytes(fields)}
        )

    return read


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver of webhooks in this process, which takes everything until it is told otherwise."""
    with Receiver(lambda _: TAKEN) as receiver:
        yield receiver


@pytest.fixture
def opened() -> Iterator[Callable[[str], Publisher]]:
    """Opens publishers, and closes them at the end."""
    publishers: list[Publisher] = []

    def open_one(url: str) -> Publisher:
        publishers.append(open_publisher(url))
        return publishers[-1]

    yield open_one
    for publisher in publishers:
        publisher.close()
