"""Throughput of the relay to each broker, compared with a plain loop of the same client library on the same server.

The plain loop reads the messages from memory and sends the same data as the relay, including headers and keys. It waits
for the acknowledgement of each message, but uses no database and no lease, and survives no crash.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from statistics import median
from typing import NamedTuple

from benchmarks import producers
from benchmarks.ground import Ground, rate
from benchmarks.plan import Figure, Measured, Plan, Target, at_least
from penstock.model.errors import MissingDriver
from penstock.pipeline import open_session
from penstock.pipeline.relay.driver import run_relay
from penstock.pipeline.relay.spec import RelayOptions
from tests.support.servers import KafkaServer, NatsServer, RabbitServer, ValkeyServer

TOPIC = "bench"
_SETTLED = "SELECT settled_at AS at FROM penstock_archive"


Broker = KafkaServer | NatsServer | RabbitServer | ValkeyServer


class Contest(NamedTuple):
    """A broker, its preparation for a run, and the loop to compare the relay with."""

    name: str
    server: Callable[[], Broker]
    prepare: Callable[[str], None]
    loop: Callable[[str, int], float]
    target: Target | None = at_least(0.5)
    most: int | None = None
    """Maximum number of events: half a million would take too long on a slow broker."""


# Each broker flushes to disk as in its default configuration.
CONTESTS = (
    Contest("Kafka", partial(KafkaServer, fsync=False), producers.make_topic, producers.kafka),
    Contest("NATS", partial(NatsServer, fsync=False), producers.make_stream, producers.nats),
    Contest(
        "Valkey",
        partial(ValkeyServer, settings={"appendfsync": "everysec"}),
        producers.flush_valkey,
        producers.valkey,
    ),
    Contest("RabbitMQ", RabbitServer, producers.make_queue, producers.rabbitmq, target=None, most=30_000),
)


def measure(ground: Ground, plan: Plan) -> Measured:
    open_session(f"local[{plan.tasks}]")
    figures: list[Figure] = []
    rounds: dict[str, dict[str, list[float]]] = {}
    for contest in CONTESTS:
        with _running(contest, ground) as url:
            if url is not None:
                relay, loop = _compare(contest, url, ground, plan)
                rounds[contest.name] = {"relay": relay, "loop": loop}
                ratio = median(one / other for one, other in zip(relay, loop, strict=True))
                figures += [
                    Figure(f"relay to {contest.name}", median(relay), "events/s"),
                    Figure(f"plain loop to {contest.name}", median(loop), "events/s"),
                    Figure(f"relay / loop, {contest.name}", ratio, "times", contest.target),
                ]
    return Measured(tuple(figures), {"rounds": rounds})


@contextmanager
def _running(contest: Contest, ground: Ground) -> Iterator[str | None]:
    server = contest.server()
    try:
        server.start()
    except MissingDriver as missing:
        ground.note(f"{contest.name} is left out: {missing}")
        yield None
        return
    with server:
        yield server.url()


def _compare(contest: Contest, url: str, ground: Ground, plan: Plan) -> tuple[list[float], list[float]]:
    relay, loop = [], []
    events = min(plan.events, contest.most or plan.events)
    plan = replace(plan, events=events, warm_up=min(plan.warm_up, events // 10))
    for number in range(1, plan.rounds + 1):
        ground.note(f"{contest.name}, round {number} of {plan.rounds}: relay, plain loop")
        contest.prepare(url)
        relay.append(_relay(url, ground, plan))
        contest.prepare(url)
        loop.append(contest.loop(url, plan.events))
        ground.note(f"  {relay[-1]:,.0f} and {loop[-1]:,.0f} a second")
    return relay, loop


def _relay(url: str, ground: Ground, plan: Plan) -> float:
    with ground.outbox(plan.warm_up + plan.events) as store:
        options = RelayOptions(
            store=store,
            destination=url,
            topic=TOPIC,
            master=f"local[{plan.tasks}]",
            parallelism=plan.tasks,
            batch=plan.batch,
            once=True,
        )
        run_relay(options)
        return rate(store, _SETTLED, plan.warm_up)
