"""What relays left behind in a lake when they died: brought to an end, one way or the other, as the store judges.

A note stands for files that were being moved in. If all of them are there and the lease still holds, their events are
settled, here and now. If the lease was lost, its events are or will be in other files, and these go. Other relays may
be at work at the same time: nothing is taken away before the store has said that its events were not settled by it.
"""

import time
from collections.abc import Callable
from uuid import UUID

from penstock.model.errors import PenstockError
from penstock.model.event import EventId
from penstock.model.lease import DEFAULT_MAX_LEASE_AGE_SECONDS, Settlement
from penstock.model.outcome import PUBLISHED
from penstock.model.selection import Selection
from penstock.pipeline.lake.files import LakeFolder, LakeNote
from penstock.pipeline.spark.errors import gone, innermost_cause, is_sparks, java_is_gone
from penstock.store.api import Store
from penstock.telemetry import log

EVERY_SECONDS = 30.0


class Sweep:
    """Goes through a lake's notes now and then. What fails is left for the next time: no event depends on it."""

    def __init__(self, store: Store, folder: LakeFolder) -> None:
        self._store = store
        self._folder = folder
        self._due = 0.0

    def if_due(self) -> None:
        if time.monotonic() >= self._due:
            self.now()

    def now(self) -> None:
        self._due = time.monotonic() + EVERY_SECONDS
        self.tidy(self._finish_notes)
        # Nobody can settle what was written so long ago.
        self.tidy(lambda: self._folder.forget_staged(DEFAULT_MAX_LEASE_AGE_SECONDS))

    def forget(self, note: LakeNote, settlement: Settlement | None) -> None:
        """Let go of a note; and of its files, if none of their events was settled with them in place."""
        if settlement is None:
            return  # the store didn't answer: another sweep will ask
        if settlement.published or settlement.already_settled:
            self._folder.take_away(note)
        else:
            self.discard(note)

    def discard(self, note: LakeNote) -> None:
        self._folder.delete(note.files)
        self._folder.take_away(note)

    def tidy(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            if not (isinstance(error, PenstockError) or is_sparks(error)):
                raise
            log.warn("lake_cleanup_failed", error=cause_of(error))

    def _finish_notes(self) -> None:
        for note in self._folder.notes():
            if not self._folder.holds(note.files) and self._store.extend([note.lease]):
                continue  # its relay may be at it, or the query that repeats its claim
            # If the lease still holds, this settles what is in place. Else nothing changes, and the answer tells.
            settlement = self._store.settle(note.lease, dict.fromkeys(note.seqs, PUBLISHED))
            if settlement.published:
                log.info("lake_batch_recovered", count=len(settlement.published))
            if settlement.published or settlement.already_settled or self._knows(note.witness):
                self.forget(note, settlement)

    def _knows(self, event_id: str) -> bool:
        """Whether an event is of this store: several may fill one lake, and none judges the others' leases."""
        return bool(self._store.find(Selection(ids=frozenset({EventId(UUID(event_id))})), limit=1).records)


def cause_of(error: BaseException) -> str:
    """What went wrong, in one line."""
    if java_is_gone(error):
        raise gone(error)
    return innermost_cause(error)
