"""An event that a handler is given: the event itself, and the ways to decide what becomes of it."""

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
    """Where decisions go: the subscription that the event was fetched for."""

    def published(self, result: bytes | None) -> Outcome: ...
    def failed(self, event: "Received", error: str, delay: float | None = None) -> Outcome: ...
    def rejected(self, reason: str) -> Outcome: ...
    def decided(self, event: "Received") -> None: ...
    def transaction(self, event: "Received") -> AbstractContextManager[Connection]: ...


class Received(Delivery):
    """A claimed event as a handler gets it. The first decision counts; without one the ack policy decides.

    Payload, headers and counters are those of `penstock.Delivery`.
    """

    lease: Lease
    decision: Outcome | None
    settled: bool
    """Whether the store knows already: acknowledged first, or in a transaction."""
    lost: bool
    """Whether its lease is known to be lost: another worker may have it by now, and what this one decides is void."""
    running: bool
    abandoned: bool
    """Whether its handler took too long, and was given up on while it still runs."""
    finished: bool
    """Whether its outcome is told: what an executor says of it later counts no more."""
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

    # Each is itself and nothing else: what it holds may not be comparable, and need not be compared.
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def ack(self, result: object = None) -> None:
        """It is done. A `result` (bytes, text, or anything that JSON can say) is kept with the event."""
        kept = None if result is None else encode_payload(result)[0]
        self._decide(self._sink.published(kept))

    def nack(self, delay: float | None = None, reason: str = "nack'ed by its handler") -> None:
        """It failed and is to be tried again: after `delay` seconds, else when the retry policy says."""
        self._decide(self._sink.failed(self, reason, delay))

    def reject(self, reason: str = "rejected by its handler") -> None:
        """It is not to be tried again: it is dead."""
        self._decide(self._sink.rejected(reason))

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction in the store's database, which acknowledges the event when it commits.

        What is written through the connection and the acknowledgement commit together, or neither does: if the lease
        was lost in the meantime, `LeaseLost` is raised and everything is rolled back.
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
        """Its handler starts."""
        self.running = True
        self.started = time.monotonic()
