"""The queue in memory: a few dicts of immutable values, and the indexes that claims need.

A pass works on a copy, which costs no more than copying the dicts: whoever reads goes on with the model that is known
to be durable, and a write that failed is undone by forgetting the copy. Verbs raise before they change anything.
"""

import json
from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import Any, Protocol

from penstock.errors import StoreError
from penstock.lifecycle import State
from penstock.store.objects.values import (
    FORMAT,
    BrokerRow,
    ControlRow,
    Entry,
    LeaseRow,
    Line,
    NoteRow,
    RelayRow,
    SegmentRow,
    SessionRow,
)

Key = tuple[str, str]
_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode


class Objects(Protocol):
    """Objects beside the document, as verbs see them. What is written becomes an object before the document does."""

    def read(self, name: str) -> bytes | None: ...
    def write(self, name: str, data: bytes) -> None: ...


class Texts:
    """Entries as they stand in the document. Most don't change from one write to the next, so each is encoded once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Entry, str]] = {}

    def of(self, events: Mapping[int, Entry]) -> list[str]:
        if len(self._known) > 2 * len(events) + 1_000:
            self._known = {seq: text for seq, text in self._known.items() if seq in events}
        known, texts = self._known, []
        for seq, entry in events.items():
            found = known.get(seq)
            if found is None or found[0] is not entry:
                found = known[seq] = (entry, _dumps(entry))
            texts.append(found[1])
        return texts


class Model:
    """All of a queue's state. `touched` says that it is no longer what was read."""

    def __init__(self) -> None:
        self.version = 0
        self.write_id = ""
        self.last_seq = 0
        self.segments_made = 0
        self.broker: BrokerRow | None = None
        self.events: dict[int, Entry] = {}
        self.history: dict[int, tuple[Line, ...]] = {}
        self.notes: dict[int, NoteRow] = {}
        self.leases: dict[str, LeaseRow] = {}
        self.closed: dict[str, int] = {}
        self.dedupe: dict[Key, tuple[str, int]] = {}
        self.controls: dict[str, ControlRow] = {}
        self.relays: dict[str, RelayRow] = {}
        self.sessions: dict[str, SessionRow] = {}
        self.purged: dict[str, int] = {}
        self.sinks: dict[str, int] = {}
        self.segments: dict[str, SegmentRow] = {}
        self.turns: dict[Key, int] = {}
        # From here on nothing is written: the indexes, and what a pass needs to know.
        self.ids: dict[str, tuple[int, ...]] = {}
        self.ready: dict[str, list[tuple[int, int, int]]] = {}
        self.lines: dict[Key, tuple[int, ...]] = {}
        self.busy: dict[Key, int] = {}
        self.free: dict[str, list[tuple[int, str]]] = {}
        self.placed: dict[Key, int] = {}
        self.claimed: dict[int, str] = {}
        self.holding: dict[str, int] = {}
        self.claimed_in: dict[str, int] = {}
        self.archived: dict[int, None] = {}
        self.archived_characters = 0
        self.keyed_first = False
        self.size = 0
        self.now = 0
        self.touched = False
        self.objects: Objects | None = None
        self.texts = Texts()

    def copy(self) -> "Model":
        """A model that can be changed without this one noticing."""
        other = Model.__new__(Model)
        for name, value in self.__dict__.items():
            other.__dict__[name] = value.copy() if isinstance(value, dict) else value
        other.ready = {queue: line.copy() for queue, line in self.ready.items()}
        other.free = {queue: line.copy() for queue, line in self.free.items()}
        other.touched = False
        return other

    def at(self, now: int, objects: Objects) -> "Model":
        """This model as a reader sees it at some time: the same dicts, which a reader doesn't change."""
        other = Model.__new__(Model)
        other.__dict__.update(self.__dict__, now=now, objects=objects)
        return other

    # -- events -----------------------------------------------------------------------------------------------

    def put(self, entry: Entry) -> None:
        """Add an event, or change one."""
        old = self.events.get(entry.seq)
        if old is None:
            self.ids[entry.known_as] = (*self.ids.get(entry.known_as, ()), entry.seq)
        else:
            self._unplace(old)
        self.events[entry.seq] = entry
        self._place(entry)
        self.touched = True

    def drop(self, seq: int) -> None:
        """Forget an event, and all that was said of it."""
        entry = self.events.pop(seq)
        self._unplace(entry)
        left = tuple(other for other in self.ids[entry.known_as] if other != seq)
        if left:
            self.ids[entry.known_as] = left
        else:
            del self.ids[entry.known_as]
        self.history.pop(seq, None)
        self.notes.pop(seq, None)
        self.touched = True

    def _place(self, entry: Entry) -> None:
        match entry.state:
            case State.PENDING if entry.ordering_key is None:
                insort(self.ready.setdefault(entry.queue, []), _rank(entry))
            case State.PENDING:
                key = (entry.queue, entry.ordering_key or "")
                self.lines[key] = _with(self.lines.get(key, ()), entry.seq)
                self.turns.setdefault(key, self.now)
                self._place_key(key)
            case State.CLAIMED:
                assert entry.lease_id is not None
                self.claimed[entry.seq] = entry.lease_id
                self.holding[entry.lease_id] = self.holding.get(entry.lease_id, 0) + 1
                self.claimed_in[entry.queue] = self.claimed_in.get(entry.queue, 0) + 1
                if entry.ordering_key is not None:
                    key = (entry.queue, entry.ordering_key)
                    self.busy[key] = self.busy.get(key, 0) + 1
                    self.turns.setdefault(key, self.now)
                    self._place_key(key)
            case _:
                self.archived[entry.seq] = None
                self.archived_characters += _characters(entry)

    def _unplace(self, entry: Entry) -> None:
        match entry.state:
            case State.PENDING if entry.ordering_key is None:
                line = self.ready[entry.queue]
                del line[bisect_left(line, _rank(entry))]
                if not line:
                    del self.ready[entry.queue]
            case State.PENDING:
                key = (entry.queue, entry.ordering_key or "")
                self.lines[key] = _without(self.lines[key], entry.seq)
                self._place_key(key)
            case State.CLAIMED:
                assert entry.lease_id is not None
                del self.claimed[entry.seq]
                _less(self.holding, entry.lease_id)
                _less(self.claimed_in, entry.queue)
                if entry.ordering_key is not None:
                    key = (entry.queue, entry.ordering_key)
                    _less(self.busy, key)
                    if key not in self.busy:  # it was served, and goes to the back
                        self.turns[key] = self.now
                    self._place_key(key)
            case _:
                del self.archived[entry.seq]
                self.archived_characters -= _characters(entry)

    def _place_key(self, key: Key) -> None:
        """Where a key stands among those that may be claimed from: not at all while it is held, or has no events."""
        queue, name = key
        before = self.placed.pop(key, None)
        if before is not None:
            line = self.free[queue]
            del line[bisect_left(line, (before, name))]
            if not line:
                del self.free[queue]
        if not self.lines.get(key):
            self.lines.pop(key, None)
        if key in self.busy:
            return
        if key not in self.lines:
            self.turns.pop(key, None)
            return
        at = max(self.turns[key], self.events[self.lines[key][0]].available_at)
        insort(self.free.setdefault(queue, []), (at, name))
        self.placed[key] = at

    def under(self, lease_id: str) -> list[Entry]:
        """What is claimed under a lease."""
        return [self.events[seq] for seq, holder in self.claimed.items() if holder == lease_id]

    def record(self, seq: int, line: Line) -> None:
        self.history[seq] = (*self.history.get(seq, ()), line)
        self.touched = True

    # -- the document -----------------------------------------------------------------------------------------

    def to_json(self) -> bytes:
        document = {
            "penstock": FORMAT,
            **{name: getattr(self, name) for name in _SCALARS},
            "columns": {name: kind._fields for name, kind in _ROWS.items()},
            "history": list(self.history.items()),
            "notes": list(self.notes.items()),
            "leases": list(self.leases.values()),
            "closed": self.closed,
            "dedupe": [(*key, *value) for key, value in self.dedupe.items()],
            "controls": self.controls,
            "relays": list(self.relays.values()),
            "sessions": self.sessions,
            "purged": self.purged,
            "sinks": self.sinks,
            "segments": list(self.segments.values()),
            "turns": [(*key, at) for key, at in self.turns.items()],
        }
        data = f'{_dumps(document)[:-1]},"events":[{",".join(self.texts.of(self.events))}]}}'.encode()
        self.size = len(data)
        return data

    @classmethod
    def from_json(cls, data: bytes) -> "Model":
        document = json.loads(data)
        if document.get("penstock") != FORMAT:
            raise StoreError(
                f"the document has format {document.get('penstock')!r}, and this Penstock knows {FORMAT}: upgrade it"
            )
        model = cls()
        model._read(document)
        model.size = len(data)
        model.touched = False
        return model

    def _read(self, document: dict[str, Any]) -> None:
        for name in _SCALARS:
            setattr(self, name, document[name])
        self.broker = None if self.broker is None else BrokerRow(*self.broker)
        self.turns = {(queue, key): at for queue, key, at in document["turns"]}
        self.leases = {row[0]: LeaseRow(*row) for row in document["leases"]}
        self.closed = document["closed"]
        self.dedupe = {(queue, key): (found, at) for queue, key, found, at in document["dedupe"]}
        self.controls = {queue: ControlRow(*row) for queue, row in document["controls"].items()}
        self.relays = {row[0]: RelayRow(*row) for row in document["relays"]}
        self.sessions = {name: SessionRow(*row) for name, row in document["sessions"].items()}
        self.purged = document["purged"]
        self.sinks = document["sinks"]
        self.segments = {row[0]: SegmentRow(*row) for row in document["segments"]}
        turns = dict(self.turns)
        for row in document["events"]:
            self.put(Entry(*row))
        self.turns.update((key, at) for key, at in turns.items() if key in self.turns)
        for key in list(self.placed):
            self._place_key(key)
        self.history = {seq: tuple(Line(*line) for line in lines) for seq, lines in document["history"]}
        self.notes = {seq: note_row(row) for seq, row in document["notes"]}


_SCALARS = ("version", "write_id", "last_seq", "segments_made", "broker")
# For whoever reads the document by eye, or by another program.
_ROWS: dict[str, Any] = {"events": Entry, "leases": LeaseRow, "history": Line, "notes": NoteRow, "relays": RelayRow}


def note_row(row: Any) -> NoteRow:
    """A note as it was read."""
    progress, result = row
    return NoteRow(progress and tuple(progress), result and tuple(result))


def _rank(entry: Entry) -> tuple[int, int, int]:
    return -entry.priority, entry.available_at, entry.seq


def _characters(entry: Entry) -> int:
    """What makes some entries larger than others."""
    return len(entry.payload) + len(entry.last_error or "")


def _with(line: tuple[int, ...], seq: int) -> tuple[int, ...]:
    place = bisect_left(line, seq)
    return (*line[:place], seq, *line[place:])


def _without(line: tuple[int, ...], seq: int) -> tuple[int, ...]:
    place = bisect_left(line, seq)
    return (*line[:place], *line[place + 1 :])


def _less(counts: dict[Any, int], name: Any) -> None:
    if counts[name] == 1:
        del counts[name]
    else:
        counts[name] -= 1
