"""Settling: what becomes of claimed events, and what a caller is told who comes too late."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, assert_never

from penstock import lifecycle
from penstock.lifecycle import PUBLISHED, RELEASED, Dead, Life, Outcome, Published, Released, Retry, State
from penstock.store.objects import archive
from penstock.store.objects.claiming import close
from penstock.store.objects.model import Model
from penstock.store.objects.values import Blob, Entry, LeaseRow, Line, NoteRow

WORDS = {"PUBLISHED": "published", "RETRY": "retried", "DEAD": "dead", "RELEASED": "released"}


class OutcomeRow(NamedTuple):
    """An outcome, as a request carries it."""

    seq: int
    kind: str
    error: str | None = None
    delay_micros: int = 0
    result: Blob | None = None
    keep: bool = True

    def outcome(self) -> Outcome:
        match self.kind:
            case "PUBLISHED":
                return PUBLISHED
            case "RETRY":
                return Retry(self.error or "")
            case "DEAD":
                return Dead(self.error or "")
            case _:
                return RELEASED


def settle(model: Model, args: Mapping[str, Any]) -> dict[str, list[int]]:
    """Which events were settled how, by the words of a `Settlement`."""
    rows = [OutcomeRow(*row) for row in args["outcomes"]]
    lease = holder(model, args)
    if lease is None:
        return _too_late(model, args["lease_id"], [row.seq for row in rows])
    told: dict[str, list[int]] = {}
    missed: list[int] = []
    for row in rows:
        if model.claimed.get(row.seq) == lease.lease_id:
            told.setdefault(_apply(model, lease, row, skip=args["skip"]), []).append(row.seq)
        else:
            missed.append(row.seq)
    _release_behind(model, lease, {row.seq for row in rows})
    close_if_done(model, lease)
    return told | (_too_late(model, lease.lease_id, missed) if missed else {})


def holder(model: Model, args: Mapping[str, Any]) -> LeaseRow | None:
    """The lease that a caller names, if it is open and the token is the newest."""
    row = model.leases.get(args["lease_id"])
    return row if row is not None and row.token == args["token"] else None


def close_if_done(model: Model, lease: LeaseRow) -> None:
    """A lease ends with its last event."""
    if lease.lease_id not in model.holding:
        close(model, lease.lease_id)


def _apply(model: Model, lease: LeaseRow, row: OutcomeRow, *, skip: bool) -> str:
    entry, outcome = model.events[row.seq], row.outcome()
    life = lifecycle.settle(entry.life(), outcome, max_attempts=lease.max_attempts)
    if row.result is not None:
        noted = model.notes.get(row.seq, NoteRow())
        model.notes[row.seq] = noted._replace(result=(row.result[0], row.result[1]))
    if life.state is State.PENDING:
        return _go_back(model, lease, entry, life, row, skip=skip)
    if life.state is State.DEAD:
        model.record(row.seq, Line(model.now, "died", life.attempts, lease.lease_id, lease.claimant, row.error))
    model.put(entry.living(life, settled_at=model.now))
    if not row.keep:
        model.drop(row.seq)
    return life.state.lower()


def _go_back(model: Model, lease: LeaseRow, entry: Entry, life: Life, row: OutcomeRow, *, skip: bool) -> str:
    changes: dict[str, Any] = {"lease_id": None}
    outcome = row.outcome()
    match outcome:
        case Retry():
            changes["available_at"] = model.now + row.delay_micros
            if skip:
                changes["ordering_key"] = None
        case Released():
            pass
        case Published() | Dead():
            raise AssertionError(outcome)
        case _:
            assert_never(outcome)
    model.put(entry.living(life, **changes))
    word = WORDS[row.kind]
    model.record(entry.seq, Line(model.now, word, life.attempts, lease.lease_id, lease.claimant, row.error))
    return word


def _release_behind(model: Model, lease: LeaseRow, seqs: set[int]) -> None:
    """What stands behind an event that went back to its line goes back with it: whoever repeats the claim would
    overtake."""
    front: dict[tuple[str, str], int] = {}
    for seq in seqs:
        entry = model.events.get(seq)
        if entry is not None and entry.state == State.PENDING and entry.ordering_key is not None:
            key = (entry.queue, entry.ordering_key)
            front[key] = min(seq, front.get(key, seq))
    if not front:
        return
    for entry in model.under(lease.lease_id):
        if entry.seq > front.get((entry.queue, entry.ordering_key or ""), entry.seq):
            release_one(model, lease, entry)


def release_one(model: Model, lease: LeaseRow, entry: Entry) -> None:
    """Back to pending, uncounted."""
    _go_back(
        model, lease, entry, lifecycle.settle(entry.life(), RELEASED), OutcomeRow(entry.seq, "RELEASED"), skip=False
    )


def release(model: Model, args: Mapping[str, Any]) -> int:
    """Give back all that is left under a lease; how many."""
    lease = holder(model, args)
    if lease is None:
        return 0
    held = model.under(lease.lease_id)
    for entry in held:
        release_one(model, lease, entry)
    close_if_done(model, lease)
    return len(held)


def _too_late(model: Model, lease_id: str, seqs: Iterable[int]) -> dict[str, list[int]]:
    """Settled before by the same lease, or lost. What went back to pending left its line in the history."""
    asked = list(seqs)
    before = {seq for seq in asked if seq in model.events and _settled_by(lease_id, model.events[seq], model.history)}
    for segment, found in archive.containing(model, [seq for seq in asked if seq not in model.events]):
        before |= {seq for seq in found if _settled_by(lease_id, segment.entries[seq], segment.history)}
    told = {"already_settled": sorted(before), "lost": [seq for seq in asked if seq not in before]}
    return {word: found for word, found in told.items() if found}


def _settled_by(lease_id: str, entry: Entry, history: Mapping[int, tuple[Line, ...]]) -> bool:
    if entry.settled and entry.lease_id == lease_id:
        return True
    lines = history.get(entry.seq, ())
    return any(line.lease_id == lease_id and line.what in ("retried", "released") for line in lines)


def route(model: Model, args: Mapping[str, Any]) -> dict[str, list[int]]:
    """Move events to other queues: the first takes the event itself, each further one a copy."""
    lease = holder(model, args)
    asked = sorted({seq for seq, _, _ in args["rows"]})
    held = {} if lease is None else {entry.seq: entry for entry in model.under(lease.lease_id)}
    for seq, queue, copy_id in args["rows"]:
        if seq not in held:
            continue
        entry = held[seq]
        changes: dict[str, Any] = {}
        if copy_id is not None:
            model.last_seq += 1
            changes = {"seq": model.last_seq, "event_id": copy_id, "origin": entry.known_as}
        model.put(_fresh(entry, queue, model.now)._replace(**changes))
    if lease is not None:
        close_if_done(model, lease)
    moved = [seq for seq in asked if seq in held]
    return {"released": moved, "lost": [seq for seq in asked if seq not in held]}


def _fresh(entry: Entry, queue: str, now: int) -> Entry:
    """As if just emitted."""
    life = Life(max_attempts=entry.max_attempts)
    return entry.living(life, queue=queue, available_at=now, lease_id=None)
