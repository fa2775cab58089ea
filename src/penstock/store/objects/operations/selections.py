"""Selections of events in a request, and the events that they choose."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from penstock.model.error_kinds import error_pattern
from penstock.model.selection import Selection
from penstock.model.times import to_micros
from penstock.store.objects.document import Document, EventRow


def to_request(selection: Selection) -> dict[str, Any]:
    """Return a selection in JSON types."""
    queues = _both(selection.queue, selection.queues)
    types = _both(selection.event_type, selection.event_types)
    return {
        "ids": None if selection.ids is None else [one.hex for one in selection.ids],
        "states": None if selection.states is None else [state.value for state in selection.states],
        "queues": None if queues is None else sorted(queues),
        "types": None if types is None else sorted(types),
        "since": None if selection.since is None else to_micros(selection.since),
        "until": None if selection.until is None else to_micros(selection.until),
        "error": selection.error,
    }


def _both(one: str | None, several: frozenset[str] | None) -> frozenset[str] | None:
    if one is None:
        return several
    return frozenset({one}) if several is None else several & {one}


def chosen(document: Document, given: Mapping[str, Any]) -> Iterator[EventRow]:
    """Yield the events that match the selection of a request, in no particular order."""
    entries: Iterable[EventRow] = document.events.values()
    if given["ids"] is not None:
        entries = [document.events[document.ids[one]] for one in set(given["ids"]) if one in document.ids]
    error = None if given["error"] is None else re.compile(error_pattern(given["error"]))
    return (entry for entry in entries if _matches(entry, given, error))


def _matches(entry: EventRow, given: Mapping[str, Any], error: re.Pattern[str] | None) -> bool:
    return (
        (given["states"] is None or entry.state in given["states"])
        and (given["queues"] is None or entry.queue in given["queues"])
        and (given["types"] is None or entry.event_type in given["types"])
        and (given["since"] is None or entry.created_at >= given["since"])
        and (given["until"] is None or entry.created_at < given["until"])
        and (error is None or (entry.last_error is not None and error.search(entry.last_error) is not None))
    )
