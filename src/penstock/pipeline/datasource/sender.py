"""Sender of claimed events to a destination: publishes them piece by piece and returns an outcome for each.

A Python worker process keeps a sender open between slices. Settling the outcomes is left to the caller.
"""

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from penstock.config.routes import Routes
from penstock.model.event import Delivery
from penstock.model.lifecycle import OrderPolicy
from penstock.model.outcome import RELEASED, Outcome
from penstock.model.retry import RetryPolicy
from penstock.pipeline.datasource.settle import ClaimedEvent
from penstock.publish.api import Publisher
from penstock.publish.dispatch import BLOCKING, dispatch
from penstock.publish.registry import open_publisher
from penstock.publish.topics import Routing

# The sender checks for a stop request between pieces, so that a slow destination cannot delay a stop by a whole batch.
FIRST_PIECE = 20
PIECE = 1_000
QUICK_SECONDS = 0.5
SLOW_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """Destination of claimed events, and the policy for their failures."""

    destination: str
    routing: Routing = field(default_factory=Routing)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    order_policy: OrderPolicy = OrderPolicy.BLOCK
    max_deliveries: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayTaskSpec:
    """Task spec of a relay: small and frozen. Nothing else is sent to the executors."""

    store: str
    queue: str
    batch: int
    lease_seconds: float
    dispatch: Dispatch
    routes: Routes | None = None
    """Routes of a router, which moves events to other queues and publishes nothing; None for a relay that publishes."""
    until: datetime | None = None
    """End of a draining relay, which stops after the events emitted before this time; None for other relays."""


class Pace:
    """Number of events per call of a publisher: small at first, larger while calls are quick."""

    def __init__(self) -> None:
        self.size = FIRST_PIECE
        self._rate = 0.0

    def learn(self, count: int, seconds: float) -> None:
        """Adapt the size to a call of `count` events that took `seconds`."""
        before, self._rate = self._rate, count / max(seconds, 1e-6)
        if seconds < QUICK_SECONDS:
            self.size = min(PIECE, max(self.size, count * 2))
        elif seconds > SLOW_SECONDS:
            # A smaller piece does not help if the duration of a call hardly depends on the number of events.
            helps = self._rate > before * 0.7
            self.size = max(1, self.size // 2) if helps else min(PIECE, self.size * 2)


class Sender:
    """An open publisher with the size of its next piece."""

    def __init__(self, spec: Dispatch) -> None:
        self._spec = spec
        self._publisher: Publisher = open_publisher(spec.destination)
        self._pace = Pace()

    def close(self) -> None:
        self._publisher.close()

    def send(self, events: Sequence[Delivery], stopped: Callable[[], bool]) -> dict[int, Outcome]:
        """Publish the events piece by piece. Once `stopped` returns True, the remaining events are released."""
        outcomes: dict[int, Outcome] = {}
        blocked: set[str] = set()
        start = 0
        while start < len(events):
            size = self._pace.size
            piece = [event for event in events[start : start + size] if event.ordering_key not in blocked]
            sent = self._publish(piece, stopped)
            outcomes |= sent
            start += size
            if start < len(events):
                blocked |= blocked_keys(piece, sent, self._spec.order_policy)
                if stopped():
                    break
        if len(outcomes) == len(events):
            return outcomes
        return {event.seq: outcomes.get(event.seq, RELEASED) for event in events}

    def _publish(self, piece: Sequence[Delivery], stopped: Callable[[], bool]) -> dict[int, Outcome]:
        began = time.monotonic()
        sent = dispatch(
            self._publisher,
            self._spec.routing,
            self._spec.retry,
            piece,
            now=datetime.now(UTC),
            roll=random.random,
            max_deliveries=self._spec.max_deliveries,
            order_policy=self._spec.order_policy,
            stopped=stopped,
        )
        self._pace.learn(len(piece), time.monotonic() - began)
        return sent


def blocked_keys(
    events: Sequence[Delivery | ClaimedEvent], outcomes: Mapping[int, Outcome], policy: OrderPolicy
) -> set[str]:
    """Return the ordering keys that block later events: after a release and, under BLOCK, also after a failure."""
    blocking = BLOCKING[policy]
    return {
        event.ordering_key
        for event in events
        if event.ordering_key is not None and isinstance(outcomes.get(event.seq), blocking)
    }


def reachable_from_workers(destination: str, master: str | None) -> str:
    """Return the destination as Python workers reach it.

    Spark redirects the standard output of Python workers to its log. In local mode, replace `stdout:` with the path of
    this process's standard output.
    """
    local = (master or "local").startswith("local")
    if destination == "stdout:" and local and Path("/proc/self/fd/1").exists():
        return f"stdout:?path=/proc/{os.getpid()}/fd/1"
    return destination
