"""Retries of a store operation during an outage."""

import random
import time
from collections.abc import Callable
from typing import TypeVar

from penstock.model.errors import StoreConflict, StoreUnavailable

Result = TypeVar("Result")

# Seconds for which a stopping process retries to settle published events.
LAST_SETTLE_SECONDS = 3.0


def insist(
    verb: Callable[[], Result],
    lease_seconds: float,
    stopped: Callable[[], bool],
    on_error: Callable[[Exception], None],
) -> Result | None:
    """Call a store operation and retry it for up to `lease_seconds` during an outage; return None if the outage lasts.

    Settling is retried so that a published event is not published again. Repeating a settle that may have been
    committed is safe: the store reports the events as already settled.
    """
    began = time.monotonic()
    backoff = 0.05
    while True:
        try:
            return verb()
        except (StoreUnavailable, StoreConflict) as error:
            on_error(error)
            patience = min(lease_seconds, LAST_SETTLE_SECONDS) if stopped() else lease_seconds
            if time.monotonic() - began > patience:
                return None
            time.sleep(backoff * (1 + random.random()))
            backoff = min(backoff * 2, 1.0)
