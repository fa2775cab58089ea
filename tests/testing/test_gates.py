"""The gate between a client and its server: held and lost answers, and closed connections."""

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.support.gates import Gate


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def port(listener: socket.socket) -> int:
    number: int = listener.getsockname()[1]
    return number


def test_gate_holds_answers_until_enough_requests(listener: socket.socket) -> None:
    with Gate(port(listener)) as gate, socket.create_connection(("127.0.0.1", gate.port), timeout=10) as client:
        server, _ = listener.accept()
        with server:
            gate.hold_answers(until=b"ask", count=2)
            client.sendall(b"ask")
            assert server.recv(3) == b"ask"
            server.sendall(b"answer")
            assert gate.holding
            client.sendall(b"ask")
            assert client.recv(6) == b"answer"
            assert not gate.holding


def test_closed_gate_refuses_connections(listener: socket.socket) -> None:
    with Gate(port(listener)) as gate:
        pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", gate.port), timeout=10)


def test_gate_closes_connection_if_server_is_gone(listener: socket.socket) -> None:
    with Gate(port(listener)) as gate:
        listener.close()
        with socket.create_connection(("127.0.0.1", gate.port), timeout=10) as client:
            assert client.recv(1) == b""


def test_cut_answer_is_lost_after_request_arrives() -> None:
    arrived: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server, Gate(server.getsockname()[1]) as gate:

        def answer() -> None:
            for _ in range(2):
                connection, _ = server.accept()
                with connection:
                    arrived.append(connection.recv(100))
                    connection.sendall(b"done")

        answering = threading.Thread(target=answer, daemon=True)
        answering.start()
        gate.cut_answers(to=b"PUT", count=1)
        heard = []
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", gate.port), timeout=30) as client:
                client.sendall(b"PUT it")
                heard.append(client.recv(100))
        answering.join(30)
        assert (arrived, heard, gate.cuts_left) == ([b"PUT it"] * 2, [b"", b"done"], 0)
