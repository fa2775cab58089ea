"""Hints that a process collects from its claims to make the next ones cheaper. They affect only speed: without them a
claim returns the same events, more slowly."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter, itemgetter
from typing import Any

from penstock.model.event import Delivery, decode_time
from penstock.store.sql.dialect import AVAILABLE_AT, PRIORITY

ALWAYS = datetime(1, 1, 1, tzinfo=UTC)
FULL_LOOK_SECONDS = 3.0
# Longer than FULL_LOOK_SECONDS: events that become available between two full scans are above the floor.
FLOOR_MARGIN = timedelta(seconds=5)

_available_at = itemgetter(AVAILABLE_AT)
_priority = itemgetter(PRIORITY)
_ordering_key = attrgetter("ordering_key")


class ScanFloor:
    """Lower bound of `available_at` for the claims of a queue. Deleted rows stay in the index while a snapshot may need
    them, and they gather at its front; a scan that starts behind them stays fast. Every FULL_LOOK_SECONDS a claim scans
    the whole queue, to find events that became pending with an earlier time or were committed late."""

    def __init__(self) -> None:
        self._value: datetime | None = None
        self._lowest: int | None = None
        self._looked_at = 0.0

    def use(self) -> datetime:
        now = time.monotonic()
        if self._value is None or now - self._looked_at > FULL_LOOK_SECONDS:
            self._looked_at = now
            return ALWAYS
        return self._value

    def learn_all(self, at: datetime, lowest: int | None, oldest: datetime | None) -> None:
        """Set the floor after a full scan, from the lowest priority and the oldest time of the events left pending."""
        self._lowest = lowest
        self._value = min(at - FLOOR_MARGIN, oldest or at)

    def learn(self, at: datetime, rows: Sequence[Delivery]) -> None:
        """Set the floor after a scan that began at the floor. If the claim was full before it reached the lowest
        priority, keep the floor: the age of the events of that priority is unknown."""
        if not rows:
            self._lowest, self._value = None, at - FLOOR_MARGIN
        elif self._lowest is None or min(map(_priority, rows)) <= self._lowest:
            oldest: Any = min(map(_available_at, rows))
            self._value = min(at - FLOOR_MARGIN, decode_time(oldest))

    def forget(self) -> None:
        self._value = None


class KeyQueueLength:
    """Events per ordering key in the last claim of a queue. The next claim locks about as many keys as it can use,
    instead of, for example, a thousand keys of which it would return all but ten."""

    def __init__(self) -> None:
        self._length = 1.0

    def key_limit(self, limit: int) -> int:
        return max(1, min(limit, int(limit / self._length * 1.25) + 1))

    def learn(self, rows: Sequence[Delivery]) -> None:
        """Record the events per key of a claim. Keys without a claimed event are ignored: the claim may be full."""
        if rows:
            self._length = len(rows) / len(set(map(_ordering_key, rows)))
