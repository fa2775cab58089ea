"""Group commit. One thread writes; what arrives while it does goes out together in its next pass.

A pass copies the model, takes back expired leases, applies what has arrived, and swaps the document. Callers are
answered once the document that holds their change is written. If somebody else wrote first, or nobody knows whether our
write landed, the document is read again and everything applied anew: a change that is already in it is not made twice,
because the document remembers the last answer of every session.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from penstock.errors import NotInitialised, PenstockError, StoreConflict, StoreError, StoreUnavailable
from penstock.store.objects import archive, claiming, keeping
from penstock.store.objects.address import Address
from penstock.store.objects.bucket import Bucket, Document, Overtaken, Shelf
from penstock.store.objects.model import Model
from penstock.store.objects.values import MICROS, BrokerRow, SessionRow
from penstock.store.objects.verbs import CHANGES, LOOKS, told

log = logging.getLogger(__name__)

EVERYTHING = 2**62
IDLE_SECONDS = 60.0
PAUSE_SECONDS = 0.05
LINGER = 0.2
LONGEST_LINGER = 0.01

Micros = Callable[[], int]


class NotTheBroker(Exception):
    """Somebody else is; it is to be asked instead."""

    def __init__(self, broker: BrokerRow | None) -> None:
        super().__init__("not the broker")
        self.broker = broker


class Broken(Exception):
    """A request that no verb can make sense of: the copy that it may have spoilt is thrown away."""

    def __init__(self, request: "Request", error: Exception) -> None:
        super().__init__(repr(error))
        self.request = request


@dataclass(slots=True, eq=False)
class Request:
    """A change that somebody waits for. The session and its number say whether it was made before."""

    verb: str
    args: Mapping[str, Any]
    session: str
    number: int
    deadline: float
    answer: Any = None
    error: BaseException | None = None
    model: Model | None = None
    _done: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._done.acquire()

    def finish(self, model: Model | None = None, error: BaseException | None = None) -> None:
        self.model, self.error = model, error
        self._done.release()

    def wait(self) -> Any:
        self._done.acquire()
        if self.error is not None:
            raise self.error
        assert self.model is not None
        return told(self.verb, self.model, self.args, self.answer)


class Committer:
    """Writes the document for this process, as long as it is the broker or may become it."""

    def __init__(self, address: Address, bucket: Bucket, micros: Micros, me: BrokerRow) -> None:
        self.writes = 0
        self._address = address
        self._bucket = bucket
        self._micros = micros
        self._me = me
        self._shelf = Shelf(bucket)
        self._waiting: deque[Request] = deque()
        self._wanted = 1
        self._callers = 0
        self._took = 0.0
        self._wake = threading.Condition()
        self._document: Document | None = None
        self._model: Model | None = None
        self._until = 0.0
        self._used = time.monotonic()
        self._stopping = False
        self.looked = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-commit", daemon=True)
        self._thread.start()

    # -- for callers ------------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Whether this process is the broker, by its own clock."""
        return time.monotonic() < self._until

    @property
    def address(self) -> str:
        return self._me.address

    def change(self, request: Request) -> Any:
        with self._wake:
            if self._stopping:
                raise NotTheBroker(None)
            self._waiting.append(request)
            if len(self._waiting) >= self._wanted:
                self._wake.notify()
        return request.wait()

    def look(self, verb: str, args: Mapping[str, Any]) -> Any:
        """Answered from what is known to be durable."""
        model = self._model
        self._used = time.monotonic()
        if model is None or not self.leads:
            raise NotTheBroker(None)
        return LOOKS[verb](model.at(self._micros(), self._shelf), args)

    def stop(self) -> None:
        """Finish what waits, and let the next broker begin at once."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    # -- the one thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._turn():
                pass
            self._step_down()
        finally:
            with self._wake:
                self._stopping = True
            _fail(list(self._waiting), NotTheBroker(None))

    def _turn(self) -> bool:
        """One pass, if there is anything to do; says whether there will be another."""
        batch = self._next_batch()
        if batch:
            self._used = time.monotonic()
            self._carry_through(batch)
        elif self._stopping:
            return False
        elif self._idle:
            self._step_down()
        elif self._until or self._address.always:
            self._carry_through([])
            self.looked.set()
        return True

    def _next_batch(self) -> list[Request]:
        with self._wake:
            if not self._waiting and not self._stopping:
                self._wake.wait(self._rest())
            self._linger()
            count = min(len(self._waiting), self._address.group)
            return [self._waiting.popleft() for _ in range(count)]

    def _linger(self) -> None:
        """Those who were answered just now come back at once: to wait for them, for a small part of what a write
        takes, is better than to let them miss it."""
        self._wanted = min(self._callers, self._address.group)
        over = time.monotonic() + min(self._took * LINGER, LONGEST_LINGER)
        while 0 < len(self._waiting) < self._wanted and not self._stopping:
            left = over - time.monotonic()
            if left <= 0 or not self._wake.wait(left):
                break
        self._wanted = 1

    def _rest(self) -> float | None:
        """Until the lease has to be renewed: a third of its time after the last write."""
        if not self._until and self._address.always:
            return self._address.broker_seconds / 3 if self.looked.is_set() else 0.0
        if not self._until:
            return None
        return max(self._until - time.monotonic() - self._address.broker_seconds * 2 / 3, 0.0)

    @property
    def _idle(self) -> bool:
        """A process that once emitted something needn't write for ever after."""
        return not self._address.always and time.monotonic() - self._used > IDLE_SECONDS

    def _carry_through(self, batch: list[Request]) -> None:
        """Try until the batch is written, somebody else is the broker, or nobody waits for it any more."""
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
            except Broken as error:
                log.exception("a request failed: %s", error.request.verb)
                batch = [request for request in batch if request is not error.request]
                _fail([error.request], StoreError(f"the broker can't carry out {error.request.verb}: {error}"))
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
                    log.exception("a pass over the queue's document failed")
                return

    def _forget(self) -> None:
        self._model = self._document = None
        self._until = 0.0

    def _pass(self, batch: list[Request]) -> None:
        durable = self._current()
        started = time.monotonic()
        model = durable.copy()
        model.now, model.objects, model.write_id = self._micros(), self._shelf, uuid4().hex
        self._shelf.fresh.clear()
        if self._address.expiry:
            claiming.reap(model, {"limit": EVERYTHING})
        for request in batch:
            _apply(model, request)
        if model.touched or not self.leads or not batch:
            self._write(model, started)
            durable = model
        self._took = time.monotonic() - started
        self._callers = len(batch) + len(self._waiting)
        for request in batch:
            request.finish(durable, request.error)

    def _current(self) -> Model:
        """The model to go on from. Only the broker's own is sure to be the newest."""
        if self._model is not None and self.leads:
            return self._model
        document = self._bucket.load()
        if document is None:
            raise NotInitialised(
                f"there is no queue at {self._address.shown}; run: penstock init --store '{self._address.shown}'"
            )
        model = Model.from_json(document.data)
        if model.broker is not None and model.broker.broker_id != self._me.broker_id and lives(model.broker):
            raise NotTheBroker(model.broker)
        self._document, self._model = document, model
        return model

    def _write(self, model: Model, started: float) -> None:
        if archive.rolls(model):
            archive.roll(model)
        keeping.trim(model)
        model.version += 1
        seconds = self._address.broker_seconds
        model.broker = self._me._replace(expires_at=wall_micros() + int(seconds * MICROS))
        data = model.to_json()
        self._shelf.flush()
        self._document = self._bucket.swap(data, self._document)
        self.writes += 1
        self._model, self._until = model, started + seconds

    def _step_down(self) -> None:
        """Give the lease back, if it is ours: the next broker needn't wait for its end."""
        model, leads = self._model, self.leads
        document = self._document
        self._forget()
        if model is None or not leads:
            return
        final = model.copy()
        final.broker, final.version = None, model.version + 1
        try:
            self._bucket.swap(final.to_json(), document)
        except (Overtaken, StoreUnavailable):
            log.debug("the broker's lease was not given back; it ends by itself")


def _apply(model: Model, request: Request) -> None:
    """Make a change, once. What changed nothing needn't be remembered: a repeat changes nothing either."""
    known = model.sessions.get(request.session)
    if known is not None and known.number >= request.number:
        request.answer, request.error = known.answer, None
        if known.number > request.number:
            request.error = StoreConflict("this request was overtaken by a later one of the same session; try again")
        return
    touched, model.touched = model.touched, False
    try:
        request.answer, request.error = CHANGES[request.verb](model, request.args), None
    except PenstockError as error:
        request.error = error
    except Exception as error:
        raise Broken(request, error) from error
    if model.touched:
        model.sessions.pop(request.session, None)
        model.sessions[request.session] = SessionRow(request.number, model.now, request.answer)
    model.touched = model.touched or touched


def _fail(batch: list[Request], error: BaseException) -> None:
    for request in batch:
        request.finish(error=error)


def _still_waited_for(batch: list[Request], error: BaseException) -> list[Request]:
    now = time.monotonic()
    _fail([request for request in batch if request.deadline <= now], error)
    return [request for request in batch if request.deadline > now]


def wall_micros() -> int:
    """The time by this machine's clock. A broker's lease goes by it, whatever clock a test injects."""
    return int(time.time() * MICROS)


def lives(broker: BrokerRow) -> bool:
    """Whether a broker's lease is still running, by this machine's clock."""
    return broker.expires_at > wall_micros()
