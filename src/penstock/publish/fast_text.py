"""An event's id and time as text, from the raw values that stores leave in a delivery.

The long way, through `UUID` and `datetime`, takes longer than to send the event.
"""

from datetime import timedelta
from functools import lru_cache

from uuid_utils import UUID

from penstock.model.event import MILLENNIUM, Delivery


def event_id_text(event: Delivery) -> str:
    """The same as `str(event.event_id)`."""
    raw = event[1]
    return str(UUID(bytes=raw)) if isinstance(raw, bytes) else str(raw)


def created_at_text(event: Delivery) -> str:
    """The same as `event.created_at.isoformat()`."""
    raw = event[9]
    if not isinstance(raw, int):
        return str(raw.isoformat())
    seconds, microseconds = divmod(raw, 1_000_000)
    return f"{_second(seconds)}.{microseconds:06}+00:00" if microseconds else f"{_second(seconds)}+00:00"


@lru_cache(maxsize=1_024)
def _second(since_2000: int) -> str:
    """The events of a batch mostly share a few seconds."""
    return (MILLENNIUM + timedelta(seconds=since_2000)).replace(tzinfo=None).isoformat()
