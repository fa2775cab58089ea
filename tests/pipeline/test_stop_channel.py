"""The stop channel on a machine with other users, who can connect to it as tasks do."""

import resource
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from penstock.pipeline.spark.stop_channel import MOST_UNKNOWN, StopChannel, connection_to, hung_up
from tests.support.processes import wait_until

SECONDS = 60.0
# More connections than select() can watch, and more than the driver keeps.
IDLE_CONNECTIONS = 1_100


@pytest.fixture
def channel() -> Iterator[StopChannel]:
    with StopChannel("127.0.0.1", "127.0.0.1") as opened:
        yield opened


@pytest.fixture
def idle_connections(channel: StopChannel) -> Iterator[list[socket.socket]]:
    """Open connections as another user would, without sending anything."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8_192), hard))
    try:
        with ExitStack() as stack:
            yield [stack.enter_context(connected(channel)) for _ in range(IDLE_CONNECTIONS)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connected(channel: StopChannel) -> socket.socket:
    return socket.create_connection((channel.address.host, channel.address.port), timeout=SECONDS)


def closed(connections: list[socket.socket]) -> int:
    """Return how many connections the driver has closed."""
    poll = select.poll()
    for connection in connections:
        poll.register(connection, select.POLLIN)
    return len(poll.poll(0))


def test_tasks_are_served_despite_idle_connections(channel: StopChannel, idle_connections: list[socket.socket]) -> None:
    task = connection_to(channel.address)
    assert wait_until(lambda: channel.answer() == 1, SECONDS)
    assert task is not None
    assert wait_until(lambda: closed(idle_connections) >= IDLE_CONNECTIONS - MOST_UNKNOWN, SECONDS)
    assert closed([task]) == 0
    channel.hang_up()
    assert closed([task]) == 1


def test_other_connections_do_not_displace_tasks(channel: StopChannel) -> None:
    task = connection_to(channel.address)
    assert wait_until(lambda: channel.answer() == 1, SECONDS)
    with ExitStack() as stack:
        others = [stack.enter_context(connected(channel)) for _ in range(2 * MOST_UNKNOWN)]
        assert wait_until(lambda: closed(others) == MOST_UNKNOWN, SECONDS)
        assert not hung_up(task)


@pytest.mark.parametrize("sent", ["0" * 64, "x" * 100_000], ids=["wrong", "long"])
def test_connection_with_wrong_token_is_closed_and_not_counted(channel: StopChannel, sent: str) -> None:
    with connected(channel) as other:
        other.sendall(sent.encode())
        assert wait_until(lambda: closed([other]) == 1, SECONDS)
        assert channel.answer() == 0


def test_token_may_arrive_in_pieces(channel: StopChannel) -> None:
    token = channel.address.token.encode()
    with connected(channel) as task:
        task.sendall(token[:10])
        assert channel.answer() == 0
        task.sendall(token[10:])
        assert wait_until(lambda: channel.answer() == 1, SECONDS)
        assert closed([task]) == 0


def test_worker_reconnects_after_lost_connection(channel: StopChannel) -> None:
    lost = connection_to(channel.address)
    assert lost is not None
    lost.shutdown(socket.SHUT_RDWR)
    assert hung_up(lost)
    assert not hung_up(connection_to(channel.address))
    channel.hang_up()
    assert hung_up(connection_to(channel.address))


def test_token_is_not_shown(channel: StopChannel) -> None:
    assert channel.address.token not in repr(channel.address)
