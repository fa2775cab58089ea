"""What happens beside the flow: replays, purges, relays, and the upkeep of the document."""

from collections.abc import Callable, Mapping
from typing import Any

from penstock import lifecycle
from penstock.lifecycle import State
from penstock.store.objects import archive
from penstock.store.objects.archive import Segment
from penstock.store.objects.choosing import Choice, in_document, worth_reading
from penstock.store.objects.model import Model
from penstock.store.objects.values import MICROS, Entry, Line, RelayRow, SegmentRow

LEASE_RETENTION = 86_400 * MICROS
RELAY_RETENTION = 300 * MICROS
SESSION_RETENTION = 900 * MICROS
CLOSED_KEPT = 5_000
TRIM_EVERY = 100
SESSIONS_KEPT = 10_000


def last_settled(model: Model, _: Mapping[str, Any]) -> int:
    """The last seq among settled events."""
    return max([*model.archived, *(row.last for row in model.segments.values())], default=0)


def replay(model: Model, args: Mapping[str, Any]) -> list[Any]:
    """Make the next settled events of a selection pending: how many, and the last one's seq."""
    return _each(model, args, lambda entry: _replay(model, entry, args["by"]))


def purge(model: Model, args: Mapping[str, Any]) -> list[Any]:
    """Delete the next settled events of a selection: how many, and the last one's seq."""
    return _each(model, args, lambda entry: _purge(model, entry))


def _purge(model: Model, entry: Entry) -> None:
    """How many published events a queue has ever had is still known when they are gone."""
    if entry.state == State.PUBLISHED:
        model.purged[entry.queue] = model.purged.get(entry.queue, 0) + 1
    model.drop(entry.seq)


def _each(model: Model, args: Mapping[str, Any], work: Callable[[Entry], None]) -> list[Any]:
    """Events that are in a segment come back into the document first."""
    choice, limit, wanted = Choice.of(args["selection"]), args["limit"], range(args["after"] + 1, args["until"] + 1)
    seqs = [entry.seq for entry in in_document(model, choice) if entry.settled and entry.seq in wanted]
    there: list[tuple[SegmentRow, Segment, set[int]]] = []
    for row in sorted(model.segments.values(), key=lambda row: row.first):
        if len(seqs) >= limit and row.first > sorted(seqs)[limit - 1]:
            break  # what follows is later than all that this batch can take
        if row.last < wanted.start or not worth_reading(model, choice, row):
            continue
        segment = archive.read(model, row)
        found = {seq for seq, entry in segment.entries.items() if seq in wanted and choice.has(entry)}
        there.append((row, segment, found))
        seqs += found
    chosen = sorted(seqs)[:limit]
    for row, segment, found in there:
        if not found.isdisjoint(chosen):
            _bring_back(model, archive.take(model, row, segment, found.intersection(chosen)))
    for seq in chosen:
        work(model.events[seq])
    return [len(chosen), chosen[-1] if chosen else None]


def _bring_back(model: Model, taken: Segment) -> None:
    for entry in taken.entries.values():
        model.put(entry)
    model.history.update(taken.history)
    model.notes.update(taken.notes)


def _replay(model: Model, entry: Entry, by: str) -> None:
    why = "" if entry.last_error is None else f": {entry.last_error}"
    model.record(entry.seq, Line(model.now, "replayed", entry.attempts, None, by, f"was {entry.state}{why}"))
    model.notes.pop(entry.seq, None)
    life = lifecycle.replay(entry.life())
    model.put(entry.living(life, available_at=model.now, settled_at=None, lease_id=None, ordering_key=entry.own_key))


def tend(model: Model, _: Mapping[str, Any]) -> None:
    """Forget closed leases, windows, relays and sessions whose time is over."""
    _forget(model, model.closed, lambda at: at < model.now - LEASE_RETENTION)
    _forget(model, model.dedupe, lambda window: window[1] < model.now)
    _forget(model, model.relays, lambda relay: relay.seen_at < model.now - RELAY_RETENTION)
    _forget(model, model.sessions, lambda session: session.at < model.now - SESSION_RETENTION)


def trim(model: Model) -> None:
    """Keep within bounds what no other verb takes away, even where nobody tends the queue; the oldest go first."""
    if model.version % TRIM_EVERY == 0:
        tend(model, {})
    bounded: list[tuple[dict[str, Any], int]] = [(model.closed, CLOSED_KEPT), (model.sessions, SESSIONS_KEPT)]
    for kept, most in bounded:
        for name in list(kept)[: max(len(kept) - most, 0)]:
            del kept[name]
            model.touched = True


def _forget(model: Model, kept: dict[Any, Any], over: Callable[[Any], bool]) -> None:
    for name in [name for name, value in kept.items() if over(value)]:
        del kept[name]
        model.touched = True


def beat(model: Model, args: Mapping[str, Any]) -> bool:
    """Whether a relay that is alive should stop."""
    known = model.relays.get(args["relay_id"])
    model.relays[args["relay_id"]] = RelayRow(
        args["relay_id"],
        args["queue"] if known is None else known.queue,
        args["destination"] if known is None else known.destination,
        args["host"] if known is None else known.host,
        model.now if known is None else known.started_at,
        model.now,
        args["stopping"] or (known is not None and known.stopping),
    )
    model.touched = True
    return model.relays[args["relay_id"]].stopping


def forget(model: Model, args: Mapping[str, Any]) -> None:
    if model.relays.pop(args["relay_id"], None) is not None:
        model.touched = True
