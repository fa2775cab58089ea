"""The router's task, run on an executor: moves events of a queue to the queues of their destinations.

A separate lane publishes each of these queues, so that a failing destination neither delays nor repeats the delivery to
another. An event that matches no route becomes a dead letter.
"""

from functools import partial

from penstock.config.routes import queue_of
from penstock.model.lease import Claim
from penstock.model.outcome import Dead, Outcome
from penstock.pipeline.counts import SliceCounts, settle_and_count
from penstock.pipeline.datasource.sender import RelayTaskSpec
from penstock.pipeline.relay.task import TaskResources, run_slice
from penstock.pipeline.spark.slices import Slice
from penstock.runtime.retrying import insist


def route(spec: RelayTaskSpec, current: Slice) -> SliceCounts:
    """Route events until the slice is over or, if `spec` has an end, until no events from before it are left."""
    return run_slice(spec, current, partial(_route, spec))


def _route(spec: RelayTaskSpec, resources: TaskResources, claim: Claim, current: Slice, counts: SliceCounts) -> None:
    assert spec.routes is not None
    queues: dict[int, list[str]] = {}
    unrouted: dict[int, Outcome] = {}
    for event in claim.events:
        names = spec.routes.destinations_of(event.event_type)
        if names:
            queues[event.seq] = [queue_of(spec.queue, name) for name in names]
        else:
            unrouted[event.seq] = Dead(f"no route matches event type {event.event_type!r}; add one, then replay")
    with resources.lease_keeper.beating(claim.lease):
        moved = insist(
            lambda: resources.store.route(claim.lease, queues), spec.lease_seconds, current.stopped, counts.note_error
        )
        settle_and_count(resources.store, claim.lease, unrouted, counts, current.stopped)
    counts.claimed += len(claim)
    if moved is not None:
        counts.routed += len(moved.released)
        counts.lost += len(moved.lost)
