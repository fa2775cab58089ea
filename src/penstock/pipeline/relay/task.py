"""The relay's task, run on an executor: loops probe, claim, dispatch, settle until the slice ends.

Store, publisher and lease keeper are opened lazily, once per Python worker process, and reused by later slices. The
driver's side is `penstock.pipeline.relay.driver`.
"""

import gc
import os
import random
import socket
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from penstock.model.errors import NotInitialised, StoreConflict, StoreError, StoreUnavailable
from penstock.model.lease import Claim
from penstock.pipeline.counts import SliceCounts, settle_and_count
from penstock.pipeline.datasource.sender import RelayTaskSpec, Sender
from penstock.pipeline.spark.slices import Slice
from penstock.runtime.lease_keeper import LeaseKeeper
from penstock.runtime.starvation import any_starving
from penstock.store.api import Store, StoreOptions
from penstock.store.registry import open_store

MIN_IDLE_SECONDS = 0.002
MAX_IDLE_SECONDS = 0.05
IDLE_GROWTH = 1.5
MAX_BACKOFF_SECONDS = 2.0
# A relay that drains gives up after this many errors of the store in a row, other than outages and conflicts.
MAX_REFUSALS = 5
MAX_OPEN = 16
# Python's garbage collector runs after every 700 new objects by default. A claim creates thousands of acyclic objects,
# and traversing them took a third of a worker's time.
COLLECT_AFTER = 50_000


@dataclass(frozen=True, slots=True)
class TaskResources:
    """Resources that a Python worker process keeps open for a spec."""

    store: Store
    sender: Sender
    lease_keeper: LeaseKeeper
    claimant: str

    def let_go(self) -> None:
        self.lease_keeper.stop()
        self.sender.close()
        self.store.close()


_resources: OrderedDict[str, TaskResources] = OrderedDict()


Handle = Callable[[TaskResources, Claim, Slice, SliceCounts], None]


def deliver(spec: RelayTaskSpec, current: Slice) -> SliceCounts:
    """Publish events until the slice is over or, if `spec` has an end, until no events from before it are left."""
    return run_slice(spec, current, _publish)


def run_slice(spec: RelayTaskSpec, current: Slice, handle: Handle) -> SliceCounts:
    """Claim events and pass them to `handle`, in a loop until the slice ends or a draining relay is done."""
    resources = open_resources(spec)
    counts = SliceCounts()
    idle, backoff, probe = MIN_IDLE_SECONDS, MIN_IDLE_SECONDS, False
    refusals = 0
    while not current.over and not counts.drained:
        try:
            claim = _next_claim(resources, spec, probe)
            if claim:
                handle(resources, claim, current, counts)
                idle = MIN_IDLE_SECONDS
            elif spec.until is None:
                current.pause(idle)
                idle = min(idle * IDLE_GROWTH, MAX_IDLE_SECONDS)
            counts.drained = spec.until is not None and not _any_left(resources.store, spec, spec.until, claim)
            probe = claim is None or len(claim) < spec.batch
            backoff, refusals = MIN_IDLE_SECONDS, 0
        except StoreError as error:
            refusals = 0 if isinstance(error, StoreUnavailable | StoreConflict) else refusals + 1
            if isinstance(error, NotInitialised) or (spec.until is not None and refusals == MAX_REFUSALS):
                raise
            counts.note_error(error)
            current.pause(backoff * (1 + random.random()))
            backoff = min(backoff * 2, MAX_BACKOFF_SECONDS)
    return counts


def _next_claim(resources: TaskResources, spec: RelayTaskSpec, probe: bool) -> Claim | None:
    """Claim events. With `probe`, ask the store first whether any are ready, which is cheaper; return None if not.

    A draining relay that gets no events scans the whole queue and claims again.
    """
    claim = None if probe and not resources.store.ready(spec.queue) else _claim(resources, spec)
    if claim or spec.until is None:
        return claim
    resources.store.scan_everything()  # a draining relay may end only after a complete scan
    return _claim(resources, spec)


def _any_left(store: Store, spec: RelayTaskSpec, until: datetime, claim: Claim | None) -> bool:
    """Return whether events from before `until` may still be pending after this claim."""
    if not claim:
        return False
    if any(event.created_at <= until for event in claim.events):
        return True
    return len(claim) >= spec.batch and any_starving(store, spec.queue, until)


def open_resources(spec: RelayTaskSpec) -> TaskResources:
    """Return this process's resources for the spec; close the least recently used ones beyond `MAX_OPEN`."""
    name = repr(spec)
    if name not in _resources:
        gc.set_threshold(COLLECT_AFTER)
        store = open_store(spec.store, StoreOptions(order_policy=spec.dispatch.order_policy))
        lease_keeper = LeaseKeeper(store, spec.lease_seconds / 3)
        claimant = f"{socket.gethostname()}:{os.getpid()}"
        _resources[name] = TaskResources(store, Sender(spec.dispatch), lease_keeper, claimant)
        while len(_resources) > MAX_OPEN:
            _resources.popitem(last=False)[1].let_go()
    _resources.move_to_end(name)
    return _resources[name]


def _claim(resources: TaskResources, spec: RelayTaskSpec) -> Claim:
    return resources.store.claim(
        spec.queue,
        limit=spec.batch,
        claimant=resources.claimant,
        lease_seconds=spec.lease_seconds,
        max_attempts=spec.dispatch.retry.max_attempts,
    )


def _publish(resources: TaskResources, claim: Claim, current: Slice, counts: SliceCounts) -> None:
    counts.claimed += len(claim)
    with resources.lease_keeper.beating(claim.lease):
        outcomes = resources.sender.send(claim.events, current.stopped)
        settle_and_count(resources.store, claim.lease, outcomes, counts, current.stopped)
