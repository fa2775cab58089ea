"""Context of a handler call: the state of the event's key, timers, and a buffer for emitted events.

Changes are buffered for each event. If the handler fails, the changes of its event are discarded.
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
    """State of one key: a mapping from names to JSON values. `settle` applies the changes of an event, `undo` discards
    them."""

    __slots__ = ("_changes", "_values", "dirty")

    def __init__(self, saved: Saved | None = None) -> None:
        self._values: dict[str, Any] = {} if saved is None else decode_json(saved.data)
        self._changes: dict[str, Any] = {}
        self.dirty = False
        """True if a successful event has changed the state."""

    def __getitem__(self, name: str) -> Any:
        value = self.get(name, _GONE)
        if value is _GONE:
            raise KeyError(name)
        return value

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a name, or the default."""
        if name in self._changes:
            value = self._changes[name]
        else:
            value = self._values.get(name, _GONE)
            if isinstance(value, _COPIED):
                # Return a copy: the value may be mutated in place, and the original must remain if the event fails.
                value = self._changes[name] = copy.deepcopy(value)
        return default if value is _GONE else value

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str):
            raise UsageError(f"state name must be a string, got {type(name).__name__}")
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
        """Set a value; the same as `state[name] = value`."""
        self[name] = value

    def delete(self, name: str) -> None:
        """Remove a name from the state, if present."""
        self._changes[name] = _GONE

    def become(self, values: Mapping[str, Any]) -> None:
        """Replace all names and values by these."""
        self._changes = dict.fromkeys(self._values, _GONE)
        for name, value in values.items():
            self[name] = value

    def settle(self) -> None:
        """Apply the pending changes of an event that succeeded."""
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
        """Discard the pending changes of an event that failed."""
        self._changes.clear()

    def check(self) -> None:
        """Raise `UsageError` if a changed value cannot be written as JSON. The check precedes all writes, so that only
        the event of the value fails."""
        for name, value in self._changes.items():
            if value is not _GONE and not _is_plain(value):
                try:
                    json.dumps(value, allow_nan=False)
                except (TypeError, ValueError) as error:
                    raise UsageError(f"cannot encode state {name!r} as JSON: {error}") from error

    def saved(self, expires_at: float | None) -> Saved | None:
        """Return the state as the state store saves it, or None if the state is empty."""
        if not self._values:
            return None
        return Saved(encode_values(self._values), expires_at)


class Emitter:
    """Buffer of emitted events, for one call of a handler."""

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
        """Emit an event when the effects of this call are committed. Return the id of the event."""
        body, all_headers = encode_payload(payload, headers)
        event_id = EventId(uuid7.uuid7())
        self.emitted.append(
            Event(event_type=event_type, payload=body, headers=all_headers, queue=queue, event_id=event_id, **fields)
        )
        return event_id


class Context(Emitter):
    """Key, state, timers and window of one call, for an event, a timer or a closing window."""

    __slots__ = ("_time", "_window", "key", "state", "timers")

    def __init__(self, key: str, state: KeyState, *, now: float | None = None, window: Window | None = None) -> None:
        self.emitted = []  # assigned here, not by super().__init__(): a context is created for every event
        self.key = key
        self.state = state
        self.timers: dict[str, float | None] = {}
        """Due times, in seconds since 1970, of the timers set in this call, by name; None for a cancelled timer."""
        self._time = now
        self._window = window

    @property
    def window(self) -> Window:
        """Window of this call."""
        if self._window is None:
            raise UsageError("stream has no windows; set window=Tumbling(60)")
        return self._window

    def set_timer(self, name: str, at: datetime | float | None = None, *, delay_seconds: float | None = None) -> None:
        """Set a timer of this key, for a time or after a delay. A timer with the same name is moved. The stream's timer
        function is called when the timer is due.

        A delay counts from now; with event time, from the time of the handled event or timer.
        """
        if (at is None) == (delay_seconds is None):
            raise UsageError("set_timer needs exactly one of at and delay_seconds")
        start = self._require_timers(name)
        self.timers[name] = seconds_of(instant_of(start + (delay_seconds or 0) if at is None else at))

    def cancel_timer(self, name: str) -> None:
        """Cancel a timer of this key, if set."""
        self._require_timers(name)
        self.timers[name] = None

    def _require_timers(self, name: str) -> float:
        if self._time is None:
            raise UsageError("stream has no timer function; define one with @app.on_timer, or use on_close for windows")
        if not isinstance(name, str) or not 0 < len(name) <= NAME_LIMIT or "\x00" in name:
            raise UsageError(f"invalid timer name {name!r}; expected 1 to {NAME_LIMIT} characters without NUL")
        return self._time


def encode_values(values: Mapping[str, Any]) -> bytes:
    """Return a state as JSON bytes. Unpaired surrogates, which JSON strings can contain, are read back unchanged."""
    return _encode(values).encode(errors="surrogatepass")


def _is_plain(value: Any) -> bool:
    """Return True if a value is certainly valid JSON, without encoding it. Covers most values of states."""
    kind = type(value)
    return kind in _PLAIN or (kind is int and -_INTEGERS <= value < _INTEGERS)
