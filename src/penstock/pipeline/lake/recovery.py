"""Recovery of a lake after the death of a relay: completes or undoes unfinished moves, as the store decides.

A note lists files that were being moved into the lake. If all files are in place and the lease is still held, recovery
settles their events. If the lease was lost, the events are or will be in other files, and the files of the note are
deleted. Other relays may run at the same time: no file is deleted before the store has answered that its events were
not settled under the lease of the note.
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
    """Processes the notes of a lake at intervals. A failed step is left to the next sweep: no event depends on it."""

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
        # Leases end at this age by default, so the events of older files can no longer be settled.
        self.tidy(lambda: self._folder.forget_staged(DEFAULT_MAX_LEASE_AGE_SECONDS))

    def forget(self, note: LakeNote, settlement: Settlement | None) -> None:
        """Delete a note, and also its files if none of their events was settled."""
        if settlement is None:
            return  # the store did not answer: a later sweep settles again
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
                continue  # its relay may still be moving the files, or its query may be repeating the claim
            # If the lease is held, settle the events of the files. Otherwise nothing changes, and the settlement lists
            # the events that were settled before.
            settlement = self._store.settle(note.lease, dict.fromkeys(note.seqs, PUBLISHED))
            if settlement.published:
                log.info("lake_batch_recovered", count=len(settlement.published))
            if settlement.published or settlement.already_settled or self._knows(note.witness):
                self.forget(note, settlement)

    def _knows(self, event_id: str) -> bool:
        """True if the event is in this store. Several stores may share a lake; each decides only about its leases."""
        return bool(self._store.find(Selection(ids=frozenset({EventId(UUID(event_id))})), limit=1).records)


def cause_of(error: BaseException) -> str:
    """Return the innermost cause of an error in one line; raise PipelineError if the JVM is gone."""
    if java_is_gone(error):
        raise gone(error)
    return innermost_cause(error)
