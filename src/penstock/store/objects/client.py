"""Asking the broker, over HTTP: one JSON request and one JSON answer at a time, over connections that stay open."""

import http.client
import json
import socket
import threading
from collections.abc import Mapping
from typing import Any

from penstock import errors
from penstock.errors import PenstockError, StoreError
from penstock.store.objects.commit import NotTheBroker
from penstock.store.objects.values import BrokerRow

SECRET = "penstock-secret"  # noqa: S105
PATH = "/penstock/queue"
ANSWERED, FORBIDDEN, ELSEWHERE, REFUSED = 200, 403, 409, 422


class Unreachable(Exception):
    """No answer: whether the request was carried out, nobody knows."""


class Client:
    """Connections to one broker."""

    def __init__(self, broker: BrokerRow, answer_seconds: float) -> None:
        self.broker = broker
        self._seconds = answer_seconds
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self._closed = False

    def ask(self, request: Mapping[str, Any]) -> Any:
        body = json.dumps(request, ensure_ascii=False).encode()
        connection = self._connection()
        try:
            connection.request("POST", PATH, body, {SECRET: self.broker.secret, "content-type": "application/json"})
            response = connection.getresponse()
            status, data = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise Unreachable(str(error)) from error
        self._put_back(connection)
        try:
            return _understood(status, data)
        except ValueError as error:
            raise Unreachable("somebody else listens at its address") from error

    def _connection(self) -> http.client.HTTPConnection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        host, _, port = self.broker.address.rpartition(":")
        connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=self._seconds)
        try:
            connection.connect()
        except OSError as error:
            raise Unreachable(str(error)) from error
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _put_back(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            self._closed, idle, self._idle = True, self._idle, []
        for connection in idle:
            connection.close()


def _understood(status: int, data: bytes) -> Any:
    if status == ANSWERED:
        return json.loads(data)
    if status == ELSEWHERE:
        raise NotTheBroker(None)
    if status == FORBIDDEN:
        raise Unreachable("somebody else listens at its address")
    if status == REFUSED:
        name, message = json.loads(data)
        raise refusal(name, message)
    raise StoreError(f"the broker answered with status {status}: {data[:200].decode(errors='replace')}")


def refusal(name: str, message: str) -> PenstockError:
    """The error that the broker raised, here. Only Penstock's own are made from what came over the wire."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, PenstockError):
        error = kind.__new__(kind)
        Exception.__init__(error, message)
        return error
    return StoreError(message)
