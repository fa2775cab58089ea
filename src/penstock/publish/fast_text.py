"""Event id and creation time as text, from the raw values in a delivery.

Conversion through `UUID` and `datetime` objects takes longer than sending the event.
"""

from datetime import timedelta
from functools import lru_cache

from uuid_utils import UUID

from penstock.model.event import MILLENNIUM, Delivery


def event_id_text(event: Delivery) -> str:
    """Return `str(event.event_id)`."""
    raw = event[1]
    return str(UUID(bytes=raw)) if isinstance(raw, bytes) else str(raw)


def created_at_text(event: Delivery) -> str:
    """Return `event.created_at.isoformat()`."""
    raw = event[9]
    if not isinstance(raw, int):
        return str(raw.isoformat())
    seconds, microseconds = divmod(raw, 1_000_000)
    return f"{_second(seconds)}.{microseconds:06}+00:00" if microseconds else f"{_second(seconds)}+00:00"


@lru_cache(maxsize=1_024)
def _second(since_2000: int) -> str:
    """Return the ISO text of a whole second. Cached, because most events of a batch share a few seconds."""
    return (MILLENNIUM + timedelta(seconds=since_2000)).replace(tzinfo=None).isoformat()
