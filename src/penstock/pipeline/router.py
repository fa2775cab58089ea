"""One task's turn of the router, on an executor: events of a queue move on to the queues of their destinations.

From there each destination has a relay of its own, so that one that fails neither delays nor repeats another. What
no route matches is laid out as a dead letter.
"""

from penstock.config.routes import queue_of
from penstock.model.lease import Claim
from penstock.model.outcome import Dead, Outcome
from penstock.pipeline.carry import Errand, Hands, Tally, insist, take_turn
from penstock.pipeline.slices import Slice


def route(errand: Errand, turn: Slice) -> Tally:
    """Route events until the slice is over, or, for an errand with an end, until there are none left."""
    return take_turn(errand, turn, _route)


def _route(hands: Hands, errand: Errand, claim: Claim, turn: Slice, tally: Tally) -> None:
    assert errand.routes is not None
    queues: dict[int, list[str]] = {}
    unrouted: dict[int, Outcome] = {}
    for event in claim.events:
        names = errand.routes.destinations_of(event.event_type)
        if names:
            queues[event.seq] = [queue_of(errand.queue, name) for name in names]
        else:
            unrouted[event.seq] = Dead(f"no route matches {event.event_type}: add one, then replay")
    with hands.heart.beating(claim.lease):
        moved = insist(lambda: hands.store.route(claim.lease, queues), errand, lambda: turn.stopped, tally)
        settlement = insist(lambda: hands.store.settle(claim.lease, unrouted), errand, lambda: turn.stopped, tally)
    tally.claimed += len(claim)
    if moved is not None:
        tally.routed += len(moved.released)
        tally.lost += len(moved.lost)
    if settlement is not None:
        tally.count(settlement)
        tally.explain(settlement, unrouted)
