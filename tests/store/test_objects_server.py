"""Brokers of the object store and their HTTP server: election, takeover, authentication and rejected requests."""

import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from object_queues import LARGE, SECONDS, Brake, committer, document, opened

from penstock.model.errors import StoreError, StoreUnavailable, UsageError
from penstock.model.lifecycle import State
from penstock.store.objects.client import PATH
from penstock.store.objects.document import OBJECT, TEXT, Document, EventRow
from penstock.store.objects.operations.emits import NewEvent
from penstock.store.objects.operations.settlements import RequestedOutcome
from penstock.store.objects.store import ObjectStore
from penstock.testing.stores.scenario import claim, emit, ids, records, seqs, states
from tests.support.processes import wait_until


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"objects+file://{tmp_path}/queue?broker_seconds=30"
    with closing(opened(url)) as store:
        assert store.initialise().steps
        assert not store.initialise().steps
    return url


@pytest.fixture
def store(url: str) -> Iterator[ObjectStore]:
    store = opened(url)
    yield store
    store.close()


FORKS = """
import os, socket, sys
from penstock.model.event import Event
from penstock.store.registry import open_store
store = open_store(sys.argv[1])
store.append([Event(event_type="parent")])
host, port = store.runtime.committer.address.split(":")
read, write = os.pipe()
pause, go_on = os.pipe()
if os.fork() == 0:
    store.append([Event(event_type="child")])
    assert store.runtime.committer is None
    os.write(write, b"x")
    os.read(pause, 1)
    os._exit(0)
assert os.read(read, 1) == b"x"
assert store.stats().total("pending") == 2
store.close()
socket.create_server((host, int(port))).close()
os.write(go_on, b"x")
assert os.wait()[1] == 0
"""


class TestBrokers:
    def test_second_process_uses_broker_of_first(self, store: ObjectStore, url: str) -> None:
        emitted = emit(store)
        with closing(opened(url)) as other:
            emitted += emit(other, payload=LARGE)
            assert ids(claim(other)) == emitted
            assert other.runtime.committer is None
            assert states(store) == {State.CLAIMED: 2}

    def test_remaining_process_takes_over_as_broker(self, url: str) -> None:
        first, second = opened(url), opened(url)
        emitted = emit(first) + emit(second)
        first.close()
        emitted += emit(second)
        assert committer(second).leads
        assert [one.event_id for one in records(second)] == emitted
        second.close()
        with closing(opened(url)) as third:
            assert document(third).broker is None
            assert ids(claim(third)) == emitted

    def test_overtaken_broker_uses_new_broker(self, url: str) -> None:
        """A broker whose lease expired unnoticed, as after a suspend, finds out by its failed compare-and-swap."""
        first, second = opened(url), opened(url)
        emit(first)
        found = first.bucket.load()
        assert found is not None
        model = Document.from_json(found.data)
        assert model.broker is not None
        model.broker = model.broker._replace(expires_at=0)
        first.bucket.swap(model.to_json(), found)
        emit(second)
        assert committer(second).leads
        assert committer(first).leads
        emit(first)
        assert not committer(first).leads
        assert len(records(first)) == len(records(second)) == 3
        first.close()
        second.close()

    def test_client_without_broker_is_store_unavailable(self, url: str) -> None:
        with closing(opened(f"{url}&broker=never&wait_seconds=0.2")) as client:
            assert records(client) == []
            with pytest.raises(StoreUnavailable, match="penstock broker"):
                emit(client)

    def test_requests_without_secret_are_refused(self, store: ObjectStore) -> None:
        emit(store)
        broker = document(store).broker
        assert broker is not None
        assert ask(broker.address, "wrong", asked("now"))[0] == 401
        assert ask(broker.address, broker.secret, asked("now"))[0] == 200
        assert ask(broker.address, broker.secret, ["nonsense"])[0] == 400
        assert ask(broker.address, broker.secret, asked("drop")) == (
            422,
            ["NotSupported", "unknown operation 'drop'; upgrade the broker"],
        )

    def test_malformed_request_does_not_affect_later_requests(self, store: ObjectStore) -> None:
        emit(store)
        broker = document(store).broker
        assert broker is not None
        status, (name, message) = ask(broker.address, broker.secret, asked("append", events=[["short"]]))
        assert (status, name) == (422, "StoreError")
        assert "cannot execute append" in message
        emit(store)
        assert len(records(store)) == 2

    def test_queries_are_answered_while_changes_wait(self, url: str) -> None:
        """A waiting change is a future of the server's event loop: it blocks neither the loop nor a thread."""
        store, other = opened(url), opened(f"{url}&broker=never")
        brake = store.bucket = Brake(store.bucket)
        emit(store)
        with ThreadPoolExecutor(100) as pool:
            brake.off.clear()
            first = pool.submit(emit, store)
            assert brake.waiting.wait(SECONDS)
            others = [pool.submit(emit, other) for _ in range(99)]
            assert wait_until(lambda: len(committer(store)._waiting) == 99, SECONDS)
            assert other.stats().total("pending") == 1
            brake.off.set()
            emitted = [one for each in (first, *others) for one in each.result()]
        assert len(set(emitted)) == 100
        assert len(records(other)) == 101
        other.close()
        store.close()

    def test_forked_child_uses_broker_of_parent(self, url: str) -> None:
        """A forked child inherits neither the broker nor its port: the port is free once the parent has closed."""
        subprocess.run([sys.executable, "-c", FORKS, url], check=True, timeout=SECONDS)

    def test_client_reconnects_after_closed_connection(self, store: ObjectStore, url: str) -> None:
        """The server closes idle connections. A client must reconnect, not assume that the broker is gone."""
        emit(store)
        with closing(opened(url)) as other:
            emit(other)
            (session,) = other.runtime._sessions
            assert session._connection is not None
            session._connection.sock.shutdown(socket.SHUT_RDWR)
            emit(other)
            assert other.runtime.committer is None
            assert len(records(store)) == 3

    def test_broker_errors_keep_type_at_client(self, store: ObjectStore, url: str) -> None:
        (taken,) = emit(store)
        with closing(opened(url)) as other, pytest.raises(UsageError, match="event_id"):
            emit(other, event_id=taken)


FOREIGN = (
    "/etc/hostname",
    "../../etc/hostname",
    "payloads/../../etc/hostname",
    f"payloads/../{'0' * 32}.{'0' * 32}",
    f"payloads/{'0' * 32}.{'0' * 32}\n",
    f"drafts/{'0' * 32}",
    "queue.000000000001.json",
)


class TestObjectNames:
    """Only object names that a store generates are accepted, because in a folder a name is a path."""

    @pytest.mark.parametrize("field", ["payload", "progress", "result"])
    def test_broker_refuses_event_with_foreign_object(self, store: ObjectStore, field: str) -> None:
        emit(store)
        for name in FOREIGN:
            forged = entry()._replace(
                **({"form": OBJECT, "payload": name} if field == "payload" else {field: (OBJECT, name)})
            )
            assert refused(store, asked("append", events=[NewEvent(forged, False, 0, None, 0)]))
        assert len(records(store)) == 1

    def test_broker_refuses_result_and_progress_in_foreign_object(self, store: ObjectStore) -> None:
        emit(store)
        held = claim(store)
        lease = {"lease_id": held.lease.lease_id.hex, "token": held.lease.token.hex}
        (seq,) = seqs(held)
        for name in FOREIGN:
            outcome = RequestedOutcome(seq, "published", result=(OBJECT, name))
            assert refused(store, asked("settle", **lease, outcomes=[outcome]))
            assert refused(store, asked("note", **lease, progress=[(seq, (OBJECT, name))]))
        assert states(store) == {State.CLAIMED: 1}

    @pytest.mark.parametrize("name", FOREIGN)
    def test_worker_does_not_read_foreign_object_of_document(self, url: str, name: str) -> None:
        forged = Document()
        forged.put(entry()._replace(seq=1, form=OBJECT, payload=name))
        with closing(opened(url)) as store:
            store.bucket.swap(forged.to_json(), store.bucket.load())
            with pytest.raises(StoreError, match="invalid object name"):
                claim(store)


def entry() -> EventRow:
    return EventRow(0, uuid4().hex, "forged", "outbox", TEXT, "{}", 0, 0, 0)


def refused(store: ObjectStore, request: dict[str, Any]) -> bool:
    """Send a request with the broker's secret. Return whether the broker rejects the object name in the request."""
    broker = document(store).broker
    assert broker is not None
    status, answer = ask(broker.address, broker.secret, request)
    return status == 422 and answer[0] == "StoreError" and answer[1].startswith("invalid object name")


def asked(operation: str, **args: Any) -> dict[str, Any]:
    return {"operation": operation, "args": args, "seconds": 9, "session": "s", "number": 1}


def ask(address: str, secret: str, request: object) -> tuple[int, Any]:
    host, port = address.split(":")
    with closing(http.client.HTTPConnection(host, int(port), timeout=SECONDS)) as connection:
        connection.request("POST", PATH, json.dumps(request), {"Authorization": f"Bearer {secret}"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
