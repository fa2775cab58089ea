"""Dead letters: listing, totals, redrive and purge. All results are ready for JSON.

A dead letter is an event of any queue in state DEAD: a redrive replays dead letters, a purge deletes them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from penstock.admin.queries import Preview, all_records, find_copies, preview, whole_document
from penstock.admin.serializers import Document
from penstock.admin.text import first_line
from penstock.model.dead_letters import DEAD, Death, DeathMark
from penstock.model.error_kinds import BEGINNING
from penstock.model.errors import UsageError
from penstock.model.event import EventId
from penstock.model.lifecycle import State
from penstock.model.records import HistoryEntry, Record
from penstock.model.selection import Selection
from penstock.model.text import plain_fields
from penstock.model.times import from_micros, to_micros
from penstock.store.api import Progress, Store

PAGE = 500
RECORDS_AT_A_TIME = 50
STREAM_HEADER = "penstock-stream-"
FAILURES = ("retried", "died")
# Details of timeline entries for attempts that ended without an error: the process was lost, or its lease expired.
LOST = ("lease expired", "attempt lost")


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """A page of dead letters, latest death first. Pass `after` to get the next page; `after` is None on the last
    page."""

    dead_letters: list[Document]
    after: str | None

    def as_json(self) -> Document:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class QueueTotal:
    queue: str
    count: int


@dataclass(frozen=True, slots=True)
class ErrorTotal:
    """Number of dead letters with one kind of error: its first line, with numbers and ids replaced by `#`."""

    error: str
    count: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Numbers of dead letters by queue and by kind of error, largest first."""

    total: int
    queues: list[QueueTotal]
    errors: list[ErrorTotal]

    def as_json(self) -> Document:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """A selected id that the operation doesn't apply to, with the event's state; None if no event has the id."""

    event_id: str
    state: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OfficeResult:
    """Result of a redrive or purge; with `preview`, the expected result."""

    done: str
    count: int
    left_alone: list[LeftAlone]
    preview: Preview | None = None

    def as_json(self) -> Document:
        fields = {self.done: self.count} if self.preview is None else self.preview.as_json()
        return {**fields, "left_alone": [asdict(one) for one in self.left_alone]}


class DeadLetterOffice:
    """Operations on the dead letters of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # -- inspection -------------------------------------------------------------------------------------------

    def find(self, selection: Selection | None = None, *, after: str | None = None, limit: int = 100) -> DeadLetters:
        """Return one page of the selected dead letters; of all without a selection."""
        if limit < 1:
            raise UsageError(f"limit must be at least 1, got {limit}")
        mark = None if after is None else _mark(after)
        page = self._store.deaths(selection or Selection(), after=mark, limit=limit)
        return DeadLetters([_letter(death) for death in page.deaths], page.after and _cursor(page.after))

    def totals(self, selection: Selection | None = None) -> Totals:
        """Count the selected dead letters by queue and by kind of error."""
        counts = self._store.death_counts(selection or Selection())
        queues, errors = Counter[str](), Counter[str]()
        for one in counts:
            queues[one.queue] += one.count
            errors[one.error] += one.count
        return Totals(
            queues.total(),
            [QueueTotal(queue, number) for queue, number in queues.most_common()],
            [ErrorTotal(error, number) for error, number in errors.most_common()],
        )

    def show(self, event_id: EventId) -> Document:
        """Return one dead letter: fields, payload, progress, result, timeline and origin."""
        records = find_copies(self._store, event_id)
        record = _latest_death(records)
        if record is None:
            raise UsageError(
                f"event {event_id} is {_standing(records).lower()}, not dead; show it with: penstock show {event_id}"
            )
        history = self._store.history(event_id)
        death = {
            "died_at": record.settled_at and record.settled_at.isoformat(),
            "own_failures": None if len(records) > 1 else _own_failures(history),
            "came_from": _came_from(record),
        }
        return whole_document(self._store, record, records, history, death)

    # -- operations -------------------------------------------------------------------------------------------

    def redrive(
        self, selection: Selection, *, dry_run: bool = False, by: str = "operator", progress: Progress | None = None
    ) -> OfficeResult:
        """Make dead letters pending again, in bounded batches. A repeat finds nothing to redrive and is harmless."""
        work = partial(self._store.replay, by=by, progress=progress)
        return self._operate(_dead(selection, "redrive"), "redriven", work, dry_run=dry_run)

    def purge(self, selection: Selection, *, dry_run: bool = False, progress: Progress | None = None) -> OfficeResult:
        """Delete dead letters permanently, in bounded batches."""
        work = partial(self._store.purge, progress=progress)
        return self._operate(_dead(selection, "purge"), "purged", work, dry_run=dry_run)

    def _operate(
        self, chosen: Selection, done: str, work: Callable[[Selection], int], *, dry_run: bool
    ) -> OfficeResult:
        left_alone = self._left_alone(chosen)
        shown = preview(self._store, chosen) if dry_run else None
        count = work(chosen) if shown is None else shown.total
        return OfficeResult(done=done, count=count, left_alone=left_alone, preview=shown)

    def _left_alone(self, chosen: Selection) -> list[LeftAlone]:
        """Return the selected ids that match no dead letter, most likely because the event is no longer dead."""
        if chosen.ids is None:
            return []
        others = chosen.ids - {death.event_id for death in self._deaths(chosen)}
        found: dict[EventId, list[Record]] = {}
        if others:
            for record in all_records(self._store, Selection(ids=others), RECORDS_AT_A_TIME):
                found.setdefault(record.event_id, []).append(record)
        return [LeftAlone(str(one), _standing(found[one]) if one in found else None) for one in sorted(others)]

    def _deaths(self, chosen: Selection) -> Iterator[Death]:
        page = self._store.deaths(chosen, limit=PAGE)
        yield from page.deaths
        while page.after is not None:
            page = self._store.deaths(chosen, after=page.after, limit=PAGE)
            yield from page.deaths


def _dead(selection: Selection, verb: str) -> Selection:
    """Return the selection restricted to dead letters; raise a usage error if it is empty or names other states."""
    selection.require(verb)
    if selection.states is not None and selection.states != DEAD:
        raise UsageError(f"{verb} applies to dead events only; omit other states from the selection")
    return replace(selection, states=DEAD)


def _letter(death: Death) -> Document:
    return {**plain_fields(death, without="seq"), "error": first_line(death.error, BEGINNING)}


def _cursor(mark: DeathMark) -> str:
    return f"{to_micros(mark.died_at)}.{mark.seq}"


def _mark(cursor: str) -> DeathMark:
    died_at, _, seq = cursor.partition(".")
    try:
        return DeathMark(from_micros(int(died_at)), int(seq))
    except (ValueError, OverflowError) as error:
        raise UsageError(f"invalid position {cursor!r}; pass the value of the previous page unchanged") from error


def _latest_death(records: Iterable[Record]) -> Record | None:
    dead = [record for record in records if record.state is State.DEAD]
    return max(dead, key=lambda record: (record.settled_at, record.seq), default=None)


def _standing(records: Sequence[Record]) -> str:
    """Return an event's state; of several copies, the first of dead, pending, claimed, published."""
    states = {record.state for record in records}
    return next(state.value for state in (State.DEAD, State.PENDING, State.CLAIMED, State.PUBLISHED) if state in states)


def _own_failures(history: Sequence[HistoryEntry]) -> int:
    """Count the failures since the last replay, without attempts that were lost with their process."""
    replays = [place for place, entry in enumerate(history) if entry.what == "replayed"]
    life = history[replays[-1] + 1 :] if replays else history
    return sum(entry.what in FAILURES and entry.detail not in LOST for entry in life)


def _came_from(record: Record) -> dict[str, str]:
    """Return the event's origin, from the headers that a stream sets when it forwards an event."""
    return {
        name.removeprefix(STREAM_HEADER): value
        for name, value in record.headers.items()
        if name.startswith(STREAM_HEADER)
    }
