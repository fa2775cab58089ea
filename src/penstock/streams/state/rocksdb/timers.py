"""Timers in RocksDB. Each timer has two entries: one in order of time, and one by key and name, to move or cancel the
timer."""

from collections.abc import Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING

from penstock.streams.state.api import Timer

if TYPE_CHECKING:
    from rocksdict import Rdict, WriteBatch

ORDERED, NAMED = b"t", b"k"
SECONDS = Struct(">d")
BITS = Struct(">Q")
SIGN, ALL = 2**63, 2**64 - 1


class RocksTimers:
    """Buffered timer changes of one transaction, over the stored timers. Nothing is written before `put`."""

    def __init__(self, database: "Rdict") -> None:
        self._database = database
        self._changed: dict[tuple[str, str], float | None] = {}

    def set(self, timers: Mapping[tuple[str, str], float | None]) -> None:
        self._changed |= timers

    def due(self, until: float, limit: int) -> Sequence[Timer]:
        kept = (timer for timer in self._stored(until) if (timer.key, timer.name) not in self._changed)
        own = (Timer(at, *named) for named, at in self._changed.items() if at is not None and at <= until)
        return nsmallest(limit, [*islice(kept, limit), *own])

    def put(self, batch: "WriteBatch") -> None:
        """Add the changes to the write batch of the transaction."""
        if not self._changed:
            return
        names = [_named(*named) for named in self._changed]
        before: list[bytes | None] = self._database.get(list(names)) or []
        for named, name, old in zip(self._changed, names, before, strict=True):
            if old is not None:
                batch.delete(ORDERED + old + name[1:])
            at = self._changed[named]
            if at is not None:
                batch.put(ORDERED + _sortable(at) + name[1:], b"")
                batch.put(name, _sortable(at))
            elif old is not None:
                batch.delete(name)

    def _stored(self, until: float) -> Iterator[Timer]:
        for entry in self._database.keys(from_key=ORDERED):
            assert isinstance(entry, bytes)
            if not entry.startswith(ORDERED):
                return
            at = _seconds(entry[1 : 1 + BITS.size])
            if at > until:
                return
            key, _, name = entry[1 + BITS.size :].partition(b"\x00")
            yield Timer(at, key.decode(), name.decode())


def _named(key: str, name: str) -> bytes:
    """Return the database key of a timer by key and name. A NUL, which no key contains, ends the key and sorts shorter
    keys first."""
    return NAMED + key.encode() + b"\x00" + name.encode()


def _sortable(at: float) -> bytes:
    """Return a number as bytes that sort numerically. All bits of a negative number are inverted, so that negative
    numbers sort first and in the right order."""
    (bits,) = BITS.unpack(SECONDS.pack(at + 0.0))
    return BITS.pack(bits ^ (ALL if bits & SIGN else SIGN))


def _seconds(sortable: bytes) -> float:
    (bits,) = BITS.unpack(sortable)
    at: float = SECONDS.unpack(BITS.pack(bits ^ (SIGN if bits & SIGN else ALL)))[0]
    return at
