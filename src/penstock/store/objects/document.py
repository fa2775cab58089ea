"""The queue document in memory: dicts of immutable rows, and the indexes that claims need.

A commit pass changes a copy, at the cost of copying the dicts. Readers keep the durable version, and a failed write is
undone by dropping the copy. Operations raise before they change anything. Rows contain JSON types only: times are
microseconds since 1970, ids are hexadecimal.
"""

import base64
import json
import re
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from penstock.model.errors import StoreError
from penstock.model.lifecycle import Life, State

FORMAT = 2
MICROS = 1_000_000

# Forms of stored bytes: text, base64, or the name of a separate object.
TEXT, BASE64, OBJECT = 0, 1, 2
Blob = Sequence[Any]
"""Form and text."""
PAYLOADS = "payloads"
_OBJECT_NAME = re.compile(rf"{PAYLOADS}/[0-9a-f]+\.[0-9a-f]{{32}}")

_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode


def to_blob(data: bytes) -> Blob:
    """Encode bytes as text where possible, so that the document stays readable."""
    try:
        return TEXT, data.decode()
    except UnicodeDecodeError:
        return BASE64, base64.b64encode(data).decode()


def from_blob(form: int, text: str) -> bytes:
    """Decode bytes that are stored inside the document."""
    return text.encode() if form == TEXT else base64.b64decode(text)


def require_own_objects(blobs: Iterable[Blob]) -> None:
    """Raise `StoreError` for an object name that no store makes: in a folder, such a name could be any path."""
    for blob in blobs:
        if blob[0] == OBJECT and not _OBJECT_NAME.fullmatch(blob[1]):
            raise StoreError(f"invalid object name {blob[1]!r}; object names are made by the store")


_LIFE = tuple(field.name for field in fields(Life))


class HistoryRow(NamedTuple):
    """A transition in an event's history."""

    at: int
    what: str
    attempts: int
    lease_id: str | None
    by: str | None
    detail: str | None


class EventRow(NamedTuple):
    """An event in any state. Fields with a default come last, so that the document can omit unset ones at the end."""

    seq: int
    event_id: str
    event_type: str
    queue: str
    form: int
    payload: str
    priority: int
    created_at: int
    available_at: int
    state: str = State.PENDING
    attempts: int = 0
    deliveries: int = 0
    lease_id: str | None = None
    settled_at: int | None = None
    headers: dict[str, str] | None = None
    partition_key: str | None = None
    max_attempts: int | None = None
    replays: int = 0
    suspect: int = 0
    last_error: str | None = None
    progress: Blob | None = None
    result: Blob | None = None
    history: Sequence[Sequence[Any]] = ()

    @property
    def settled(self) -> bool:
        return self.state in (State.PUBLISHED, State.DEAD)

    @property
    def blobs(self) -> list[Blob]:
        """The payload, and progress and result if the event has them."""
        return [(self.form, self.payload), *(blob for blob in (self.progress, self.result) if blob is not None)]

    @property
    def weight(self) -> int:
        """Approximate number of characters of the event in the document."""
        return 200 + sum(len(blob[1]) for blob in self.blobs) + 20 * len(self.headers or ()) + 120 * len(self.history)

    def life(self) -> Life:
        return Life(State(self.state), *(getattr(self, name) for name in _LIFE[1:]))

    def living(self, life: Life, step: HistoryRow | None = None, **changes: Any) -> "EventRow":
        """Return the event after a transition, with a row in its history."""
        if step is not None:
            changes["history"] = (*self.history, step)
        return self._replace(**{name: getattr(life, name) for name in _LIFE}, **changes)

    def trimmed(self) -> Sequence[Any]:
        """Return the fields without the defaults at the end."""
        size = len(self)
        while self[size - 1] in (None, 0, ()):
            size -= 1
        return self[:size]


class LeaseRow(NamedTuple):
    """An open lease. Of a closed lease at most id and time are kept: see `operations.claims.close_if_done`."""

    lease_id: str
    queue: str
    claimant: str
    token: str
    max_attempts: int
    claimed_at: int
    expires_at: int
    given: bool
    """True if the claimant chose the lease id, and therefore can repeat the claim."""


class RelayRow(NamedTuple):
    """A relay or worker that has announced itself."""

    relay_id: str
    queue: str
    destination: str
    host: str
    started_at: int
    seen_at: int
    stopping: bool


class SessionRow(NamedTuple):
    """The last answer to a client session, returned again for a repeated request."""

    number: int
    at: int
    answer: Any


class BrokerRow(NamedTuple):
    """The broker lease: which process may write, its address, and the end of the lease."""

    broker_id: str
    address: str
    secret: str
    expires_at: int


class Document:
    """The state of all queues of a store. `changed` is true if it differs from the version that was read."""

    def __init__(self) -> None:
        self.version = 0
        self.last_seq = 0
        self.broker: BrokerRow | None = None
        self.events: dict[int, EventRow] = {}
        self.leases: dict[str, LeaseRow] = {}
        self.closed: dict[str, int] = {}
        self.windows: dict[tuple[str, str], tuple[str, int]] = {}
        self.paused: dict[str, tuple[int, str]] = {}
        self.relays: dict[str, RelayRow] = {}
        self.sessions: dict[str, SessionRow] = {}
        self.purged: dict[str, int] = {}
        # Not written: the indexes, and the state of a commit pass.
        self.ids: dict[str, int] = {}
        self.ready: dict[str, list[tuple[int, int, int]]] = {}
        self.claimed: dict[int, str] = {}
        self.held: dict[str, int] = {}
        self.published: dict[int, None] = {}
        self.published_size = 0
        self.size = 0
        self.now = 0
        self.changed = False
        self.texts: dict[int, str] = {}
        self.stale: dict[int, None] = {}

    def copy(self) -> "Document":
        """Return a document that can be changed independently of this one."""
        other = Document.__new__(Document)
        for name, value in self.__dict__.items():
            other.__dict__[name] = value.copy() if isinstance(value, dict) else value
        other.ready = {queue: ranks.copy() for queue, ranks in self.ready.items()}
        other.changed = False
        return other

    def at(self, now: int) -> "Document":
        """Return a read-only view of this document at the time `now`."""
        other = Document.__new__(Document)
        other.__dict__.update(self.__dict__, now=now)
        return other

    # -- events -----------------------------------------------------------------------------------------------

    def put(self, entry: EventRow) -> None:
        """Add or replace an event."""
        old = self.events.get(entry.seq)
        if old is not None:
            self._unindex(old)
        self.events[entry.seq] = entry
        self.ids[entry.event_id] = entry.seq
        self.stale[entry.seq] = None
        self._index(entry)
        self.changed = True

    def drop(self, seq: int) -> None:
        """Delete an event with its history."""
        entry = self.events.pop(seq)
        self._unindex(entry)
        self.texts.pop(seq, None)
        self.stale.pop(seq, None)
        del self.ids[entry.event_id]
        self.changed = True

    def _index(self, entry: EventRow) -> None:
        match entry.state:
            case State.PENDING:
                insort(self.ready.setdefault(entry.queue, []), _rank(entry))
            case State.CLAIMED:
                assert entry.lease_id is not None
                self.claimed[entry.seq] = entry.lease_id
                self.held[entry.lease_id] = self.held.get(entry.lease_id, 0) + 1
            case State.PUBLISHED:
                self.published[entry.seq] = None
                self.published_size += entry.weight

    def _unindex(self, entry: EventRow) -> None:
        match entry.state:
            case State.PENDING:
                ranks = self.ready[entry.queue]
                del ranks[bisect_left(ranks, _rank(entry))]
                if not ranks:
                    del self.ready[entry.queue]
            case State.CLAIMED:
                lease_id = self.claimed.pop(entry.seq)
                self.held[lease_id] -= 1
                if not self.held[lease_id]:
                    del self.held[lease_id]
            case State.PUBLISHED:
                del self.published[entry.seq]
                self.published_size -= entry.weight

    def under(self, lease_id: str) -> list[EventRow]:
        """Return the events that are claimed under a lease."""
        return [self.events[seq] for seq, holder in self.claimed.items() if holder == lease_id]

    # -- JSON -------------------------------------------------------------------------------------------------

    def to_json(self) -> bytes:
        document = {
            "penstock": FORMAT,
            **{name: getattr(self, name) for name in _PLAIN},
            "columns": {"events": EventRow._fields, "leases": LeaseRow._fields, "history": HistoryRow._fields},
            "leases": list(self.leases.values()),
            "windows": [(*key, *value) for key, value in self.windows.items()],
            "relays": list(self.relays.values()),
        }
        # Encode only changed events: most don't change between two writes.
        self.texts.update((seq, _dumps(self.events[seq].trimmed())) for seq in self.stale)
        self.stale = {}
        data = f'{_dumps(document)[:-1]},"events":[{",".join(self.texts.values())}]}}'.encode()
        self.size = len(data)
        return data

    @classmethod
    def from_json(cls, data: bytes) -> "Document":
        read = json.loads(data)
        found = read.get("penstock")
        if found != FORMAT:
            remedy = "use an empty bucket or another prefix, and run: penstock init"
            if isinstance(found, int) and found > FORMAT:
                remedy = "upgrade Penstock"
            raise StoreError(f"queue document must have format {FORMAT}, got {found!r}; {remedy}")
        document = cls()
        document._read(read)
        document.size, document.changed = len(data), False
        return document

    def _read(self, read: dict[str, Any]) -> None:
        for name in _PLAIN:
            setattr(self, name, read[name])
        self.broker = None if self.broker is None else BrokerRow(*self.broker)
        self.leases = {row[0]: LeaseRow(*row) for row in read["leases"]}
        self.windows = {(queue, key): (first, until) for queue, key, first, until in read["windows"]}
        self.relays = {row[0]: RelayRow(*row) for row in read["relays"]}
        self.sessions = {name: SessionRow(*row) for name, row in self.sessions.items()}
        for row in read["events"]:
            self.put(EventRow(*row))
        # By settlement time, because retention deletes the first events of this index.
        self.published = dict.fromkeys(sorted(self.published, key=lambda seq: self.events[seq].settled_at or 0))


_PLAIN = ("version", "last_seq", "broker", "closed", "paused", "sessions", "purged")


def _rank(entry: EventRow) -> tuple[int, int, int]:
    return -entry.priority, entry.available_at, entry.seq
