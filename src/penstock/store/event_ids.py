"""Ids of events that are emitted."""

from collections.abc import Iterator, Sequence

import uuid_utils.compat as uuid7

from penstock.model.errors import InvalidEvent
from penstock.model.event import Event, EventId


def new_event_id() -> EventId:
    return EventId(uuid7.uuid7())


def refuse_twins(events: Sequence[Event]) -> None:
    """Two events of one batch can't share an id."""
    given = [event.event_id for event in events if event.event_id is not None]
    if len(set(given)) < len(given):
        raise InvalidEvent("two events of one batch have the same event_id")


def ids_for(events: Sequence[Event]) -> Iterator[EventId]:
    """Each event's own id, or a new one, made when it is asked for: while the database is busy with the last one."""
    return (event.event_id or EventId(uuid7.uuid7()) for event in events)
