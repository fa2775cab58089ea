"""What a handler works with beside its event: the state of the event's key, and a way to emit.

Everything a handler does is buffered for its event alone: if it fails, nothing of it remains.
"""

import copy
import json
from collections.abc import Iterator, Mapping, MutableMapping
from datetime import datetime
from typing import Any

import uuid_utils.compat as uuid7

from penstock.model.errors import UsageError
from penstock.model.event import DEFAULT_QUEUE, NAME_LIMIT, Event, EventId, encode_payload
from penstock.streams.engine.windows import Window, instant_of, seconds_of
from penstock.streams.event import decode_json
from penstock.streams.state.api import Saved

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

    def become(self, values: Mapping[str, Any]) -> None:
        """Forget all names, and put these in their place."""
        self._changes = dict.fromkeys(self._values, _GONE)
        for name, value in values.items():
            self[name] = value

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
        return Saved(encode_values(self._values), expires_at)


class Emitter:
    """What emits, if and when its call's effects are committed."""

    __slots__ = ("emitted",)

    def __init__(self) -> None:
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
        """Emit an event, if and when the effects of this call are committed."""
        body, all_headers = encode_payload(payload, headers)
        event_id = EventId(uuid7.uuid7())
        self.emitted.append(
            Event(event_type=event_type, payload=body, headers=all_headers, queue=queue, event_id=event_id, **fields)
        )
        return event_id


class Context(Emitter):
    """What belongs to one event's call, or to that of a timer."""

    __slots__ = ("_time", "_window", "key", "state", "timers")

    def __init__(self, key: str, state: KeyState, *, now: float | None = None, window: Window | None = None) -> None:
        self.emitted = []  # not by super(): this is made for every event
        self.key = key
        self.state = state
        self.timers: dict[str, float | None] = {}
        """By name, when a timer is due that was set in this call; None for one that was cancelled."""
        self._time = now
        self._window = window

    @property
    def window(self) -> Window:
        """The window that this call is for."""
        if self._window is None:
            raise UsageError("this stream has no windows: give it one, window=Tumbling(60)")
        return self._window

    def set_timer(self, name: str, at: datetime | float | None = None, *, delay_seconds: float | None = None) -> None:
        """Let the stream's timer function be called for this key, at a time or after a delay. A timer of the same name
        is moved.

        A delay counts from now; with event time, from the event's own time.
        """
        if (at is None) == (delay_seconds is None):
            raise UsageError("a timer is set for a time or after a delay: give at or delay_seconds")
        start = self._require_timers(name)
        self.timers[name] = seconds_of(instant_of(start + (delay_seconds or 0) if at is None else at))

    def cancel_timer(self, name: str) -> None:
        """Forget a timer of this key, if it is set."""
        self._require_timers(name)
        self.timers[name] = None

    def _require_timers(self, name: str) -> float:
        if self._time is None:
            raise UsageError("this stream has no timer function: give it one, @app.on_timer; windows have on_close")
        if not isinstance(name, str) or not 0 < len(name) <= NAME_LIMIT or "\x00" in name:
            raise UsageError(f"a timer's name is a string of 1 to {NAME_LIMIT} characters, none of them NUL")
        return self._time


def encode_values(values: Mapping[str, Any]) -> bytes:
    """A state as it is written. Half a surrogate pair, which JSON can say, is written as it will be read."""
    return _encode(values).encode(errors="surrogatepass")


def _is_plain(value: Any) -> bool:
    """Whether JSON can say a value, told without trying: true of what states mostly hold."""
    kind = type(value)
    return kind in _PLAIN or (kind is int and -_INTEGERS <= value < _INTEGERS)
