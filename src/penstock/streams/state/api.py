"""Interface between a stream and its state store.

A stream has a fixed number of state partitions; every key belongs to one of them. One transaction per state partition
contains the inbox, the state and the emitted events.

Fencing: a starting driver takes the stream's next epoch. A task sets its own token on its state partition, if the epoch
is its driver's and no later job has set a token. A transaction commits only if both the epoch and the token are
unchanged.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import repeat
from secrets import randbits
from typing import TYPE_CHECKING, NamedTuple, Protocol
from uuid import UUID

from penstock.model.errors import PenstockError, UsageError
from penstock.model.event import Event
from penstock.streams.arrow_json import EMPTY, values

if TYPE_CHECKING:
    from pyarrow import BinaryArray, StringArray

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Fenced(PenstockError):
    """Another driver has started this stream, or another task has taken the state partition. Uncommitted changes are
    discarded."""


class Superseded(Fenced):
    """Another driver has started this stream. This driver must end."""


class Arrival(NamedTuple):
    """Inbox key of an event. Ids are only compared for equality; a replay of an event has another inbox key."""

    event_id: str
    replays: int = 0


class Position(NamedTuple):
    """Place of an event in a source with a fixed order, such as a partition of a Kafka topic."""

    source_partition: str
    """The topic and its partition."""
    offset: int


@dataclass(frozen=True, slots=True)
class Started:
    """A stream as started by one driver: the driver's epoch, and the number of state partitions set when the stream was
    created."""

    stream: str
    epoch: int
    parts: int
    identity: str = ""
    """Random id, set when the stream is created. A stream that is deleted and created again has another id."""
    job: int = 0
    """Number of the Spark job. A task that Spark considers lost cannot open its state partition after a later Spark job
    has done so."""

    def token(self) -> UUID:
        """Return a new token for one task. Tokens of later drivers are larger, and so are tokens of later Spark jobs of
        one driver."""
        return UUID(int=self._rank << 64 | randbits(64))

    def first_later_token(self) -> UUID:
        """Return the smallest token of a later Spark job. Tokens of this and of earlier Spark jobs are smaller."""
        return UUID(int=self._rank + 1 << 64)

    @property
    def _rank(self) -> int:
        return self.epoch << 40 | self.job


class Saved(NamedTuple):
    """State of one key as opaque bytes, with its expiry time in seconds since 1970, if any."""

    data: bytes
    expires_at: float | None = None

    def expired(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at <= now


# Constructor that runs no Python code, for places that create a `Saved` for each of many keys.
new_saved: Callable[[tuple[bytes, float | None]], Saved] = partial(tuple.__new__, Saved)


class StateColumns(NamedTuple):
    """States as Arrow columns: unique keys in ascending order, and for each a JSON object without line breaks."""

    keys: "StringArray"
    objects: "BinaryArray"


def text_of(keys: "StringArray", states: Mapping[str, Saved], now: float) -> bytes:
    """Return one line per key, in the order of the keys. The line is an empty object if there is no unexpired state."""
    kept = {key: saved.data for key, saved in states.items() if not saved.expired(now)}
    return b"\n".join([kept.get(key, EMPTY) for key in values(keys)])


def states_in(columns: StateColumns, expires_at: float | None) -> dict[str, Saved]:
    """Return the states in these columns, with this expiry time."""
    keys, objects = map(values, columns)
    return dict(zip(keys, map(new_saved, zip(objects, repeat(expires_at), strict=False)), strict=True))


class Timer(NamedTuple):
    """A timer of a key. Timers sort in the order in which they fire."""

    at: float
    """Seconds since 1970."""
    key: str
    name: str

    @property
    def due_at(self) -> datetime:
        """Due time as a datetime."""
        return EPOCH + timedelta(seconds=self.at)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Events emitted by one transaction of a state partition and not yet in the outbox. `batch` increases in the order
    of the commits."""

    batch: int
    events: Sequence[Event]


def checked_part(stream: str, number: int, parts: int) -> int:
    """Return the number of a state partition; raise `UsageError` if the stream does not have this number."""
    if not 0 <= number < parts:
        raise UsageError(f"state partition {number} of stream {stream!r} does not exist; expected 0 to {parts - 1}")
    return number


class PartTransaction(Protocol):
    """Transaction of one state partition: all its changes become visible at the commit, or none."""

    def fresh(self, arrivals: Sequence[Arrival]) -> set[Arrival]:
        """Insert these arrivals into the inbox. Return the arrivals that were not in the inbox before."""
        ...

    def refuse(self, arrivals: Sequence[Arrival]) -> None:
        """Remove these arrivals from the inbox: their events failed and will be delivered again."""
        ...

    def reached(self, partitions: Collection[str]) -> Mapping[str, int]:
        """Return the highest applied offset of each of these source partitions. Source partitions without an offset are
        left out."""
        ...

    def advance(self, offsets: Mapping[str, int]) -> None:
        """Store these offsets as applied. An offset lower than the stored one changes nothing."""
        ...

    def load(self, keys: Collection[str]) -> Mapping[str, Saved]:
        """Return the states of these keys. Keys without a state are left out; expired states may be included."""
        ...

    def load_json(self, keys: "StringArray", now: float) -> bytes:
        """Return the states of these keys as text, one line per key. The keys must be unique and in ascending order,
        and each state must be one line. The line is an empty object if there is no unexpired state."""
        ...

    def save(self, changed: Mapping[str, Saved | None]) -> None:
        """Write the states of these keys; None deletes a state."""
        ...

    def save_columns(self, columns: StateColumns, expires_at: float | None) -> None:
        """Write the states of these keys."""
        ...

    def set_timers(self, timers: Mapping[tuple[str, str], float | None]) -> None:
        """Set the due time of timers, by key and name; None cancels a timer."""
        ...

    def due(self, until: float, limit: int) -> Sequence[Timer]:
        """Return up to `limit` timers that are due at `until` or before, in order. The timers remain until they are
        cancelled."""
        ...

    def emit(self, events: Sequence[Event]) -> None:
        """Store events that this transaction emits. Each event must have an id."""
        ...


class StatePartition(Protocol):
    """A state partition of a stream, opened by one task."""

    def transaction(self) -> AbstractContextManager[PartTransaction]:
        """Open a transaction; commit it at the end of the block, unless the block raises. Raise `Fenced` if another
        task has the state partition."""
        ...

    def trim(self, arrivals: Sequence[Arrival]) -> None:
        """Remove these arrivals from the inbox: their source has the acknowledgement and does not deliver them again.
        Fenced by the epoch."""
        ...

    def outgoing(self) -> Iterator[Outgoing]:
        """Yield the committed events that are not marked as sent, in the order of the commits."""
        ...

    def sent(self, batch: int) -> None:
        """Mark the batches up to this one as sent: their events are in the outbox."""
        ...

    def close(self) -> None: ...


class StateStore(Protocol):
    """State store of streams. Instances are small, and are opened where they are needed."""

    url: str
    shared: bool
    """True if tasks on other machines see the same state."""

    def start(self, stream: str, parts: int) -> Started:
        """Take the next epoch for a new driver. Create `parts` state partitions if the stream is new; keep the existing
        number otherwise."""
        ...

    def held(self, stream: str) -> AbstractContextManager[None]:
        """Keep expensive resources of the stream open between tasks, while a driver runs the stream. An optimisation
        only: this locks nothing, and correctness does not depend on it."""
        ...

    def open_part(self, started: Started, number: int) -> StatePartition:
        """Open a state partition for a task, with a new token. Raise `Fenced` if another driver has taken a newer
        epoch."""
        ...

    def streams(self) -> Sequence[Started]:
        """Return all streams, by name."""
        ...

    def read(
        self, stream: str, keys: Collection[str] | None = None, *, part: int | None = None
    ) -> Iterator[tuple[str, Saved]]:
        """Yield the committed states of these keys or of all, by key, from one state partition or from all. The stream
        may be running."""
        ...

    def forget(self, stream: str, *, older_than_seconds: float) -> int:
        """Delete inbox entries older than this, and expired states. Return the number of deleted entries."""
        ...

    def close(self) -> None: ...
