"""The seam between a stream and its state store.

A stream has a fixed number of parts; every key belongs to one. One transaction per part holds the inbox, the state and
the emitted events. What fences: a starting driver takes the stream's next epoch, and a task sets a token of its own on
its part, where the epoch is its driver's and no later job has it; a transaction commits only if both are still there.
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
    """Another driver has started this stream, or another task has its part: what this one did counts no more."""


class Superseded(Fenced):
    """Another driver has started this stream: this one is to end."""


class Arrival(NamedTuple):
    """What an event is known by in the inbox. Ids are only compared for equality, and a replay is another arrival."""

    event_id: str
    replays: int = 0


class Position(NamedTuple):
    """Where an event stands in a source whose order is fixed, such as a partition of a Kafka topic."""

    source_partition: str
    """The topic and its partition."""
    offset: int


@dataclass(frozen=True, slots=True)
class Started:
    """A stream as its driver finds it: the epoch is this driver's, the parts are those it was created with."""

    stream: str
    epoch: int
    parts: int
    identity: str = ""
    """Made up when the stream was created: one that was deleted and created anew is another one."""
    job: int = 0
    """Counts the driver's jobs. A task that Spark has given up, and that wakes after a later job, has no part."""

    def token(self) -> UUID:
        """A token for one task. Tokens of later drivers are larger, and so are those of later jobs of one driver."""
        return UUID(int=self._rank << 64 | randbits(64))

    def first_later_token(self) -> UUID:
        """No task of this job, or of one before it, has this token or a larger one."""
        return UUID(int=self._rank + 1 << 64)

    @property
    def _rank(self) -> int:
        return self.epoch << 40 | self.job


class Saved(NamedTuple):
    """The state of one key: opaque bytes, and when they are forgotten (seconds since 1970), if ever."""

    data: bytes
    expires_at: float | None = None

    def expired(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at <= now


# Where one is made for each of many keys it is made without a call of Python's.
new_saved: Callable[[tuple[bytes, float | None]], Saved] = partial(tuple.__new__, Saved)


class StateColumns(NamedTuple):
    """States as columns of Arrow: keys in ascending order, none of them twice, and for each an object of JSON without
    line breaks."""

    keys: "StringArray"
    objects: "BinaryArray"


def text_of(keys: "StringArray", states: Mapping[str, Saved], now: float) -> bytes:
    """A line for each of the keys, in their order. Where there is no state, or none by now, it is an empty object."""
    kept = {key: saved.data for key, saved in states.items() if not saved.expired(now)}
    return b"\n".join([kept.get(key, EMPTY) for key in values(keys)])


def states_in(columns: StateColumns, expires_at: float | None) -> dict[str, Saved]:
    """Return the states that the columns hold, forgotten at this time."""
    keys, objects = map(values, columns)
    return dict(zip(keys, map(new_saved, zip(objects, repeat(expires_at), strict=False)), strict=True))


class Timer(NamedTuple):
    """A time that a key waits for. In the order of their fields, timers fire."""

    at: float
    """Seconds since 1970."""
    key: str
    name: str

    @property
    def due_at(self) -> datetime:
        """When it is due, as a time."""
        return EPOCH + timedelta(seconds=self.at)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Events that a part's transactions emitted and that are not yet in the outbox. `batch` numbers their commits."""

    batch: int
    events: Sequence[Event]


def checked_part(stream: str, number: int, parts: int) -> int:
    """The number of a part, if there is such a one."""
    if not 0 <= number < parts:
        raise UsageError(f"{stream!r} has the parts 0 to {parts - 1}, and no part {number}")
    return number


class PartTransaction(Protocol):
    """One part's transaction: nothing of it is seen before it commits, and all of it after."""

    def fresh(self, arrivals: Sequence[Arrival]) -> set[Arrival]:
        """Enter these in the inbox; returns those that were not in it."""
        ...

    def refuse(self, arrivals: Sequence[Arrival]) -> None:
        """Take these out of the inbox again: they failed, and are to come another time."""
        ...

    def reached(self, partitions: Collection[str]) -> Mapping[str, int]:
        """The highest offset that is in the state, of each of these source partitions; of some there may be none."""
        ...

    def advance(self, offsets: Mapping[str, int]) -> None:
        """These offsets are in the state now. A lower one than before changes nothing."""
        ...

    def load(self, keys: Collection[str]) -> Mapping[str, Saved]:
        """The state of these keys; those without any are left out, expired or not is for the caller to see."""
        ...

    def load_json(self, keys: "StringArray", now: float) -> bytes:
        """The same as one text, for states that are one line each. Keys are in ascending order, none of them twice, and
        so are their lines; of one that has no state, or none by now, it is an empty object."""
        ...

    def save(self, changed: Mapping[str, Saved | None]) -> None:
        """Write the state of these keys; None forgets one."""
        ...

    def save_columns(self, columns: StateColumns, expires_at: float | None) -> None:
        """Write the states of these keys."""
        ...

    def set_timers(self, timers: Mapping[tuple[str, str], float | None]) -> None:
        """By key and name, when each is due from now on; None cancels one."""
        ...

    def due(self, until: float, limit: int) -> Sequence[Timer]:
        """The first so many timers up to a time, that included, in order. They stay until they are cancelled."""
        ...

    def emit(self, events: Sequence[Event]) -> None:
        """Keep events that are to be emitted with this transaction. Each has an id."""
        ...


class StatePartition(Protocol):
    """A state partition of a stream, as one task has it."""

    def transaction(self) -> AbstractContextManager[PartTransaction]:
        """A transaction that commits at its end, and not if the block raises. `Fenced` if the part is another's."""
        ...

    def trim(self, arrivals: Sequence[Arrival]) -> None:
        """Forget these: their source has the acknowledgement, and won't bring them again. Fenced by the epoch."""
        ...

    def outgoing(self) -> Iterator[Outgoing]:
        """What was committed and is not yet known to be emitted, oldest first."""
        ...

    def sent(self, batch: int) -> None:
        """Everything up to this batch is in the outbox."""
        ...

    def close(self) -> None: ...


class StateStore(Protocol):
    """The state of streams. Small, and opened where it is used."""

    url: str
    shared: bool
    """Whether tasks on other machines see the same state."""

    def start(self, stream: str, parts: int) -> Started:
        """A driver starts: it takes the next epoch. A new stream gets so many parts; an old one keeps its own."""
        ...

    def held(self, stream: str) -> AbstractContextManager[None]:
        """While a driver runs the stream: what is dear to open and close stays as it is between tasks. Nothing depends
        on it, and nobody is kept out."""
        ...

    def open_part(self, started: Started, number: int) -> StatePartition:
        """A task takes a part, with a fresh token. `Fenced` if the epoch is no longer the stream's."""
        ...

    def streams(self) -> Sequence[Started]:
        """The streams that there are, by name."""
        ...

    def read(
        self, stream: str, keys: Collection[str] | None = None, *, part: int | None = None
    ) -> Iterator[tuple[str, Saved]]:
        """The state of these keys or of all, in one part or in all, by key, as committed: from outside, while the
        stream runs."""
        ...

    def forget(self, stream: str, *, older_than_seconds: float) -> int:
        """Drop what the inbox holds for longer than that, and expired state; returns how much."""
        ...

    def close(self) -> None: ...
