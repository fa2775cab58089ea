"""Operations on the queue document by name: changes, which the broker writes, and queries, which only read.

Each is a function of a document and of the arguments of a request, in JSON types; the document contains the time. A
change raises a `PenstockError` before it changes anything.
"""

from collections.abc import Callable, Mapping
from typing import Any

from penstock.store.objects.document import Document
from penstock.store.objects.operations import claims, controls, emits, queries, retention, settlements

Operation = Callable[[Document, Mapping[str, Any]], Any]

CHANGES: dict[str, Operation] = {
    function.__name__: function
    for function in (
        *(emits.append, claims.claim, claims.extend, claims.reap),
        *(settlements.settle, settlements.release, settlements.note),
        *(controls.pause, controls.resume, controls.cancel, controls.replay, controls.beat, controls.forget),
        *(retention.purge, retention.tend),
    )
}

QUERIES: dict[str, Operation] = {
    function.__name__: function
    for function in (
        *(queries.find, queries.history, queries.counts, queries.deaths, queries.death_counts, queries.notes),
        *(queries.bounds, queries.stats, queries.ready, queries.heads, queries.held, queries.paused),
        *(queries.stopping, queries.now),
    )
}
