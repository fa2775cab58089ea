"""Repeat a verb of the store through an outage."""

import random
import time
from collections.abc import Callable
from typing import TypeVar

from penstock.model.errors import StoreConflict, StoreUnavailable

Result = TypeVar("Result")

# How long a process that is to stop goes on trying to settle what it published.
LAST_SETTLE_SECONDS = 3.0


def insist(
    verb: Callable[[], Result],
    lease_seconds: float,
    stopped: Callable[[], bool],
    on_error: Callable[[Exception], None],
) -> Result | None:
    """Call a verb of the store, through an outage for as long as a lease; return None if the outage lasts longer.

    A published event must not be published again because its settle was given up early. A settle that may have been
    committed is safe to repeat: the store answers "already settled".
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
