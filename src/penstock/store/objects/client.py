"""Client sessions: send requests to a broker in another process; each change is executed at most once."""

import http.client
import json
import socket
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from uuid import uuid4

from penstock.model import errors
from penstock.model.errors import PenstockError, StoreError
from penstock.store.objects.document import BrokerRow
from penstock.store.objects.group_commit import NotTheBroker

PATH = "/penstock/queue"
# The server closes connections that are idle for 5 seconds.
REUSE_SECONDS = 3.0


class Unreachable(Exception):
    """No reply from the broker. The request may or may not have been executed."""


class ClientSession:
    """A client session and its connection. A session sends one request at a time, and numbers its changes."""

    def __init__(self) -> None:
        self.session_id = uuid4().hex
        self.number = 0
        self._broker_id = ""
        self._used = 0.0
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, broker: BrokerRow, request: Mapping[str, Any], seconds: float) -> Any:
        """Send a request and return the reply. Raise the broker's error, `NotTheBroker` or `Unreachable`."""
        body = json.dumps(request, ensure_ascii=False).encode()
        headers = {"Authorization": f"Bearer {broker.secret}", "Content-Type": "application/json"}
        try:
            connection = self._connected(broker, seconds)
            connection.request("POST", PATH, body, headers)
            response = connection.getresponse()
            status, data = response.status, response.read()
            self._used = time.monotonic()
            return _reply(status, data)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unreachable(str(error)) from error
        except ValueError as error:
            raise Unreachable("another server listens at the broker's address") from error

    def _connected(self, broker: BrokerRow, seconds: float) -> http.client.HTTPConnection:
        fresh = self._broker_id == broker.broker_id and time.monotonic() - self._used < REUSE_SECONDS
        if self._connection is not None and fresh:
            return self._connection
        self.close()
        host, _, port = broker.address.rpartition(":")
        self._connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=seconds)
        self._connection.connect()
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._broker_id = broker.broker_id
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def _reply(status: int, data: bytes) -> Any:
    match status:
        case HTTPStatus.OK:
            return json.loads(data)
        case HTTPStatus.CONFLICT:
            raise NotTheBroker(None)
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.NOT_FOUND:
            raise Unreachable("another server listens at the broker's address")
        case HTTPStatus.UNPROCESSABLE_ENTITY:
            raise _refusal(*json.loads(data))
        case _:
            raise StoreError(f"the broker answered with status {status}: {data[:200].decode(errors='replace')}")


def _refusal(name: str, message: str) -> PenstockError:
    """Return the error that the broker raised. A name that is no Penstock error becomes a `StoreError`."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, PenstockError):
        error = kind.__new__(kind)
        Exception.__init__(error, message)
        return error
    return StoreError(message)
