"""Route operations: to this process if it is or becomes the broker, otherwise to the broker over HTTP.

A request keeps its session and number on every try, so that a new broker can see in the document whether the request
was executed.
"""

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.config.extras import needs_extra
from penstock.model.errors import StoreUnavailable
from penstock.store.objects.address import Address
from penstock.store.objects.bucket import Bucket
from penstock.store.objects.client import ClientSession, Unreachable
from penstock.store.objects.document import BrokerRow
from penstock.store.objects.group_commit import Committer, Micros, NotTheBroker, Request, lives, load
from penstock.store.objects.operations import QUERIES

if TYPE_CHECKING:
    from penstock.store.objects.server import Candidate

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 0.5


class Runtime:
    """Threads and connections of an open store in one process."""

    def __init__(self, address: Address, bucket: Bucket, micros: Micros) -> None:
        self._address = address
        self._bucket = bucket
        self._micros = micros
        self._lock = threading.Lock()
        self._sessions: list[ClientSession] = []
        self._broker: BrokerRow | None = None
        """The broker of the last request that went to another process."""
        self._candidate: Candidate | None = None

    @property
    def committer(self) -> Committer | None:
        """The committer of this process; None if the process has never been a candidate."""
        return None if self._candidate is None else self._candidate.committer

    def execute(self, operation: str, args: Mapping[str, Any]) -> Any:
        """Execute a query, or a change at most once, and return the answer."""
        with self._lock:
            session = self._sessions.pop() if self._sessions else ClientSession()
        session.number += operation not in QUERIES
        deadline = time.monotonic() + self._address.wait_seconds
        request = Request(operation, args, session.session_id, session.number, deadline)
        try:
            return self._until_answered(request, session)
        finally:
            with self._lock:
                self._sessions.append(session)

    def _until_answered(self, request: Request, session: ClientSession) -> Any:
        pause, seen = FIRST_PAUSE, "no broker is running"
        while True:
            try:
                return self._ask(request, session)
            except NotTheBroker as error:
                self._broker = error.broker
            except Unreachable as error:
                where = "" if self._broker is None else f" at {self._broker.address}"
                self._broker, seen = None, f"the broker{where} did not answer ({error})"
            if time.monotonic() > request.deadline:
                raise StoreUnavailable(
                    f"no answer from {self._address.shown} within {self._address.wait_seconds:g} s: {seen}; "
                    "start a broker with: penstock broker"
                )
            time.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE)

    def _ask(self, request: Request, session: ClientSession) -> Any:
        committer = self.committer
        reads = request.operation in QUERIES
        if committer is None or not committer.leads:
            broker = self._broker or self._find(reads=reads)
            if broker is not None:
                # Longer than a broker needs to notice that it has lost its lease.
                return session.ask(broker, request.to_json(), max(self._address.broker_seconds * 2, 5.0))
        if not reads:
            return self._stand().commit(request)
        if committer is not None:
            with suppress(NotTheBroker):
                return committer.query(request.operation, request.args)
        # Without a broker no process changes the document, so any process may read it.
        _, document = load(self._bucket, self._address)
        return QUERIES[request.operation](document.at(self._micros()), request.args)

    def _find(self, *, reads: bool) -> BrokerRow | None:
        """Return the live broker that the document names, or None if this process should execute the operation."""
        broker = load(self._bucket, self._address)[1].broker
        if broker is not None and lives(broker):
            self._broker = broker
            return broker
        if not self._address.candidate and not reads:
            raise NotTheBroker(None)
        return None

    def _stand(self) -> Committer:
        """Make this process a candidate, with a server for the other processes."""
        with self._lock:
            if self._candidate is None:
                with needs_extra("a broker on object storage", "objects"):
                    server = import_module("penstock.store.objects.server")  # it needs a web server
                self._candidate = server.Candidate(self._address, self._bucket, self._micros)
            return self._candidate.committer

    def close(self) -> None:
        with self._lock:
            sessions, self._sessions, candidate = self._sessions, [], self._candidate
        if candidate is not None:
            candidate.stop()
        for session in sessions:
            session.close()
