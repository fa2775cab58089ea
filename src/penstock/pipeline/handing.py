"""Handing over, on an executor: the rows of a step's result become deliveries, go to their destination, and what came
of each goes back to the driver, which settles."""

from collections.abc import Iterator, Sequence
from datetime import UTC
from typing import TYPE_CHECKING, Any
from uuid import UUID

from penstock.event import Delivery, EventId
from penstock.lifecycle import RELEASED, Dead, Outcome, Published, Released, Retry
from penstock.pipeline import carry
from penstock.pipeline.carry import Errand
from penstock.pipeline.slices import Slice, line_to
from penstock.pipeline.steps import NEEDED

if TYPE_CHECKING:
    from pyarrow import RecordBatch

OUTCOMES = "seq BIGINT, lease STRING, token STRING, outcome STRING, error STRING, delay_seconds DOUBLE"

NEVER_EMPTY = (*NEEDED, "queue", "priority", "created_at", "available_at", "attempts", "deliveries")

Row = dict[str, Any]
Sent = list[tuple[Row, Outcome]]


def hand_over(errand: Errand, address: tuple[str, int], batches: Iterator["RecordBatch"]) -> Iterator["RecordBatch"]:
    """Publish a partition's rows; a row (seq, lease, token, outcome, error, delay_seconds) for each comes back."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    turn = Slice(0, 0, float("inf"), line_to(address))
    if rows:
        yield _record_batch(send(errand, rows, turn))


def send(errand: Errand, rows: Sequence[Row], turn: Slice) -> Sent:
    """An outcome for each row. Copies of one event go out one after the other, because outcomes are told by seq."""
    events = [_delivery(row) for row in rows]  # all of them before any goes out: a bad one fails its whole partition
    if turn.stopped:
        return [(row, RELEASED) for row in rows]
    hands = carry.open_hands(errand)
    sent: Sent = []
    blocked: set[str] = set()
    for wave in _waves(events):
        going = [events[place] for place in wave if events[place].ordering_key not in blocked]
        outcomes = {} if sent and turn.stopped else carry.dispatch_pieces(hands, errand, going, turn)
        blocked |= carry.blocked_keys(going, outcomes, errand.order_policy)
        sent += [(rows[place], outcomes.get(events[place].seq, RELEASED)) for place in wave]
    return sent


def _waves(events: Sequence[Delivery]) -> list[list[int]]:
    """Places of events, in waves without two copies of one event; of an ordering key none goes before its turn.

    A step may have shuffled the rows: those of an ordering key go by seq again, and the others as they come.
    """
    order = sorted(range(len(events)), key=lambda place: events[place].seq if events[place].ordering_key else -1)
    copies: dict[int, int] = {}
    lines: dict[str, int] = {}
    waves: list[list[int]] = []
    for place in order:
        seq, key = events[place].seq, events[place].ordering_key
        number = copies.get(seq, -1) + 1
        if key is not None:
            number = lines[key] = max(number, lines.get(key, 0))
        copies[seq] = number
        while number >= len(waves):
            waves.append([])
        waves[number].append(place)
    return waves


def _delivery(row: Row) -> Delivery:
    missing = [name for name in NEVER_EMPTY if row[name] is None]
    if missing:
        raise ValueError(f"a row of the step's result has no {', '.join(missing)}")
    fields = {name: row[name] for name in Delivery._fields}
    fields["event_id"] = EventId(UUID(row["event_id"]))
    fields["headers"] = dict(row["headers"]) if row["headers"] else None
    for name in ("created_at", "available_at"):
        fields[name] = row[name].astimezone(UTC)
    return Delivery(**fields)


def _record_batch(sent: Sent) -> "RecordBatch":
    import pyarrow as pa

    kinds = [pa.int64(), pa.string(), pa.string(), pa.string(), pa.string(), pa.float64()]
    names = [column.split()[0] for column in OUTCOMES.split(", ")]
    columns = zip(*((row["seq"], row["lease"], row["token"], *_told(outcome)) for row, outcome in sent), strict=True)
    arrays = [pa.array(values, kind) for values, kind in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names)


def _told(outcome: Outcome) -> tuple[str, str | None, float | None]:
    match outcome:
        case Published():
            return "PUBLISHED", None, None
        case Released():
            return "RELEASED", None, None
        case Retry(error=error, delay_seconds=delay):
            return "RETRY", error, delay
        case Dead(error=error):
            return "DEAD", error, None
