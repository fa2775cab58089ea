"""Claiming: which events a claim takes, what a repeat of it brings, and how leases are kept alive.

There is one writer, so nothing is locked: an ordering key is held while any event of its line is claimed.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock import lifecycle
from penstock.lifecycle import State, fitting, weight
from penstock.store.objects.model import Model
from penstock.store.objects.values import Entry, LeaseRow, Line

LINE_LIMIT = 100
# The version of the ids that this store gives to leases. One that is not open is closed: it needn't be remembered.
OWN_VERSION = "8"

Types = Sequence[str] | None


def claim(model: Model, args: Mapping[str, Any]) -> dict[str, Any]:
    """The lease, and which events are under it now."""
    lease_id, row = args["lease_id"], model.leases.get(args["lease_id"])
    repeated = row is not None
    if row is not None:
        seqs = _repeat(model, row, args)
    elif args["given"] and (lease_id in model.closed or lease_id[12] == OWN_VERSION):
        return {"seqs": [], "repeated": True}
    else:
        seqs = _begin(model, args)
    _close_if_empty(model, lease_id, args["given"])
    return {"seqs": seqs, "repeated": repeated}


def claimed(model: Model, args: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer to a claim with its events, as far as they are still held with its token."""
    row = model.leases.get(args["lease_id"])
    held = row is not None and row.token == args["token"]
    events = [model.events[seq] for seq in answer["seqs"] if held and model.claimed.get(seq) == args["lease_id"]]
    return {"events": in_turn(events), "repeated": answer["repeated"]}


def in_turn(events: list[Entry]) -> list[Entry]:
    """By priority, then time; events of an ordering key strictly as they were emitted."""
    plain = [entry for entry in events if entry.ordering_key is None]
    keyed = [entry for entry in events if entry.ordering_key is not None]
    plain.sort(key=lambda entry: (-entry.priority, entry.available_at, entry.seq))
    keyed.sort(key=lambda entry: entry.seq)
    return plain + keyed


def _begin(model: Model, args: Mapping[str, Any]) -> list[int]:
    limit = room_in(model, args["queue"], args["limit"])
    chosen = _take(model, args["queue"], args["types"], limit) if limit > 0 else []
    if chosen or args["given"]:
        model.leases[args["lease_id"]] = LeaseRow(
            args["lease_id"],
            args["queue"],
            args["claimant"],
            args["token"],
            args["max_attempts"],
            model.now,
            model.now + args["lease_micros"],
            args["given"],
        )
        model.touched = True
    for entry in chosen:
        model.put(entry.living(lifecycle.claim(entry.life()), lease_id=args["lease_id"]))
    return [entry.seq for entry in chosen]


def room_in(model: Model, queue: str, limit: int) -> int:
    """How many events of a queue may be claimed now, by its controls."""
    control = model.controls.get(queue)
    if control is None:
        return limit
    if control.paused_at is not None:
        return 0
    if control.max_claimed is None:
        return limit
    return min(limit, control.max_claimed - model.claimed_in.get(queue, 0))


def _take(model: Model, queue: str, types: Types, limit: int) -> list[Entry]:
    """Events with a key and events without one, each first every other time: neither can starve the other."""
    model.keyed_first = not model.keyed_first
    takers: list[Callable[[Model, str, Types, int, int], list[Entry]]] = [_keyed, _plain]
    first, second = takers if model.keyed_first else reversed(takers)
    chosen = first(model, queue, types, limit, limit)
    if len(chosen) < limit:
        room = limit - sum(weight(entry.suspect, limit) for entry in chosen)
        chosen += second(model, queue, types, limit, room) if room > 0 else []
    return chosen


def any_ready(model: Model, queue: str, types: Types) -> bool:
    """Whether a claim would bring anything."""
    if room_in(model, queue, 1) < 1:
        return False
    return bool(_plain(model, queue, types, 1, 1) or _keyed(model, queue, types, 1, 1))


def _plain(model: Model, queue: str, types: Types, limit: int, room: int) -> list[Entry]:
    """By priority, then time, then number. What may not go yet ends its level: the next one may have something."""
    line, place = model.ready.get(queue, []), 0
    chosen: list[Entry] = []
    while place < len(line) and len(chosen) < room:
        rank, at, seq = line[place]
        if at > model.now:
            place = bisect_left(line, (rank + 1,))
            continue
        entry = model.events[seq]
        if types is None or entry.event_type in types:
            chosen.append(entry)
        place += 1
    return _fit(chosen, limit, room)


def _keyed(model: Model, queue: str, types: Types, limit: int, room: int) -> list[Entry]:
    """The heads of the free lines, up to the first event that may not go: what stands behind it waits too. The key
    that has waited longest goes first."""
    chosen: list[Entry] = []
    for at, key in model.free.get(queue, []):
        if at > model.now or len(chosen) >= room:
            break
        for seq in model.lines[(queue, key)][: min(limit, LINE_LIMIT)]:
            entry = model.events[seq]
            if entry.available_at > model.now or (types is not None and entry.event_type not in types):
                break
            chosen.append(entry)
    return _fit(chosen[:room], limit, room)


def _fit(chosen: list[Entry], limit: int, room: int) -> list[Entry]:
    return chosen[: fitting((entry.suspect for entry in chosen), limit, taken=limit - room)]


def _repeat(model: Model, row: LeaseRow, args: Mapping[str, Any]) -> list[int]:
    """What is left of a claim, with a new token and more time. Another claimant means a lost attempt."""
    expires_at = max(row.expires_at, model.now + args["lease_micros"])
    moved = row.claimant != args["claimant"]
    row = row._replace(token=args["token"], claimant=args["claimant"], expires_at=expires_at)
    model.leases[row.lease_id] = row
    model.touched = True
    if moved:
        _count_lost(model, row, args["limit"])
    return [entry.seq for entry in model.under(row.lease_id)]


def _count_lost(model: Model, row: LeaseRow, limit: int) -> None:
    """What goes back comes from the end: of an ordering key's line it is never the head."""
    held = sorted(model.under(row.lease_id), key=_from_the_front)
    dead = [entry for entry in held if lifecycle.exhausted(entry.life(), row.max_attempts)]
    alive = [entry for entry in held if not lifecycle.exhausted(entry.life(), row.max_attempts)]
    stay = fitting((min(entry.suspect + 1, lifecycle.MAX_SUSPECT) for entry in alive), limit)
    for entry in dead + alive[stay:]:
        lose(model, entry, row, what="lost", error="attempt lost")
    for entry in alive[:stay]:
        life = lifecycle.expire(entry.life(), max_attempts=row.max_attempts, error="attempt lost")
        model.put(entry.living(lifecycle.claim(life)))
        model.record(entry.seq, Line(model.now, "lost", life.attempts, row.lease_id, row.claimant, "attempt lost"))


def _from_the_front(entry: Entry) -> tuple[bool, str, int, int]:
    keyed = entry.ordering_key is not None
    return not keyed, entry.ordering_key or "", 0 if keyed else entry.available_at, entry.seq


def lose(model: Model, entry: Entry, row: LeaseRow, *, what: str, error: str) -> None:
    """A lost attempt or an expired lease, for an event that doesn't stay under it."""
    life = lifecycle.expire(entry.life(), max_attempts=row.max_attempts, error=error)
    died = life.state is State.DEAD
    settled = {"settled_at": model.now} if died else {"lease_id": None}
    model.put(entry.living(life, **settled))
    what = "died" if died else what
    model.record(entry.seq, Line(model.now, what, life.attempts, row.lease_id, row.claimant, error))


def _close_if_empty(model: Model, lease_id: str, given: bool) -> None:
    if lease_id not in model.holding and (given or lease_id in model.leases):
        close(model, lease_id)


def close(model: Model, lease_id: str) -> None:
    """A closed lease yields nothing for ever: an id that somebody else chose is kept for a day, to know it by."""
    row = model.leases.pop(lease_id)
    if row.given:
        model.closed[lease_id] = model.now
    model.touched = True


def extend(model: Model, args: Mapping[str, Any]) -> list[int]:
    """Which of the leases, by their place, are still held; those live on, up to their greatest age."""
    held: list[int] = []
    for place, (lease_id, token, micros) in enumerate(args["leases"]):
        row = model.leases.get(lease_id)
        if row is None or row.token != token or row.claimed_at + args["max_age"] <= model.now:
            continue
        expires_at = max(row.expires_at, min(model.now + micros, row.claimed_at + args["max_age"]))
        model.leases[lease_id] = row._replace(expires_at=expires_at)
        model.touched = True
        held.append(place)
    return held


def reap(model: Model, args: Mapping[str, Any]) -> int:
    """Take back what expired leases hold: whole leases, the longest expired first."""
    total = taken = 0
    expired = [row for row in model.leases.values() if row.expires_at < model.now]
    for row in sorted(expired, key=lambda row: row.expires_at):
        count = model.holding.get(row.lease_id, 0)
        if taken and total + count > args["limit"]:
            break
        for entry in model.under(row.lease_id):
            lose(model, entry, row, what="reaped", error="lease expired")
        close(model, row.lease_id)
        total, taken = total + count, taken + 1
    return total
