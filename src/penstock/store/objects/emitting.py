"""Emitting: events that are appended, and staged ones that a commit turns into events."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.errors import InvalidEvent, StoreError
from penstock.lifecycle import State
from penstock.store.objects import archive
from penstock.store.objects.model import Model
from penstock.store.objects.values import OBJECT, Entry, from_blob
from penstock.store.staging import require_all

PAYLOAD_LIMIT = 4_096
DOCUMENT_LIMIT = 64 * 1024 * 1024


class NewEvent(NamedTuple):
    """An event on its way in, as a request carries it."""

    event_id: str
    given: bool
    """Whether the id is the caller's own: then another event may have it."""
    event_type: str
    queue: str
    form: int
    payload: str
    headers: dict[str, str] | None
    partition_key: str | None
    ordering_key: str | None
    priority: int
    max_attempts: int | None
    available_at: int | None
    delay_micros: int
    dedupe_key: str | None
    dedupe_micros: int


def append(model: Model, args: Mapping[str, Any]) -> dict[str, Any]:
    """Which of the events were duplicates, by their place in the batch, with the id of the first one."""
    return {"duplicates": add(model, [NewEvent(*row) for row in args["events"]])}


def add(model: Model, events: Sequence[NewEvent]) -> list[tuple[int, str]]:
    """Number the events and let them wait, all of them or none."""
    if model.size > DOCUMENT_LIMIT:
        raise StoreError(
            f"the queue's document has {model.size // 2**20} MB, and takes no more events before some are settled"
        )
    duplicates, windows = _duplicates(model, events)
    known_as = dict(duplicates)
    fresh = [event for place, event in enumerate(events) if place not in known_as]
    _refuse_taken(model, fresh)
    for event in fresh:
        model.last_seq += 1
        model.put(_entry(event, model.last_seq, model.now))
    model.dedupe.update(windows)
    return duplicates


def _duplicates(
    model: Model, events: Sequence[NewEvent]
) -> tuple[list[tuple[int, str]], dict[tuple[str, str], tuple[str, int]]]:
    """Those whose window is open, or is opened by an event before them; and the windows that they open."""
    duplicates: list[tuple[int, str]] = []
    windows: dict[tuple[str, str], tuple[str, int]] = {}
    for place, event in enumerate(events):
        if event.dedupe_key is None:
            continue
        key = (event.queue, event.dedupe_key)
        first = windows.get(key) or model.dedupe.get(key)
        if first is not None and first[1] > model.now:
            duplicates.append((place, first[0]))
        else:
            windows[key] = (event.event_id, model.now + event.dedupe_micros)
    return duplicates, windows


def _refuse_taken(model: Model, events: Iterable[NewEvent]) -> None:
    given = [event.event_id for event in events if event.given]
    taken = len(set(given)) < len(given) or any(one in model.ids for one in given)
    if taken or (given and archive.any_known(model, given)):
        raise InvalidEvent("an event with this event_id was emitted before")


def _entry(event: NewEvent, seq: int, now: int) -> Entry:
    return Entry(
        seq=seq,
        event_id=event.event_id,
        origin=None,
        event_type=event.event_type,
        queue=event.queue,
        form=event.form,
        payload=event.payload,
        headers=event.headers,
        partition_key=event.partition_key,
        own_key=event.ordering_key,
        ordering_key=event.ordering_key,
        priority=event.priority,
        created_at=now,
        available_at=now + event.delay_micros if event.available_at is None else event.available_at,
        state=State.PENDING.value,
        attempts=0,
        deliveries=0,
        max_attempts=event.max_attempts,
        replays=0,
        suspect=0,
        last_error=None,
        lease_id=None,
        settled_at=None,
    )


def commit_staged(model: Model, args: Mapping[str, Any]) -> dict[str, Any]:
    """Make events of staged rows, which `args` names by their objects, in order."""
    write_id, batch_id = args["write_id"], args["batch_id"]
    if args["once"] and model.sinks.get(write_id, -1) >= batch_id:
        return {"events": 0, "duplicates": 0, "repeated": True}
    rows = [row for name in args["names"] for row in _staged(model, name)]
    require_all(len(rows), args["expected"])
    duplicates = add(model, [_set_aside(model, row, f"{write_id}-{batch_id}") for row in rows])
    if args["once"]:
        model.sinks[write_id] = batch_id
        model.touched = True
    return {"events": len(rows) - len(duplicates), "duplicates": len(duplicates), "repeated": False}


def _staged(model: Model, name: str) -> list[NewEvent]:
    assert model.objects is not None
    data = model.objects.read(name)
    return [] if data is None else [NewEvent(*row) for row in json.loads(data)]


def _set_aside(model: Model, row: NewEvent, word: str) -> NewEvent:
    """A staged row holds its payload, however large; the document doesn't."""
    if len(row.payload) <= PAYLOAD_LIMIT:
        return row
    assert model.objects is not None
    name = blob_name(row.event_id, word)
    model.objects.write(name, from_blob(row.form, row.payload))
    return row._replace(form=OBJECT, payload=name)


def blob_name(event_id: str, word: str) -> str:
    """The name of the object for bytes that are too many for the document. No two are alike: what another emit with
    the same id writes must not change what is there."""
    return f"payloads/{event_id}.{word}"
