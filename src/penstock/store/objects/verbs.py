"""The verbs by name: what changes the document, and what only looks at it."""

from collections.abc import Callable, Mapping
from typing import Any

from penstock.store.objects import claiming, emitting, keeping, looking, settling, steering
from penstock.store.objects.model import Model

Verb = Callable[[Model, Mapping[str, Any]], Any]

CHANGES: dict[str, Verb] = {
    "append": emitting.append,
    "commit_staged": emitting.commit_staged,
    "claim": claiming.claim,
    "extend": claiming.extend,
    "reap": claiming.reap,
    "settle": settling.settle,
    "route": settling.route,
    "release": settling.release,
    "replay": keeping.replay,
    "purge": keeping.purge,
    "tend": keeping.tend,
    "beat": keeping.beat,
    "forget": keeping.forget,
    "pause": steering.pause,
    "resume": steering.resume,
    "limit": steering.limit,
    "cancel": steering.cancel,
    "note": steering.note,
}

LOOKS: dict[str, Verb] = {
    "find": looking.find,
    "history": looking.history,
    "settled_counts": looking.settled_counts,
    "deaths": looking.deaths,
    "death_counts": looking.death_counts,
    "bounds": looking.bounds,
    "stats": looking.stats,
    "ready": looking.ready,
    "held": looking.held,
    "controls": looking.controls,
    "stopping": looking.stopping,
    "now": looking.now,
    "last_settled": keeping.last_settled,
    "unsettled_counts": steering.unsettled_counts,
    "notes": steering.notes,
    "heads": steering.heads,
}


def told(verb: str, model: Model, args: Mapping[str, Any], answer: Any) -> Any:
    """What a caller hears. A claim's events are read from the model: a remembered answer doesn't hold them."""
    return claiming.claimed(model, args, answer) if verb == "claim" else answer
