"""Group commit: one thread writes the document; changes that arrive during a write share the next one.

A commit pass copies the document, reaps expired leases, applies the waiting changes and writes by compare-and-swap.
Callers get their reply once the document with their change is written. If another process wrote first, or it is
unknown whether a write succeeded, the document is read again and the changes are applied to the new version. The
document contains the last answer to every client session, so no change is made twice.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.model.errors import NotInitialised, PenstockError, StoreConflict, StoreError, StoreUnavailable
from penstock.store.objects.address import Address
from penstock.store.objects.bucket import Bucket, Overtaken, Version
from penstock.store.objects.document import MICROS, BrokerRow, Document, SessionRow
from penstock.store.objects.operations import CHANGES, QUERIES, claims, retention

log = logging.getLogger(__name__)

EVERYTHING = 2**62
# Maximum number of changes in one write.
GROUP = 10_000
IDLE_SECONDS = 60.0
PAUSE_SECONDS = 0.05
# Callers that were just answered soon send their next request. Without a wait, half of them miss the next write.
# Waiting up to this share of a write's duration raises 64 clients from 400 to 740 jobs/s on a bucket 20 ms away.
LINGER = 0.2
LONGEST_LINGER = 0.01

Micros = Callable[[], int]


class NotTheBroker(Exception):
    """Raised in a process that is not the broker. `broker` is the other process, if known."""

    def __init__(self, broker: BrokerRow | None) -> None:
        super().__init__("not the broker")
        self.broker = broker


class _Malformed(Exception):
    """A request raised an unexpected error, and may have left the copy of the document inconsistent."""

    def __init__(self, request: "Request", error: Exception) -> None:
        super().__init__(repr(error))
        self.request = request


@dataclass(slots=True, eq=False)
class Request:
    """A change that a caller waits for. Session and number identify a repeated request."""

    operation: str
    args: Mapping[str, Any]
    session: str
    number: int
    deadline: float
    wake: Callable[[], object] | None = None
    answer: Any = None
    error: BaseException | None = None
    _document: Document | None = None

    def finish(self, document: Document | None = None, error: BaseException | None = None) -> None:
        self._document, self.error = document, error
        if self.wake is not None:
            self.wake()

    def to_json(self) -> dict[str, Any]:
        seconds = max(self.deadline - time.monotonic(), 0.0)
        names = {"operation": self.operation, "session": self.session, "number": self.number}
        return {**names, "args": self.args, "seconds": seconds}

    @classmethod
    def from_json(cls, asked: Mapping[str, Any]) -> "Request":
        deadline = time.monotonic() + float(asked["seconds"])
        return cls(asked["operation"], asked["args"], str(asked["session"]), int(asked["number"]), deadline)

    def reply(self) -> Any:
        """Return the reply to a finished request, or raise its error."""
        if self.error is not None:
            raise self.error
        assert self._document is not None
        # The stored answer of a claim has only seqs; the events are read from the document.
        answer = self.answer
        return claims.claimed(self._document, self.args, answer) if self.operation == "claim" else answer


class Committer:
    """Applies changes to the queue document and writes it, in a separate thread.

    Runs in the broker and in candidates. A candidate becomes the broker with its first write.
    """

    def __init__(self, address: Address, bucket: Bucket, micros: Micros, me: BrokerRow) -> None:
        self.writes = 0
        self.address = me.address
        self._address = address
        self._bucket = bucket
        self._micros = micros
        self._me = me
        self._waiting: deque[Request] = deque()
        self._wanted = 1
        self._callers = 0
        self._took = 0.0
        self._wake = threading.Condition()
        self._version: Version | None = None
        self._document: Document | None = None
        self._until = 0.0
        self._used = time.monotonic()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="penstock-commit", daemon=True)
        self._thread.start()

    @property
    def leads(self) -> bool:
        """True if this process is the broker, by its own clock."""
        return time.monotonic() < self._until

    def commit(self, request: Request) -> Any:
        """Execute a change and return the reply once the change is durable."""
        done = threading.Lock()
        done.acquire()
        self.submit(request, done.release)
        done.acquire()
        return request.reply()

    def submit(self, request: Request, wake: Callable[[], object]) -> None:
        """Queue a change for the next commit pass, which calls `wake` when the reply is available."""
        with self._wake:
            if self._stopping:
                raise NotTheBroker(None)
            request.wake = wake
            self._waiting.append(request)
            if len(self._waiting) >= self._wanted:
                self._wake.notify()

    def query(self, operation: str, args: Mapping[str, Any]) -> Any:
        """Answer a query from the durable document."""
        document = self._document
        self._used = time.monotonic()
        if document is None or not self.leads:
            raise NotTheBroker(None)
        return QUERIES[operation](document.at(self._micros()), args)

    def stop(self) -> None:
        """Commit the waiting changes, return the broker lease and end the thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    # -- the committing thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._step():
                pass
            self._step_down()
        finally:
            with self._wake:
                self._stopping = True
            _fail(list(self._waiting), NotTheBroker(None))

    def _step(self) -> bool:
        """Commit the waiting changes, renew the broker lease or step down. Return False when stopped."""
        batch = self._next_batch()
        if batch:
            self._used = time.monotonic()
            self._carry_through(batch)
        elif self._stopping:
            return False
        elif self._idle:
            self._step_down()
        elif self._until:
            self._carry_through([])
        return True

    def _next_batch(self) -> list[Request]:
        with self._wake:
            if not self._waiting and not self._stopping:
                self._wake.wait(self._rest())
            self._linger()
            count = min(len(self._waiting), GROUP)
            return [self._waiting.popleft() for _ in range(count)]

    def _linger(self) -> None:
        """Wait briefly for further requests from the callers of the last commit pass."""
        self._wanted = min(self._callers, GROUP)
        over = time.monotonic() + min(self._took * LINGER, LONGEST_LINGER)
        while 0 < len(self._waiting) < self._wanted and not self._stopping:
            left = over - time.monotonic()
            if left <= 0 or not self._wake.wait(left):
                break
        self._wanted = 1

    def _rest(self) -> float | None:
        """Return the seconds until the broker lease must be renewed: a third of its length after the last write."""
        if not self._until:
            return None
        return max(self._until - time.monotonic() - self._address.broker_seconds * 2 / 3, 0.0)

    @property
    def _idle(self) -> bool:
        """True if the broker lease is to be returned for lack of work.

        Otherwise a process would renew its lease, and write, forever after a single emit.
        """
        return time.monotonic() - self._used > IDLE_SECONDS

    def _carry_through(self, batch: list[Request]) -> None:
        """Repeat the pass until the batch is written, another process is the broker, or all callers have timed out."""
        while True:
            try:
                self._pass(batch)
                return
            except NotTheBroker as error:
                self._forget()
                _fail(batch, error)
                return
            except Overtaken:
                self._forget()
            except _Malformed as error:
                log.exception("request_failed operation=%s", error.request.operation)
                batch = [request for request in batch if request is not error.request]
                _fail([error.request], StoreError(f"the broker cannot execute {error.request.operation}: {error}"))
            except StoreUnavailable as error:
                self._forget()
                batch = _still_waited_for(batch, error)
                if not batch:
                    return
                time.sleep(PAUSE_SECONDS)
            except BaseException as error:
                self._forget()
                _fail(batch, error)
                if not isinstance(error, PenstockError):
                    log.exception("commit_failed")
                return

    def _forget(self) -> None:
        self._document = self._version = None
        self._until = 0.0

    def _pass(self, batch: list[Request]) -> None:
        durable = self._current()
        started = time.monotonic()
        document = durable.copy()
        document.now = self._micros()
        if self._address.expiry:
            claims.reap(document, {"limit": EVERYTHING})
        for request in batch:
            _apply(document, request)
        if document.changed or not self.leads or not batch:
            self._write(document, started)
            durable = document
        self._took = time.monotonic() - started
        self._callers = len(batch) + len(self._waiting)
        for request in batch:
            request.finish(durable, request.error)

    def _current(self) -> Document:
        """Return the newest document. Only the broker has it in memory; a candidate reads it."""
        if self._document is not None and self.leads:
            return self._document
        version, document = load(self._bucket, self._address)
        if document.broker is not None and document.broker.broker_id != self._me.broker_id and lives(document.broker):
            raise NotTheBroker(document.broker)
        self._version, self._document = version, document
        return document

    def _write(self, document: Document, started: float) -> None:
        retention.prune(document)
        document.version += 1
        seconds = self._address.broker_seconds
        document.broker = self._me._replace(expires_at=wall_micros() + int(seconds * MICROS))
        self._version = self._bucket.swap(document.to_json(), self._version)
        self.writes += 1
        self._document, self._until = document, started + seconds

    def _step_down(self) -> None:
        """Return the broker lease if this process holds it, so that the next broker need not wait for its expiry."""
        document, version, leads = self._document, self._version, self.leads
        self._forget()
        if document is None or not leads:
            return
        final = document.copy()
        final.broker, final.version = None, document.version + 1
        try:
            self._bucket.swap(final.to_json(), version)
        except (Overtaken, StoreUnavailable):
            log.debug("broker_lease_not_returned")


def load(bucket: Bucket, address: Address) -> tuple[Version, Document]:
    """Read the queue document."""
    version = bucket.load()
    if version is None:
        raise NotInitialised(f"{address.shown} does not exist; run: penstock init --store '{address.shown}'")
    return version, Document.from_json(version.data)


def _apply(document: Document, request: Request) -> None:
    """Execute a change once. The answer is stored for a repeat only if the document has changed."""
    known = document.sessions.get(request.session)
    if known is not None and known.number >= request.number:
        request.answer, request.error = known.answer, None
        if known.number > request.number:
            request.error = StoreConflict("a later request of the same session was executed first; try again")
        return
    changed, document.changed = document.changed, False
    try:
        request.answer, request.error = CHANGES[request.operation](document, request.args), None
    except PenstockError as error:
        request.error = error
    except Exception as error:
        raise _Malformed(request, error) from error
    if document.changed:
        document.sessions.pop(request.session, None)
        document.sessions[request.session] = SessionRow(request.number, document.now, request.answer)
    document.changed = document.changed or changed


def _fail(batch: list[Request], error: BaseException) -> None:
    for request in batch:
        request.finish(error=error)


def _still_waited_for(batch: list[Request], error: BaseException) -> list[Request]:
    now = time.monotonic()
    _fail([request for request in batch if request.deadline <= now], error)
    return [request for request in batch if request.deadline > now]


def wall_micros() -> int:
    """Return the time of this machine's clock. The broker lease uses it even if a test injects another clock."""
    return int(time.time() * MICROS)


def lives(broker: BrokerRow) -> bool:
    """Return whether a broker lease is still running, by this machine's clock."""
    return broker.expires_at > wall_micros()
