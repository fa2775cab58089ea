"""Events per second of bulk emits in one process, compared with PgQueuer's bulk enqueue in chunks of the same size."""

import time
from statistics import median

from benchmarks import pgqueuer
from benchmarks.ground import Ground
from benchmarks.plan import EVENT_TYPE, PAYLOAD, Figure, Measured, Plan, at_least
from penstock import connect
from penstock.model.event import Event


def measure(ground: Ground, plan: Plan) -> Measured:
    tries = {}
    for chunk in pgqueuer.CHUNKS:
        ground.note(f"trying PgQueuer's enqueue in chunks of {chunk:,}")
        tries[chunk] = _enqueue_rate(ground, plan.tries, chunk)
    chunk = max(tries, key=lambda size: tries[size])
    emits, enqueues = [], []
    for number in range(1, plan.rounds + 1):
        ground.note(f"emit, round {number} of {plan.rounds}: emit_many, PgQueuer's enqueue")
        emits.append(_emit_rate(ground, plan.events, chunk))
        enqueues.append(_enqueue_rate(ground, plan.events, chunk))
        ground.note(f"  {emits[-1]:,.0f} and {enqueues[-1]:,.0f} a second")
    ratio = median(ours / theirs for ours, theirs in zip(emits, enqueues, strict=True))
    figures = (
        Figure("bulk emit", median(emits), "events/s"),
        Figure("PgQueuer's bulk enqueue", median(enqueues), "jobs/s"),
        Figure("emit / PgQueuer", ratio, "times", at_least(1.5)),
    )
    details = {"rounds": {"emit": emits, "pgqueuer": enqueues}, "chunk": chunk, "pgqueuer_tried": tries}
    return Measured(figures, details)


def _emit_rate(ground: Ground, events: int, chunk: int) -> float:
    """Return the events created and emitted per second. Every emit needs the creation, so its time is included."""
    with ground.outbox() as url, connect(url) as outbox:
        outbox.store.now()  # connects
        began = time.perf_counter()
        for start in range(0, events, chunk):
            count = min(chunk, events - start)
            outbox.emit_many([Event(event_type=EVENT_TYPE, payload=PAYLOAD) for _ in range(count)])
        return events / (time.perf_counter() - began)


def _enqueue_rate(ground: Ground, jobs: int, chunk: int) -> float:
    with ground.database() as url:
        return pgqueuer.enqueue(url, jobs, chunk)
