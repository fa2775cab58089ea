"""Who carries out a verb: this process, if it is the broker or can become it, or the broker, wherever that is.

A request keeps its session and number while it is tried again, here or there: whoever is the broker by then knows
from the document whether it was carried out.
"""

import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from penstock.errors import NotInitialised, StoreUnavailable
from penstock.store.objects.address import Address
from penstock.store.objects.broker import BrokerServer
from penstock.store.objects.bucket import Bucket, Shelf
from penstock.store.objects.client import Client, Unreachable
from penstock.store.objects.commit import Committer, Micros, NotTheBroker, Request, lives, wall_micros
from penstock.store.objects.model import Model
from penstock.store.objects.values import MICROS, BrokerRow
from penstock.store.objects.verbs import LOOKS

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 0.5


@dataclass(slots=True)
class Session:
    """One of this process's ways of asking: at most one request of it is under way."""

    session_id: str = field(default_factory=lambda: uuid4().hex)
    number: int = 0


class Runtime:
    """The threads and connections of one open store, in one process."""

    def __init__(self, address: Address, bucket: Bucket, micros: Micros) -> None:
        self._address = address
        self._bucket = bucket
        self._micros = micros
        self._shelf = Shelf(bucket)
        self._lock = threading.Lock()
        self._sessions: list[Session] = []
        self._client: Client | None = None
        self._server: BrokerServer | None = None
        self.committer: Committer | None = None
        if address.always:
            self._candidate()

    # -- asking -----------------------------------------------------------------------------------------------

    def change(self, verb: str, args: Mapping[str, Any]) -> Any:
        with self._lock:
            session = self._sessions.pop() if self._sessions else Session()
        session.number += 1
        try:
            return self._until_answered(verb, args, session)
        finally:
            with self._lock:
                self._sessions.append(session)

    def look(self, verb: str, args: Mapping[str, Any]) -> Any:
        return self._until_answered(verb, args, None)

    def _until_answered(self, verb: str, args: Mapping[str, Any], session: Session | None) -> Any:
        deadline = time.monotonic() + self._address.wait_seconds
        pause, seen = FIRST_PAUSE, "nobody is the broker"
        while True:
            try:
                return self._ask(verb, args, session, deadline)
            except NotTheBroker as error:
                self._turn_to(error.broker)
            except Unreachable as error:
                where = "" if self._client is None else f" at {self._client.broker.address}"
                seen = f"the broker{where} doesn't answer ({error})"
                self._turn_to(None)
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"no answer for {self._address.shown} within {self._address.wait_seconds:g} s: {seen}; "
                    "a broker is run by: penstock broker"
                )
            time.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE)

    def _ask(self, verb: str, args: Mapping[str, Any], session: Session | None, deadline: float) -> Any:
        committer, client = self.committer, self._client
        if committer is not None and committer.leads:
            client = None
        elif client is None:
            client = self._find(reads=session is None)
        if client is not None:
            return client.ask(self._request(verb, args, session, deadline))
        if session is None:
            return self._look(verb, args)
        request = Request(verb, args, session.session_id, session.number, deadline)
        return self._candidate().change(request)

    def _look(self, verb: str, args: Mapping[str, Any]) -> Any:
        """Nobody is the broker, or we are. What nobody changes can be read by anyone."""
        committer = self.committer
        if committer is not None and committer.leads:
            return committer.look(verb, args)
        return LOOKS[verb](self._read().at(self._micros(), self._shelf), args)

    def _request(
        self, verb: str, args: Mapping[str, Any], session: Session | None, deadline: float
    ) -> Mapping[str, Any]:
        asked = {"verb": verb, "args": args, "seconds": max(deadline - time.monotonic(), 0.0)}
        return asked if session is None else asked | {"session": session.session_id, "number": session.number}

    # -- finding ----------------------------------------------------------------------------------------------

    def _find(self, *, reads: bool) -> Client | None:
        """The broker, by the document. None says that this process is to do it itself."""
        broker = self._read().broker
        if broker is not None and lives(broker):
            return self._turn_to(broker)
        if not self._address.candidate and not reads:
            raise NotTheBroker(None)
        return None

    def _read(self) -> Model:
        document = self._bucket.load()
        if document is None:
            raise NotInitialised(
                f"there is no queue at {self._address.shown}; run: penstock init --store '{self._address.shown}'"
            )
        return Model.from_json(document.data)

    def _turn_to(self, broker: BrokerRow | None) -> Client | None:
        with self._lock:
            old = self._client
            if old is not None and broker is not None and old.broker.broker_id == broker.broker_id:
                return old
            self._client = None if broker is None else Client(broker, self._answer_seconds())
            found = self._client
        if old is not None:
            old.close()
        return found

    def _answer_seconds(self) -> float:
        """Longer than a broker takes to notice that it is none any more."""
        return max(self._address.broker_seconds * 2, 5.0)

    def _candidate(self) -> Committer:
        """This process's committer, with a server for the others."""
        with self._lock:
            if self.committer is None:
                secret = secrets.token_urlsafe(24)
                self._server = BrokerServer(self._address, secret)
                expires_at = wall_micros() + int(self._address.broker_seconds * MICROS)
                me = BrokerRow(uuid4().hex, self._server.address, secret, expires_at)
                self.committer = self._server.committer = Committer(self._address, self._bucket, self._micros, me)
            return self.committer

    def close(self) -> None:
        with self._lock:
            client, server, committer = self._client, self._server, self.committer
            self._client = None
        if committer is not None:
            committer.stop()
        if server is not None:
            server.stop()
        if client is not None:
            client.close()
