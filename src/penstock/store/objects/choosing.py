"""Selections over a model: which events, in the document and in the archive's segments."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.lifecycle import State
from penstock.store.base import Selection
from penstock.store.error_text import error_pattern
from penstock.store.objects import archive
from penstock.store.objects.archive import Segment
from penstock.store.objects.model import Model
from penstock.store.objects.values import Entry, SegmentRow
from penstock.store.schema import to_micros

SETTLED = frozenset({State.PUBLISHED.value, State.DEAD.value})


@dataclass(frozen=True, slots=True)
class Choice:
    """A selection, as a request carries it, ready to be held against entries."""

    ids: frozenset[str] | None
    states: frozenset[str] | None
    queues: frozenset[str] | None
    types: frozenset[str] | None
    since: int | None
    until: int | None
    error: re.Pattern[str] | None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Choice":
        def listed(name: str) -> frozenset[str] | None:
            return None if given[name] is None else frozenset(given[name])

        return cls(
            listed("ids"),
            listed("states"),
            listed("queues"),
            listed("types"),
            given["since"],
            given["until"],
            None if given["error"] is None else re.compile(error_pattern(given["error"])),
        )

    def has(self, entry: Entry) -> bool:
        return (
            (self.states is None or entry.state in self.states)
            and (self.queues is None or entry.queue in self.queues)
            and (self.types is None or entry.event_type in self.types)
            and (self.since is None or entry.created_at >= self.since)
            and (self.until is None or entry.created_at < self.until)
            and (self.ids is None or not self.ids.isdisjoint((entry.event_id, entry.origin or "")))
            and (self.error is None or self._told(entry.last_error))
        )

    def _told(self, error: str | None) -> bool:
        return error is not None and self.error is not None and self.error.search(error) is not None

    def may_have(self, row: SegmentRow) -> bool:
        """Whether it is worth reading a segment."""
        return (
            (self.since is None or row.newest >= self.since)
            and (self.until is None or row.oldest < self.until)
            and any(self.counts(state, queue, kind) for state, queue, kind, _ in row.counts)
        )

    def counts(self, state: str, queue: str, kind: str) -> bool:
        """Whether events of a kind are chosen, as far as their kind says."""
        return (
            (self.states is None or state in self.states)
            and (self.queues is None or queue in self.queues)
            and (self.types is None or kind in self.types)
        )

    @property
    def by_kind(self) -> bool:
        """Whether a segment's counts alone say how many of its events are chosen."""
        return all(part is None for part in (self.ids, self.since, self.until, self.error))


def as_request(selection: Selection) -> dict[str, Any]:
    """A selection in JSON's types."""
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


def in_document(model: Model, choice: Choice) -> Iterator[Entry]:
    """The chosen events that the document has, in no order."""
    if choice.ids is not None:
        seqs = {seq for one in choice.ids for seq in model.ids.get(one, ())}
        return (model.events[seq] for seq in seqs if choice.has(model.events[seq]))
    return filter(choice.has, model.events.values())


def in_segments(model: Model, choice: Choice) -> Iterator[tuple[SegmentRow, Segment]]:
    """The segments that may have some of the chosen events, the newest first."""
    return archive.segments(model, lambda row: worth_reading(model, choice, row))


def worth_reading(model: Model, choice: Choice, row: SegmentRow) -> bool:
    """Whether a segment may have some of the chosen events."""
    return choice.may_have(row) and (choice.ids is None or archive.may_know(model, row, archive.ends(choice.ids)))


def settled(model: Model, choice: Choice) -> Iterator[Entry]:
    """All chosen events that are settled."""
    yield from (entry for entry in in_document(model, choice) if entry.settled)
    for _, segment in in_segments(model, choice):
        yield from filter(choice.has, segment.entries.values())


def counted(model: Model, choice: Choice) -> Counter[tuple[str, str, str]]:
    """How many settled events were chosen, by state, queue and type."""
    found: Counter[tuple[str, str, str]] = Counter()
    if not choice.by_kind:
        found.update((entry.state, entry.queue, entry.event_type) for entry in settled(model, choice))
        return found
    here = (entry for entry in in_document(model, choice) if entry.settled)
    found.update((entry.state, entry.queue, entry.event_type) for entry in here)
    for row in model.segments.values():
        for state, queue, kind, count in row.counts:
            if choice.counts(state, queue, kind):
                found[(state, queue, kind)] += count
    return found


def by_number(counts: Counter[tuple[str, str, str]]) -> list[tuple[str, str, str, int]]:
    """Kinds of events with their counts, the most first."""
    return sorted(((*kind, count) for kind, count in counts.items()), key=lambda row: (-row[3], row[:3]))
