"""Queries shared by the admin service and the dead letters: complete events, all events of a selection, previews."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from penstock.admin.serializers import Document, copy_document, event_document, note_document, timeline
from penstock.model.errors import EventNotFound
from penstock.model.event import EventId
from penstock.model.lifecycle import State
from penstock.model.records import HistoryEntry, Note, Record, SettledCount
from penstock.model.selection import Selection
from penstock.model.text import plain_fields
from penstock.store.api import Store

EXAMPLES = 3
MAX_COPIES = 1_000
SETTLED = frozenset({State.PUBLISHED, State.DEAD})
UNSETTLED = frozenset({State.PENDING, State.CLAIMED})


@dataclass(frozen=True, slots=True)
class Preview:
    """Events that a replay, purge or cancel would change."""

    total: int
    groups: Sequence[SettledCount]
    examples: list[Document]

    def as_json(self) -> Document:
        groups = [plain_fields(group) for group in self.groups]
        return {"dry_run": True, "total": self.total, "groups": groups, "examples": self.examples}


def preview(store: Store, selection: Selection, possible: frozenset[State] = SETTLED) -> Preview:
    """Preview an operation on events in the states `possible`. Unknown ids in the selection are ignored."""
    groups = store.settled_counts(selection) if possible == SETTLED else store.unsettled_counts(selection)
    states = (selection.states or possible) & possible
    examples = store.find(replace(selection, states=states), limit=EXAMPLES).records
    return Preview(sum(group.count for group in groups), groups, [event_document(one) for one in examples])


def find_copies(store: Store, event_id: EventId) -> Sequence[Record]:
    """Return an event and its copies in other queues, the event itself last."""
    records = store.find(Selection(ids=frozenset({event_id})), limit=MAX_COPIES).records
    if not records:
        raise EventNotFound(event_id)
    return records


def whole_document(
    store: Store, record: Record, records: Sequence[Record], history: Sequence[HistoryEntry], also: Document
) -> Document:
    """Return the event's fields, progress, result, the fields in `also`, the timeline, and the other copies."""
    note = store.notes([record.event_id]).get(record.event_id, Note())
    copies = [copy_document(copy) for copy in reversed(records) if copy is not record]
    document = {**event_document(record), **note_document(note), **also, "timeline": timeline(records, history)}
    return document | ({"copies": copies} if copies else {})


def all_records(store: Store, selection: Selection, page_size: int) -> Iterator[Record]:
    """Yield every record of a selection, a page at a time."""
    page = store.find(selection, limit=page_size)
    yield from page.records
    while page.after is not None:
        page = store.find(selection, after=page.after, limit=page_size)
        yield from page.records
