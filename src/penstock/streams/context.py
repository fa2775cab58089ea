"""What a handler works with beside its event: the state of the event's key, and a way to emit.

Everything a handler does is buffered for its event alone: if it fails, nothing of it remains.
"""

import copy
import json
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import uuid_utils.compat as uuid7

from penstock.errors import UsageError
from penstock.event import DEFAULT_QUEUE, Event, EventId, encode_payload
from penstock.streams.event import decode_json
from penstock.streams.state.base import Saved

_GONE = object()
_COPIED = (dict, list)
_PLAIN = frozenset({str, bool, type(None)})
_INTEGERS = 2**63
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class KeyState(MutableMapping[str, Any]):
    """The state of one key: names to whatever JSON can say. `settle` keeps what an event changed, `undo` drops it."""

    __slots__ = ("_changes", "_values", "dirty")

    def __init__(self, saved: Saved | None = None) -> None:
        self._values: dict[str, Any] = {} if saved is None else decode_json(saved.data)
        self._changes: dict[str, Any] = {}
        self.dirty = False
        """Whether an event that succeeded has changed it."""

    def __getitem__(self, name: str) -> Any:
        value = self.get(name, _GONE)
        if value is _GONE:
            raise KeyError(name)
        return value

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a name, or the default."""
        if name in self._changes:
            value = self._changes[name]
        else:
            value = self._values.get(name, _GONE)
            if isinstance(value, _COPIED):
                # It may be changed in place: a copy is, so that a failed event leaves the original.
                value = self._changes[name] = copy.deepcopy(value)
        return default if value is _GONE else value

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str):
            raise UsageError(f"names of state are strings, not {type(name).__name__}")
        self._changes[name] = value

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        self._changes[name] = _GONE

    def __iter__(self) -> Iterator[str]:
        kept = (name for name in self._values if name not in self._changes)
        return iter([*kept, *(name for name, value in self._changes.items() if value is not _GONE)])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def put(self, name: str, value: Any) -> None:
        """The same as `state[name] = value`."""
        self[name] = value

    def delete(self, name: str) -> None:
        """Forget a name, if it is there."""
        self._changes[name] = _GONE

    def settle(self) -> None:
        """The event succeeded: what it changed is the state now."""
        if not self._changes:
            return
        for name, value in self._changes.items():
            if value is _GONE:
                self._values.pop(name, None)
            else:
                self._values[name] = value
        self._changes.clear()
        self.dirty = True

    def undo(self) -> None:
        """The event failed: it changed nothing."""
        self._changes.clear()

    def check(self) -> None:
        """Say what can't be written before anything is: a value that JSON can't say fails its own event only."""
        for name, value in self._changes.items():
            if value is not _GONE and not _is_plain(value):
                try:
                    json.dumps(value, allow_nan=False)
                except (TypeError, ValueError) as error:
                    raise UsageError(f"state {name!r} can't be written as JSON ({error})") from error

    def saved(self, expires_at: float | None) -> Saved | None:
        """What is written; None for an empty one."""
        if not self._values:
            return None
        # Half a surrogate pair, which JSON can say, is written as it will be read.
        return Saved(_encode(self._values).encode(errors="surrogatepass"), expires_at)


class Context:
    """What belongs to one event's call."""

    __slots__ = ("emitted", "key", "state")

    def __init__(self, key: str, state: KeyState) -> None:
        self.key = key
        self.state = state
        self.emitted: list[Event] = []

    def emit(
        self,
        event_type: str,
        payload: object = b"",
        *,
        queue: str = DEFAULT_QUEUE,
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> EventId:
        """Emit an event, if and when this one's effects are committed."""
        body, all_headers = encode_payload(payload, headers)
        event_id = EventId(uuid7.uuid7())
        self.emitted.append(
            Event(event_type=event_type, payload=body, headers=all_headers, queue=queue, event_id=event_id, **fields)
        )
        return event_id


def _is_plain(value: Any) -> bool:
    """Whether JSON can say a value, told without trying: true of what states mostly hold."""
    kind = type(value)
    return kind in _PLAIN or (kind is int and -_INTEGERS <= value < _INTEGERS)
