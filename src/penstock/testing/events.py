"""Deliveries for tests. Each call returns a different one, and a test sets only the fields that it needs."""

from datetime import UTC, datetime
from itertools import count
from typing import Any
from uuid import uuid4

from penstock.model.event import DEFAULT_QUEUE, Delivery, EventId

CREATED_AT = datetime(2026, 1, 1, 12, tzinfo=UTC)

_seqs = count(1)


def delivery(**overrides: Any) -> Delivery:
    """Return a delivery as in a first claim, with a unique seq and id."""
    example = Delivery(
        seq=next(_seqs),
        event_id=EventId(uuid4()),
        event_type="orders.created",
        queue=DEFAULT_QUEUE,
        payload=b'{"order": 1}',
        headers={},
        partition_key=None,
        ordering_key=None,
        priority=0,
        created_at=CREATED_AT,
        available_at=CREATED_AT,
        attempts=0,
        deliveries=1,
        max_attempts=None,
        replays=0,
        suspect=0,
        last_error=None,
    )
    return example._replace(**overrides)
