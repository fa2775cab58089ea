"""What the document holds. Everything is of JSON's types, so that a document is written and read without translation:
times are microseconds since 1970, ids are hexadecimal, tuples are lists."""

import base64
from typing import Any, NamedTuple

from penstock.lifecycle import Life, State

FORMAT = 1
MICROS = 1_000_000

# How bytes are kept: as text, as base64, or in an object of their own, whose name stands in their place.
TEXT, BASE64, OBJECT = 0, 1, 2
Blob = tuple[int, str]


def to_blob(data: bytes) -> Blob:
    """Text stays readable for whoever opens the document; anything else becomes base64."""
    try:
        return TEXT, data.decode()
    except UnicodeDecodeError:
        return BASE64, base64.b64encode(data).decode()


def from_blob(form: int, text: str) -> bytes:
    """The bytes of a blob that is in place; those of one in its own object are read there."""
    return text.encode() if form == TEXT else base64.b64decode(text)


class Entry(NamedTuple):
    """An event, whatever its state."""

    seq: int
    event_id: str
    origin: str | None
    """For a copy, the id of the event that it is a copy of."""
    event_type: str
    queue: str
    form: int
    payload: str
    headers: dict[str, str] | None
    partition_key: str | None
    own_key: str | None
    """The ordering key that it was emitted with."""
    ordering_key: str | None
    """The line that it stands in: its own, unless it failed and left it."""
    priority: int
    created_at: int
    available_at: int
    state: str
    attempts: int
    deliveries: int
    max_attempts: int | None
    replays: int
    suspect: int
    last_error: str | None
    lease_id: str | None
    settled_at: int | None

    @property
    def known_as(self) -> str:
        return self.origin or self.event_id

    @property
    def settled(self) -> bool:
        return self.state in (State.PUBLISHED, State.DEAD)

    def life(self) -> Life:
        return Life(
            State(self.state),
            self.attempts,
            self.deliveries,
            self.replays,
            self.suspect,
            self.max_attempts,
            self.last_error,
        )

    def living(self, life: Life, **changes: Any) -> "Entry":
        """The same event after a transition."""
        return self._replace(
            state=life.state.value,
            attempts=life.attempts,
            deliveries=life.deliveries,
            replays=life.replays,
            suspect=life.suspect,
            last_error=life.last_error,
            **changes,
        )


class LeaseRow(NamedTuple):
    """An open lease. A closed one is forgotten, or only its id is kept: see `claiming`."""

    lease_id: str
    queue: str
    claimant: str
    token: str
    max_attempts: int
    claimed_at: int
    expires_at: int
    given: bool
    """Whether the claimant chose the id, and so may come with it again."""


class Line(NamedTuple):
    """A line of an event's history."""

    at: int
    what: str
    attempts: int
    lease_id: str | None
    by: str | None
    detail: str | None


class RelayRow(NamedTuple):
    relay_id: str
    queue: str
    destination: str
    host: str
    started_at: int
    seen_at: int
    stopping: bool


class ControlRow(NamedTuple):
    """How a queue is steered."""

    paused_at: int | None = None
    paused_by: str | None = None
    max_claimed: int | None = None


class NoteRow(NamedTuple):
    """What was said of an event: two blobs."""

    progress: Blob | None = None
    result: Blob | None = None


class SessionRow(NamedTuple):
    """The last answer that a client's session was given: what a repeat of the question is told."""

    number: int
    at: int
    answer: Any


class SegmentRow(NamedTuple):
    """Settled events that were moved into an object of their own, and what has to be known without reading it."""

    name: str
    first: int
    last: int
    counts: list[tuple[str, str, str, int]]
    """State, queue, type, and how many."""
    errors: list[tuple[str, int]]
    """Why the dead ones died, the commonest first."""
    oldest: int
    newest: int
    """When its events were emitted, at the earliest and the latest."""


class BrokerRow(NamedTuple):
    """Who may write, where it is reached, and until when."""

    broker_id: str
    address: str
    secret: str
    expires_at: int
