"""What a process learns from its own claims, to make the next ones cheaper. Hints only: without them a claim brings the
same events, more slowly."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter, itemgetter
from typing import Any

from penstock.model.event import Delivery, decode_time
from penstock.store.sql.dialect import AVAILABLE_AT, PRIORITY

ALWAYS = datetime(1, 1, 1, tzinfo=UTC)
FULL_LOOK_SECONDS = 3.0
# More than the time between two full looks: what comes in between them lies above the floor.
FLOOR_MARGIN = timedelta(seconds=5)

_available_at = itemgetter(AVAILABLE_AT)
_priority = itemgetter(PRIORITY)
_ordering_key = attrgetter("ordering_key")


class ScanFloor:
    """Where a claim starts to look. Deleted rows stay in the index until nobody's snapshot needs them, and they gather
    at its front; starting behind them keeps a claim fast. Every few seconds a claim looks at everything, for
    what came back with an older time or was committed late."""

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
        """After a full look: the lowest priority and the oldest time of what it left."""
        self._lowest = lowest
        self._value = min(at - FLOOR_MARGIN, oldest or at)

    def learn(self, at: datetime, rows: Sequence[Delivery]) -> None:
        """After a look from the floor up. One that was filled before it came to the lowest priority knows nothing of
        how old its events are."""
        if not rows:
            self._lowest, self._value = None, at - FLOOR_MARGIN
        elif self._lowest is None or min(map(_priority, rows)) <= self._lowest:
            oldest: Any = min(map(_available_at, rows))
            self._value = min(at - FLOOR_MARGIN, decode_time(oldest))

    def forget(self) -> None:
        self._value = None


class KeyQueueLength:
    """How many events a queue's ordering keys have had waiting: so that a claim takes about as many keys as it can
    use, and not a thousand of which it must give back all but ten."""

    def __init__(self) -> None:
        self._length = 1.0

    def key_limit(self, limit: int) -> int:
        return max(1, min(limit, int(limit / self._length * 1.25) + 1))

    def learn(self, rows: Sequence[Delivery]) -> None:
        """From what a claim got out of its keys: those for which it had no room left say nothing."""
        if rows:
            self._length = len(rows) / len(set(map(_ordering_key, rows)))
