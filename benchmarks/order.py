"""Cost of ordering: the relay with ordering keys, 20 events per key, compared with the same relay without keys."""

from statistics import median

import psycopg

from benchmarks.ground import Ground, calm, rate
from benchmarks.plan import EVENT_TYPE, PAYLOAD, Figure, Measured, Plan, at_least
from penstock.pipeline import open_session
from penstock.pipeline.relay.driver import run_relay
from penstock.pipeline.relay.spec import RelayOptions

EVENTS_A_KEY = 20
_SETTLED = "SELECT settled_at AS at FROM penstock_archive"

# Keys alternate, as when many customers act at the same time.
_EMITTED = """
INSERT INTO penstock_events (event_id, event_type, payload, ordering_key, created_at)
SELECT gen_random_uuid(), %(event_type)s, %(payload)s, 'key-' || number %% %(keys)s,
       now() - (%(count)s - number) * interval '1 microsecond' - interval '1 minute'
FROM generate_series(1, %(count)s) AS number
"""
_PENDING = """
INSERT INTO penstock_pending (seq, queue, ordering_key, priority, attempts, deliveries, replays, suspect, available_at)
SELECT seq, 'outbox', ordering_key, 0, 0, 0, 0, 0, created_at FROM penstock_events ORDER BY seq
"""
_KEYS = """
INSERT INTO penstock_keys (queue, ordering_key, next_at)
SELECT 'outbox', ordering_key, min(created_at) FROM penstock_events GROUP BY ordering_key
"""


def measure(ground: Ground, plan: Plan) -> Measured:
    open_session(f"local[{plan.tasks}]")
    keyed, free = [], []
    for number in range(1, plan.rounds + 1):
        ground.note(f"order, round {number} of {plan.rounds}: with keys, without")
        keyed.append(_relay(ground, plan, keys=True))
        free.append(_relay(ground, plan, keys=False))
        ground.note(f"  {keyed[-1]:,.0f} and {free[-1]:,.0f} a second")
    ratio = median(one / other for one, other in zip(keyed, free, strict=True))
    figures = (
        Figure(f"relay, {EVENTS_A_KEY} events a key", median(keyed), "events/s"),
        Figure("relay, no keys", median(free), "events/s"),
        Figure("with keys / without", ratio, "times", at_least(0.4)),
    )
    return Measured(figures, {"rounds": {"keyed": keyed, "free": free}})


def _relay(ground: Ground, plan: Plan, *, keys: bool) -> float:
    count = plan.warm_up + plan.events
    with ground.outbox(0 if keys else count) as url:
        if keys:
            _fill(url, count)
        options = RelayOptions(
            store=url,
            destination="null:",
            master=f"local[{plan.tasks}]",
            parallelism=plan.tasks,
            batch=plan.batch,
            once=True,
        )
        run_relay(options)
        return rate(url, _SETTLED, plan.warm_up)


def _fill(url: str, count: int) -> None:
    """Insert pending events with ordering keys by statements on the server."""
    given = {"event_type": EVENT_TYPE, "payload": PAYLOAD, "count": count, "keys": max(1, count // EVENTS_A_KEY)}
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_EMITTED, given)
        connection.execute(_PENDING)
        connection.execute(_KEYS)
    calm(url)
