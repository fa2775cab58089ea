"""Detection of events that wait behind newer events of higher priority."""

from datetime import datetime

from penstock.model.lifecycle import State
from penstock.model.selection import Selection
from penstock.store.api import Store


def any_starving(store: Store, queue: str, until: datetime) -> bool:
    """Return whether events emitted before `until` are due and still pending."""
    waiting = Selection(states=frozenset({State.PENDING}), queue=queue, until=until)
    now, after = store.now(), None
    while True:
        page = store.find(waiting, after=after)
        if any(record.available_at <= now for record in page.records):
            return True
        if page.after is None:
            return False
        after = page.after
