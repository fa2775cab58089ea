"""Looking: what a model shows, without changing it."""

from collections import Counter
from collections.abc import Mapping
from heapq import nlargest
from typing import Any

from penstock.lifecycle import State
from penstock.store.deaths import tallied
from penstock.store.error_text import BEGINNING
from penstock.store.objects import archive
from penstock.store.objects.choosing import Choice, by_number, counted, in_document, in_segments, settled
from penstock.store.objects.claiming import any_ready
from penstock.store.objects.model import Model
from penstock.store.objects.values import Entry

TOP_ERRORS = 5


def find(model: Model, args: Mapping[str, Any]) -> dict[str, Any]:
    """A page of entries, newest first, each with its lease if it is claimed."""
    choice, after, wanted = Choice.of(args["selection"]), args["after"], args["limit"] + 1
    before = float("inf") if after is None else after
    found = nlargest(wanted, (entry for entry in in_document(model, choice) if entry.seq < before))
    for row, segment in in_segments(model, choice):
        if len(found) == wanted and found[-1].seq > row.last:
            break  # the segments come by their last number: what follows is older still
        if row.first < before:
            more = (entry for entry in segment.entries.values() if entry.seq < before and choice.has(entry))
            found = nlargest(wanted, (*found, *more))
    page = found[: args["limit"]]
    return {
        "records": [(entry, _holder(model, entry)) for entry in page],
        "after": page[-1].seq if len(found) == wanted else None,
    }


def _holder(model: Model, entry: Entry) -> tuple[int, str, int] | None:
    if entry.state != State.CLAIMED:
        return None
    row = model.leases[entry.lease_id or ""]
    return row.claimed_at, row.claimant, row.expires_at


def history(model: Model, args: Mapping[str, Any]) -> list[Any]:
    """The lines of an event and its copies, oldest first."""
    event_id = args["event_id"]
    lines = [(line.at, seq, place, line) for seq, place, line in _lines(model, event_id)]
    return [line for *_, line in sorted(lines, key=lambda row: row[:3])]


def _lines(model: Model, event_id: str) -> list[Any]:
    found = [(seq, model.history.get(seq, ())) for seq in model.ids.get(event_id, ())]
    for segment, entries in archive.knowing(model, [event_id]):
        found += [(entry.seq, segment.history.get(entry.seq, ())) for entry in entries]
    return [(seq, place, line) for seq, lines in found for place, line in enumerate(lines)]


def settled_counts(model: Model, args: Mapping[str, Any]) -> list[Any]:
    """State, queue, type and how many, the most first."""
    return by_number(counted(model, Choice.of(args["selection"])))


def deaths(model: Model, args: Mapping[str, Any]) -> list[Any]:
    """The dead, the latest death first, each with the beginning of its error, one more than asked for."""
    dead = settled(model, Choice.of(args["selection"]))
    before = (float("inf"), 0) if args["after"] is None else tuple(args["after"])
    marked = ((entry.settled_at or 0, entry.seq, entry) for entry in dead)
    found = nlargest(args["limit"] + 1, (row for row in marked if row[:2] < before), key=lambda row: row[:2])
    return [
        entry._replace(payload="", headers=None, last_error=(entry.last_error or "")[:BEGINNING]) for *_, entry in found
    ]


def death_counts(model: Model, args: Mapping[str, Any]) -> list[Any]:
    """The dead by queue and kind of error, the most first."""
    dead = settled(model, Choice.of(args["selection"]))
    counts = tallied((entry.queue, entry.last_error, 1) for entry in dead)
    return [(one.queue, one.error, one.count) for one in counts]


def bounds(model: Model, _: Mapping[str, Any]) -> list[int]:
    firsts = [*model.events, *(row.first for row in model.segments.values())]
    lasts = [*model.events, *(row.last for row in model.segments.values())]
    return [min(firsts), max(lasts)] if firsts else [1, 0]


def stats(model: Model, _: Mapping[str, Any]) -> dict[str, Any]:
    expired = sum(row.expires_at < model.now for row in model.leases.values())
    return {
        "queues": sorted(_queues(model).items()),
        "open_leases": len(model.leases),
        "expired_leases": expired,
        "relays": sorted(model.relays.values(), key=lambda relay: relay.started_at),
        "dead_errors": _dead_errors(model),
        "purged": model.purged,
        "now": model.now,
    }


def _queues(model: Model) -> dict[str, dict[str, Any]]:
    queues: dict[str, dict[str, Any]] = {}
    for entry in model.events.values():
        counts = queues.setdefault(entry.queue, {})
        state = entry.state.lower()
        counts[state] = counts.get(state, 0) + 1
        if entry.state == State.PENDING:
            counts["ready"] = counts.get("ready", 0) + (entry.available_at <= model.now)
            counts["oldest"] = min(entry.available_at, counts.get("oldest", entry.available_at))
    for row in model.segments.values():
        for state, queue, _, count in row.counts:
            counts = queues.setdefault(queue, {})
            counts[state.lower()] = counts.get(state.lower(), 0) + count
    return queues


def _dead_errors(model: Model) -> list[tuple[str, int]]:
    """Why events died, the commonest reasons first: what an operator asks next."""
    dead = (model.events[seq] for seq in model.archived)
    errors = Counter(archive.error_of(entry) for entry in dead if entry.state == State.DEAD)
    for row in model.segments.values():
        errors.update(dict(row.errors))
    return errors.most_common(TOP_ERRORS)


def ready(model: Model, args: Mapping[str, Any]) -> bool:
    """Whether a claim would bring anything."""
    return any_ready(model, args["queue"], args["types"])


def held(model: Model, args: Mapping[str, Any]) -> list[Any]:
    """The open ones among these leases: id, token, queue, claimant."""
    rows = (model.leases.get(lease_id) for lease_id in dict.fromkeys(args["lease_ids"]))
    return [(row.lease_id, row.token, row.queue, row.claimant) for row in rows if row is not None]


def controls(model: Model, _: Mapping[str, Any]) -> list[Any]:
    return [(queue, *control) for queue, control in sorted(model.controls.items())]


def stopping(model: Model, args: Mapping[str, Any]) -> bool:
    relay = model.relays.get(args["relay_id"])
    return relay is not None and relay.stopping


def now(model: Model, _: Mapping[str, Any]) -> int:
    return model.now
