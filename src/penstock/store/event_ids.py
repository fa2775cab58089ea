"""Event ids of an emit: generate the missing ones, reject duplicates."""

from collections.abc import Iterator, Sequence

import uuid_utils.compat as uuid7

from penstock.model.errors import InvalidEvent
from penstock.model.event import Event, EventId


def new_event_id() -> EventId:
    return EventId(uuid7.uuid7())


def refuse_twins(events: Sequence[Event]) -> None:
    """Raise `InvalidEvent` if two events of a batch have the same id."""
    given = [event.event_id for event in events if event.event_id is not None]
    if len(set(given)) < len(given):
        raise InvalidEvent("duplicate event_id in a batch; use a different one for each event")


def ids_for(events: Sequence[Event]) -> Iterator[EventId]:
    """Yield the id of each event, or a new one. Lazy, so that ids are generated while the database is busy."""
    return (event.event_id or EventId(uuid7.uuid7()) for event in events)
