"""Replay of events from a lake: events that the store still has are replayed there, the others are emitted anew.

In both cases an event keeps its id. A pending or claimed event is left alone: repeating a replay adds nothing while the
events of the first one are pending.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

from penstock.model.errors import EventNotFound, InvalidEvent, StoreConflict, UsageError
from penstock.model.event import Event, EventId
from penstock.model.lifecycle import State
from penstock.model.selection import Selection
from penstock.pipeline.lake.layout import read
from penstock.store.api import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

BATCH = 1_000
ROUNDS = 5
_WAITING = frozenset({State.PENDING, State.CLAIMED})
_EVENT_COLUMNS = (
    *("event_id", "event_type", "queue", "payload", "headers", "partition_key", "ordering_key", "priority"),
    "max_attempts",
)


@dataclass(frozen=True, slots=True)
class LakeCount:
    """Number of events of one day, type and queue in a selection of the lake."""

    day: date
    event_type: str
    queue: str
    count: int


@dataclass(frozen=True, slots=True)
class BroughtBack:
    """Counts of a replay: events replayed in the store, emitted anew, or left alone as already pending or claimed."""

    replayed: int = 0
    emitted: int = 0
    waiting: int = 0

    @property
    def total(self) -> int:
        return self.replayed + self.emitted + self.waiting

    def __add__(self, other: "BroughtBack") -> "BroughtBack":
        return BroughtBack(self.replayed + other.replayed, self.emitted + other.emitted, self.waiting + other.waiting)


class LakeReplay:
    """Replay of a selection of the events in a lake to a store."""

    def __init__(self, spark: "SparkSession", lake: str, selection: Selection, store: Store) -> None:
        check_selection(selection)
        self._store = store
        self._events = _selected(spark, lake, selection)
        self._ids = selection.ids

    def counts(self) -> list[LakeCount]:
        """Return the counts by day, type and queue; raise EventNotFound for a selected id that the lake lacks."""
        self._require_ids()
        rows = self._events.groupBy("day", "event_type", "queue").count().orderBy("day", "event_type", "queue")
        return [LakeCount(*row) for row in rows.collect()]

    def judge(self) -> BroughtBack:
        """Return the counts that `bring_back` would return, without changing the store."""
        known = (self._states(ids) for ids in _pieces(_ids(self._events)))
        return sum((_judged(states) for states in known), BroughtBack())

    def bring_back(self, *, by: str, progress: Callable[[int], None] | None = None) -> BroughtBack:
        """Replay or emit the events, oldest first, in batches. After an interruption, another run does the rest."""
        self._require_ids()
        done = BroughtBack()
        rows = self._events.select(*_EVENT_COLUMNS, "created_at", "seq").orderBy("created_at", "seq").toLocalIterator()
        for batch in _pieces(map(_event, rows)):
            done += self._bring(batch, by)
            if progress is not None:
                progress(done.total)
        return done

    def _bring(self, events: Sequence[Event], by: str) -> BroughtBack:
        states = self._states([_id(event) for event in events])
        settled = frozenset(event_id for event_id, state in states.items() if state not in (*_WAITING, None))
        replayed = self._store.replay(Selection(ids=settled), by=by) if settled else 0
        if replayed < len(settled):  # others replay or purge at the same time
            states |= self._states(sorted(settled))
        missing = [event for event in events if states[_id(event)] is None]
        emitted = self._emit(missing)
        return BroughtBack(replayed, emitted, len(events) - replayed - emitted)

    def _emit(self, events: Sequence[Event]) -> int:
        """Emit the events, except those that another process emits at the same time; return their number."""
        missing = list(events)
        for _ in range(ROUNDS):
            if not missing:
                return 0
            try:
                return len(self._store.append(missing))
            except InvalidEvent:
                states = self._states([_id(event) for event in missing])
                missing = [event for event in missing if states[_id(event)] is None]
        raise StoreConflict("other processes emitted the same events at the same time; try again")

    def _states(self, ids: Sequence[EventId]) -> dict[EventId, State | None]:
        """Return the state of each event in the store; None for an event that the store no longer has."""
        found = self._store.find(Selection(ids=frozenset(ids)), limit=max(1, len(ids))).records
        return dict.fromkeys(ids) | {record.event_id: record.state for record in found}

    def _require_ids(self) -> None:
        if self._ids:
            for unknown in sorted(self._ids - set(_ids(self._events))):
                raise EventNotFound(unknown)


def check_selection(selection: Selection) -> None:
    """Raise UsageError for a selection by state or error: a lake records emissions, not their outcomes."""
    selection.require("replay")
    if selection.states is not None or selection.error is not None:
        raise UsageError(
            "--state and --error are not available for a lake; select by --id, --queue, --type, --since or --until"
        )


def _selected(spark: "SparkSession", lake: str, selection: Selection) -> "DataFrame":
    from pyspark.sql import functions as on

    found = read(spark, lake, event_type=selection.event_type, since=selection.since, until=selection.until)
    if selection.queue is not None:
        found = found.where(on.col("queue") == selection.queue)
    if selection.ids is not None:
        found = found.where(on.col("event_id").isin(sorted(map(str, selection.ids))))
    return found


def _ids(events: "DataFrame") -> Iterator[EventId]:
    return (EventId(UUID(row.event_id)) for row in events.select("event_id").toLocalIterator())


def _judged(states: dict[EventId, State | None]) -> BroughtBack:
    missing = sum(state is None for state in states.values())
    waiting = sum(state in _WAITING for state in states.values())
    return BroughtBack(len(states) - missing - waiting, missing, waiting)


def _event(row: "Row") -> Event:
    given: dict[str, Any] = {name: row[name] for name in _EVENT_COLUMNS}
    event_id, payload = EventId(UUID(given.pop("event_id"))), bytes(given.pop("payload"))
    return Event(event_id=event_id, payload=payload, **given)


def _id(event: Event) -> EventId:
    assert event.event_id is not None
    return event.event_id


def _pieces(items: Iterator[Any]) -> Iterator[list[Any]]:
    while piece := list(islice(items, BATCH)):
        yield piece
