"""Deduplication windows of the events of a batch."""

from collections.abc import Mapping, Sequence

from penstock.model.event import Event, EventId

Window = tuple[str, str]
"""A queue and a dedupe key in it."""
Named = tuple[EventId, Event]
"""An event with the id that it is written under."""


def window(event: Event) -> Window | None:
    return None if event.dedupe_key is None else (event.queue, event.dedupe_key)


def first_of_windows(given: Sequence[Named]) -> dict[Window, Named]:
    """Return the event of a batch that is to open each dedupe window."""
    first: dict[Window, Named] = {}
    for event_id, event in given:
        of_event = window(event)
        if of_event is not None:
            first.setdefault(of_event, (event_id, event))
    return first


def without_duplicates(given: Sequence[Named], opened: Mapping[Window, Named]) -> list[Named]:
    """Return the events of a batch that opened their dedupe window, or have none."""
    openers = {event_id for event_id, _ in opened.values()}
    return [(event_id, event) for event_id, event in given if event.dedupe_key is None or event_id in openers]
