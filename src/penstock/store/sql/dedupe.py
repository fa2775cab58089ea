"""Deduplication windows of the events of a batch."""

from collections.abc import Mapping, Sequence

from penstock.model.event import Event, EventId

Window = tuple[str, str]
"""A queue and a deduplication key."""
Named = tuple[EventId, Event]
"""An event with the id under which it is written."""


def window(event: Event) -> Window | None:
    return None if event.dedupe_key is None else (event.queue, event.dedupe_key)


def first_of_windows(given: Sequence[Named]) -> dict[Window, Named]:
    """Return the first event of each deduplication window in a batch; it opens the window unless one is open."""
    first: dict[Window, Named] = {}
    for event_id, event in given:
        of_event = window(event)
        if of_event is not None:
            first.setdefault(of_event, (event_id, event))
    return first


def without_duplicates(given: Sequence[Named], opened: Mapping[Window, Named]) -> list[Named]:
    """Return the events of a batch that opened their deduplication window or have no deduplication key."""
    openers = {event_id for event_id, _ in opened.values()}
    return [(event_id, event) for event_id, event in given if event.dedupe_key is None or event_id in openers]
