"""Filter pushdown: filters that the store can evaluate narrow its selection; Spark evaluates the others."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from penstock.model.lifecycle import State
from penstock.model.selection import Selection

# Columns that every event has. Spark adds an IS NOT NULL filter to each comparison.
NEVER_NULL = {"seq", "event_id", "event_type", "queue", "payload", "state", "created_at"}
MICROSECOND = timedelta(microseconds=1)


def narrow(selection: Selection, filters: Sequence[Filter]) -> tuple[Selection, list[Filter]]:
    """Return the selection narrowed by every filter that it can express, and the remaining filters."""
    left: list[Filter] = []
    for one in filters:
        narrowed = _narrowed(selection, one)
        if narrowed is None:
            left.append(one)
        else:
            selection = narrowed
    return selection, left


def _narrowed(selection: Selection, one: Filter) -> Selection | None:
    match one:
        case IsNotNull((name,)) if name in NEVER_NULL:
            return selection
        case EqualTo((name,), value):
            return _among(selection, name, (value,))
        case In((name,), values):
            return _among(selection, name, tuple(values))
        case GreaterThanOrEqual(("created_at",), datetime() as time) if time.tzinfo:
            return _between(selection, since=time)
        case GreaterThan(("created_at",), datetime() as time) if time.tzinfo:
            return _between(selection, since=time + MICROSECOND)
        case LessThan(("created_at",), datetime() as time) if time.tzinfo:
            return _between(selection, until=time)
        case LessThanOrEqual(("created_at",), datetime() as time) if time.tzinfo:
            return _between(selection, until=time + MICROSECOND)
        case _:
            return None


def _among(selection: Selection, name: str, values: tuple[Any, ...]) -> Selection | None:
    """Return the selection of events with one of the values in a column; None if it cannot be expressed.

    A value of the wrong type, or NULL, matches no event.
    """
    strings = frozenset(value for value in values if isinstance(value, str))
    match name:
        case "state":
            states = frozenset(State(value) for value in strings if value in set(State))
            return replace(selection, states=states if selection.states is None else states & selection.states)
        case "queue":
            return replace(selection, queues=strings if selection.queues is None else strings & selection.queues)
        case "event_type":
            known = selection.event_types
            return replace(selection, event_types=strings if known is None else strings & known)
        case "created_at" if len(values) == 1 and isinstance(values[0], datetime) and values[0].tzinfo:
            return _between(selection, since=values[0], until=values[0] + MICROSECOND)
        case _:
            return None


def _between(selection: Selection, *, since: datetime | None = None, until: datetime | None = None) -> Selection:
    return replace(
        selection,
        since=max(filter(None, (selection.since, since)), default=None),
        until=min(filter(None, (selection.until, until)), default=None),
    )
