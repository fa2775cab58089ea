"""Events as handlers receive them, with methods to decide the outcome."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, Self

from sqlalchemy import Connection

from penstock.model.errors import UsageError
from penstock.model.event import Delivery, encode_payload
from penstock.model.lease import Lease
from penstock.model.outcome import Outcome


class DecisionSink(Protocol):
    """Receiver of decisions: the subscription that claimed the event."""

    def published(self, result: bytes | None) -> Outcome: ...
    def failed(self, event: "Received", error: str, delay: float | None = None) -> Outcome: ...
    def rejected(self, reason: str) -> Outcome: ...
    def decided(self, event: "Received") -> None: ...
    def transaction(self, event: "Received") -> AbstractContextManager[Connection]: ...


class Received(Delivery):
    """A claimed event as a handler receives it. The first decision counts; without one the ack policy decides.

    Payload, headers and counters are those of `penstock.Delivery`.
    """

    lease: Lease
    decision: Outcome | None
    settled: bool
    """True if the event is already settled: by the ack policy `ack_first`, or in a transaction."""
    lost: bool
    """True if the lease is known to be lost: another worker may have the event, and decisions here have no effect."""
    running: bool
    abandoned: bool
    """True if the call exceeded its time limit and was abandoned while still running."""
    finished: bool
    """True if the outcome is recorded; later reports of an executor are ignored."""
    started: float
    _sink: DecisionSink

    @classmethod
    def of(cls, delivery: Delivery, lease: Lease, sink: DecisionSink) -> Self:
        event = tuple.__new__(cls, delivery)
        event.lease = lease
        event.decision = None
        event.settled = event.lost = event.running = event.abandoned = event.finished = False
        event._sink = sink
        return event

    # Identity instead of tuple equality: the fields may not be hashable, and events are never compared by value.
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def ack(self, result: object = None) -> None:
        """Settle the event as published. A `result` (bytes, str or any JSON value) is stored with the event."""
        kept = None if result is None else encode_payload(result)[0]
        self._decide(self._sink.published(kept))

    def nack(self, delay: float | None = None, reason: str = "nack'ed by its handler") -> None:
        """Retry the event after `delay` seconds; without `delay`, the retry policy decides."""
        self._decide(self._sink.failed(self, reason, delay))

    def reject(self, reason: str = "rejected by its handler") -> None:
        """Make the event dead, without another attempt."""
        self._decide(self._sink.rejected(reason))

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Open a transaction in the store's database that settles the event when it commits.

        Changes through the connection and the settlement commit together. If the lease was lost in the meantime,
        everything is rolled back and `LeaseLost` is raised.
        """
        if self.decision is not None or self.settled:
            raise UsageError("this event is decided already; begin its transaction before, and don't ack it inside")
        with self._sink.transaction(self) as connection:
            yield connection

    def _decide(self, outcome: Outcome) -> None:
        if self.decision is not None or self.settled:
            return
        self.decision = outcome
        if not self.running:
            self._sink.decided(self)

    def begin(self) -> None:
        """Record the start of the call."""
        self.running = True
        self.started = time.monotonic()
