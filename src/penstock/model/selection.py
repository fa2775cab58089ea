"""Selections of events to inspect, replay, purge or cancel."""

from dataclasses import dataclass, replace
from datetime import datetime

from penstock.model.errors import UsageError
from penstock.model.event import EventId
from penstock.model.lifecycle import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A filter for events. Fields are combined with AND; selecting all events requires `everything`."""

    ids: frozenset[EventId] | None = None
    states: frozenset[State] | None = None
    queue: str | None = None
    event_type: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    error: str | None = None
    queues: frozenset[str] | None = None
    event_types: frozenset[str] | None = None
    everything: bool = False

    @property
    def empty(self) -> bool:
        return self == Selection()

    def require(self, verb: str) -> None:
        if self.empty:
            raise UsageError(f"missing selection for {verb}; set queue, states, ids or another field, or everything")


def purgeable(selection: Selection) -> Selection:
    """Exclude DEAD events unless the selection specifies states or ids."""
    if selection.states is not None or selection.ids is not None:
        return selection
    return replace(selection, states=frozenset({State.PUBLISHED}))


def cancellable(selection: Selection) -> Selection:
    """Exclude CLAIMED events unless the selection specifies states or ids."""
    if selection.states is not None:
        return selection
    named = {State.PENDING, State.CLAIMED} if selection.ids is not None else {State.PENDING}
    return replace(selection, states=frozenset(named))
