"""The archive's older half: settled events in segments, which are objects of their own and never change.

A segment that loses events, to a replay or a purge, is written anew under another name; the document says which ones
count. What the document no longer names is swept up by upkeep.
"""

import json
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import StoreError
from penstock.lifecycle import State
from penstock.store.objects.model import Model, note_row
from penstock.store.objects.values import FORMAT, Entry, Line, NoteRow, SegmentRow

# The document keeps the newest settled events, and rolls the others into a segment once there are so many of them.
ROLL_ENTRIES = 1_000
ROLL_CHARACTERS = 256 * 1024
KEPT_ENTRIES = 200
ERROR_LENGTH = 200
ERRORS_KEPT = 20
ENDS_KEPT = 100_000


@dataclass(frozen=True, slots=True)
class Segment:
    """What one object of the archive holds, by seq."""

    entries: dict[int, Entry] = field(default_factory=dict)
    history: dict[int, tuple[Line, ...]] = field(default_factory=dict)
    notes: dict[int, NoteRow] = field(default_factory=dict)

    def to_json(self) -> bytes:
        document = {
            "penstock": FORMAT,
            "events": list(self.entries.values()),
            "history": list(self.history.items()),
            "notes": list(self.notes.items()),
        }
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Segment":
        document = json.loads(data)
        return cls(
            {row[0]: Entry(*row) for row in document["events"]},
            {seq: tuple(Line(*line) for line in lines) for seq, lines in document["history"]},
            {seq: note_row(row) for seq, row in document["notes"]},
        )

    def row(self, name: str) -> SegmentRow:
        counts = Counter((entry.state, entry.queue, entry.event_type) for entry in self.entries.values())
        errors = Counter(error_of(entry) for entry in self.entries.values() if entry.state == State.DEAD)
        return SegmentRow(
            name,
            min(self.entries),
            max(self.entries),
            [(*kind, count) for kind, count in counts.items()],
            errors.most_common(ERRORS_KEPT),
            min(entry.created_at for entry in self.entries.values()),
            max(entry.created_at for entry in self.entries.values()),
        )


def error_of(entry: Entry) -> str:
    """Why an event died, cut to what a summary shows."""
    return (entry.last_error or "")[:ERROR_LENGTH]


def read(model: Model, row: SegmentRow) -> Segment:
    """A segment's contents. Whoever reads keeps them for a while, because they never change."""
    assert model.objects is not None
    data = model.objects.read(row.name)
    if data is None:
        raise StoreError(f"the archive's object {row.name} is gone; restore it from a backup of the bucket")
    return _parsed(row.name, data)


_cache: dict[str, tuple[bytes, Segment]] = {}
_CACHED = 16


def _parsed(name: str, data: bytes) -> Segment:
    """Parsed once as long as the very same bytes come back."""
    known = _cache.get(name)
    if known is not None and known[0] is data:
        return known[1]
    segment = Segment.from_json(data)
    if len(_cache) >= _CACHED:
        _cache.pop(next(iter(_cache)), None)
    _cache[name] = (data, segment)
    return segment


def segments(model: Model, wanted: Callable[[SegmentRow], bool]) -> Iterator[tuple[SegmentRow, Segment]]:
    """The segments that may hold what is wanted, those with the newest events first."""
    for row in sorted(model.segments.values(), key=lambda row: row.last, reverse=True):
        if wanted(row):
            yield row, read(model, row)


def containing(model: Model, seqs: Iterable[int]) -> Iterator[tuple[Segment, set[int]]]:
    """The segments that hold some of these events, and which."""
    left = set(seqs)
    for _, segment in segments(model, lambda row: any(row.first <= seq <= row.last for seq in left)):
        found = left & segment.entries.keys()
        if found:
            yield segment, found


def knowing(model: Model, event_ids: Iterable[str]) -> Iterator[tuple[Segment, list[Entry]]]:
    """The segments that hold events of these ids, or copies of them, and which."""
    wanted = set(event_ids)
    wanted_ends = ends(wanted)
    for _, segment in segments(model, lambda row: may_know(model, row, wanted_ends)):
        found = [entry for entry in segment.entries.values() if entry.event_id in wanted or entry.origin in wanted]
        if found:
            yield segment, found


def any_known(model: Model, event_ids: Iterable[str]) -> bool:
    """Whether an archived event has one of these ids."""
    return any(True for _ in knowing(model, event_ids))


def may_know(model: Model, row: SegmentRow, wanted: Iterable[int]) -> bool:
    """Whether a segment may hold events with ids that end so. Each segment is read for this once, and then known by
    eight bytes an event: an id that is given is held against the whole archive."""
    known = _ends.get(row.name)
    if known is None:
        entries = read(model, row).entries.values()
        ids = {one for entry in entries for one in (entry.event_id, entry.origin) if one is not None}
        known = _ends[row.name] = array("Q", sorted(ends(ids)))
        if len(_ends) > ENDS_KEPT:
            _ends.pop(next(iter(_ends)), None)
    places = ((bisect_left(known, end), end) for end in wanted)
    return any(place < len(known) and known[place] == end for place, end in places)


_ends: dict[str, "array[int]"] = {}


def ends(event_ids: Iterable[str]) -> list[int]:
    """Ids by their last eight bytes, where all kinds of them differ."""
    return [int(one[-16:], 16) for one in event_ids]


def rolls(model: Model) -> bool:
    """Whether the document has more settled events than it should."""
    if len(model.archived) <= KEPT_ENTRIES // 4:
        return False
    return len(model.archived) > ROLL_ENTRIES or model.archived_characters > ROLL_CHARACTERS


def roll(model: Model) -> None:
    """Move all but the newest settled events into a segment. Large ones leave early, however few they are."""
    kept = KEPT_ENTRIES if len(model.archived) > ROLL_ENTRIES else 0
    leaving = list(model.archived)[: len(model.archived) - kept]
    segment = Segment()
    for seq in leaving:
        segment.entries[seq] = model.events[seq]
        _copy(seq, model.history, segment.history)
        _copy(seq, model.notes, segment.notes)
    add(model, segment)
    for seq in leaving:
        model.drop(seq)


def add(model: Model, segment: Segment) -> None:
    """Write a segment, if it holds anything, and name it in the document."""
    if not segment.entries:
        return
    assert model.objects is not None
    model.segments_made += 1
    # The version keeps the names of two brokers apart that count from the same document: only one of them wins.
    name = f"archive/{model.segments_made:08}.{model.write_id}.json"
    model.objects.write(name, segment.to_json())
    model.segments[name] = segment.row(name)
    model.touched = True


def take(model: Model, row: SegmentRow, segment: Segment, seqs: set[int]) -> Segment:
    """Take events out of a segment: what is left of it is written anew. Returns what was taken."""
    taken, left = Segment(), Segment()
    for seq, entry in segment.entries.items():
        target = taken if seq in seqs else left
        target.entries[seq] = entry
        _copy(seq, segment.history, target.history)
        _copy(seq, segment.notes, target.notes)
    del model.segments[row.name]
    model.touched = True
    add(model, left)
    return taken


def _copy(seq: int, source: dict[int, Any], goal: dict[int, Any]) -> None:
    if seq in source:
        goal[seq] = source[seq]
