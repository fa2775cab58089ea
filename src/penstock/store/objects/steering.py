"""Steering: pauses, limits, cancellations, and what handlers say of their work."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from penstock import lifecycle
from penstock.store.objects import archive
from penstock.store.objects.choosing import Choice, by_number, in_document
from penstock.store.objects.claiming import close, room_in
from penstock.store.objects.model import Model
from penstock.store.objects.settling import holder
from penstock.store.objects.values import ControlRow, Entry, Line, NoteRow


def pause(model: Model, args: Mapping[str, Any]) -> None:
    control = model.controls.get(args["queue"], ControlRow())
    if control.paused_at is None:
        _steer(model, args["queue"], control._replace(paused_at=model.now, paused_by=args["by"]))


def resume(model: Model, args: Mapping[str, Any]) -> bool:
    control = model.controls.get(args["queue"])
    if control is None or control.paused_at is None:
        return False
    _steer(model, args["queue"], control._replace(paused_at=None, paused_by=None))
    return True


def limit(model: Model, args: Mapping[str, Any]) -> None:
    control = model.controls.get(args["queue"], ControlRow())
    _steer(model, args["queue"], control._replace(max_claimed=args["max_claimed"]))


def _steer(model: Model, queue: str, control: ControlRow) -> None:
    if control == ControlRow():
        model.controls.pop(queue, None)
    else:
        model.controls[queue] = control
    model.touched = True


def cancel(model: Model, args: Mapping[str, Any]) -> int:
    """Make unsettled events dead; how many."""
    chosen = sorted(unsettled(model, Choice.of(args["selection"])))
    for entry in chosen:
        life = lifecycle.cancel(entry.life(), args["reason"])
        # Without its lease: whoever held it is told that it is lost, not that it was settled.
        model.put(entry.living(life, settled_at=model.now, lease_id=None))
        model.record(
            entry.seq,
            Line(model.now, "cancelled", life.attempts, entry.lease_id, args["by"], args["reason"]),
        )
        if entry.lease_id is not None and entry.lease_id not in model.holding:
            close(model, entry.lease_id)
    return len(chosen)


def unsettled(model: Model, choice: Choice) -> Iterator[Entry]:
    """The chosen events that are not settled; all of them are in the document."""
    return (entry for entry in in_document(model, choice) if not entry.settled)


def unsettled_counts(model: Model, args: Mapping[str, Any]) -> list[Any]:
    """State, queue, type and how many, the most first."""
    entries = unsettled(model, Choice.of(args["selection"]))
    return by_number(Counter((entry.state, entry.queue, entry.event_type) for entry in entries))


def note(model: Model, args: Mapping[str, Any]) -> list[int]:
    """Keep how far events have come; those that are still held."""
    lease = holder(model, args)
    if lease is None:
        return []
    held = [(seq, blob) for seq, blob in args["progress"] if model.claimed.get(seq) == lease.lease_id]
    for seq, blob in held:
        model.notes[seq] = model.notes.get(seq, NoteRow())._replace(progress=tuple(blob))
        model.touched = True
    return [seq for seq, _ in held]


def notes(model: Model, args: Mapping[str, Any]) -> list[Any]:
    """What was said of events: id, progress, result. Of several copies the last one's word counts."""
    found: dict[str, NoteRow] = {}
    wanted = set(args["ids"])
    for seq in sorted(seq for one in wanted for seq in model.ids.get(one, ())):
        if seq in model.notes:
            found[model.events[seq].known_as] = model.notes[seq]
    for segment, entries in archive.knowing(model, wanted - model.ids.keys()):
        for entry in entries:
            if entry.seq in segment.notes:
                found.setdefault(entry.known_as, segment.notes[entry.seq])
    return [(event_id, row.progress, row.result) for event_id, row in found.items()]


def heads(model: Model, args: Mapping[str, Any]) -> list[Any]:
    """The first event that may go now of each queue: rank, time, seq, queue; sorted."""
    wanted = None if args["queues"] is None else set(args["queues"])
    names = {queue for queue in (*model.ready, *model.free) if queue.startswith(args["prefix"])}
    found = [_head(model, queue) for queue in names if wanted is None or queue in wanted]
    return sorted(head for head in found if head is not None)


def _head(model: Model, queue: str) -> tuple[int, int, int, str] | None:
    if room_in(model, queue, 1) < 1:
        return None
    plain = next((rank for rank in model.ready.get(queue, []) if rank[1] <= model.now), None)
    lines = (model.lines[(queue, key)][0] for at, key in model.free.get(queue, []) if at <= model.now)
    ranks = [(-entry.priority, entry.available_at, entry.seq) for entry in map(model.events.__getitem__, lines)]
    best = min([*([plain] if plain else []), *ranks], default=None)
    return None if best is None else (*best, queue)
