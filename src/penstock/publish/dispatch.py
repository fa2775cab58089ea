"""Dispatch: hand claimed events to a publisher, and turn whatever comes of it into one outcome for each.

Ordering keys, retry policies and failing publishers are dealt with here, once, so that a publisher only sends. What
becomes of the outcomes is the store's to say.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter

from penstock.model.errors import PublishError
from penstock.model.event import Delivery
from penstock.model.lifecycle import OrderPolicy, overdelivered
from penstock.model.outcome import PUBLISHED, RELEASED, Dead, Outcome, Published, Released, Retry
from penstock.model.retry import RetryPolicy
from penstock.publish.api import Outcomes, Publisher
from penstock.publish.errors import error_text, nothing_sent, presentable
from penstock.publish.topics import Routing

# Exceptions that concern the destination, whichever events it was given.
UNREACHABLE = (PublishError, ConnectionError, TimeoutError)
# After this many exceptions in a row, single events included, the publisher is taken to raise for any event.
MOST_EXCEPTIONS = 32
# The outcomes that hold up the later events of an ordering key. A death unblocks it.
BLOCKING = {OrderPolicy.BLOCK: (Retry, Released), OrderPolicy.SKIP: (Released,)}

_seq = attrgetter("seq")
_deliveries = attrgetter("deliveries")
_ordering_key = attrgetter("ordering_key")


def dispatch(
    publisher: Publisher,
    routing: Routing,
    policy: RetryPolicy,
    events: Sequence[Delivery],
    *,
    now: datetime,
    roll: Callable[[], float],
    max_deliveries: int | None = None,
    order_policy: OrderPolicy = OrderPolicy.BLOCK,
    stopped: Callable[[], bool] = lambda: False,
) -> dict[int, Outcome]:
    """Every event's outcome, by seq. `roll` gives a number in [0, 1) for each retry's jitter; once `stopped` says so,
    what has not been handed over is released.

    No failure of the publisher comes out of here as an exception. Where the publisher keeps order itself, what it
    released after a failure stays released under either order policy, and the next claim brings it again.
    """
    attempt = _Attempt(publisher, routing, policy, now, roll)
    outcomes, events = _reject_overdelivered(events, max_deliveries)
    if publisher.in_order or not any(map(_ordering_key, events)):
        sent = attempt.resolve(events, attempt.publish(events))
    else:
        sent = _in_waves(attempt, order_policy, events, stopped)
    return outcomes | sent if outcomes else sent


@dataclass(frozen=True, slots=True)
class _Attempt:
    """What one call of `dispatch` was given, but the events."""

    publisher: Publisher
    routing: Routing
    policy: RetryPolicy
    now: datetime
    roll: Callable[[], float]

    def publish(self, events: Sequence[Delivery]) -> dict[int, Outcome]:
        """Hand events over in one call. After an exception, hand them over again in halves.

        So an event that makes the publisher raise fails alone. Halves may send again what the first call had sent.
        """
        outcomes: dict[int, Outcome] = {}
        waiting = [events] if events else []
        exceptions = 0
        while waiting:
            batch = waiting.pop()
            if outcomes:
                batch = _release_blocked(batch, events, outcomes)
            try:
                outcomes |= self._hand_over(batch)
                exceptions = 0
            except Exception as error:  # whatever a destination throws, its events are settled and the relay lives on
                exceptions += 1
                if isinstance(error, UNREACHABLE) or exceptions == MOST_EXCEPTIONS:
                    rest = _release_blocked(
                        [event for part in (batch, *reversed(waiting)) for event in part], events, outcomes
                    )
                    return outcomes | nothing_sent(self.routing.route(rest), error_text(error))
                if len(batch) == 1:
                    outcomes[batch[0].seq] = Retry(error_text(error))
                else:
                    middle = len(batch) // 2
                    waiting += [batch[middle:], batch[:middle]]
        return outcomes

    def _hand_over(self, events: Sequence[Delivery]) -> Outcomes:
        if not events:
            return {}
        given = self.publisher.publish(self.routing.route(events))
        return given if isinstance(given, Mapping) else {}

    def resolve(self, events: Sequence[Delivery], outcomes: dict[int, Outcome]) -> dict[int, Outcome]:
        """The publisher's outcomes as the store gets them. All published, the usual case, costs no loop."""
        if _all_published(events, outcomes):
            return outcomes
        return {event.seq: self._resolve(event, outcomes.get(event.seq)) for event in events}

    def _resolve(self, event: Delivery, outcome: object) -> Outcome:
        """A publisher is foreign code: it may give no outcome, or nonsense."""
        match outcome:
            case Published() | Released():
                return outcome
            case Dead(error=error):
                return Dead(presentable(error))
            case Retry(error=error, delay_seconds=asked):
                return self._retry(event, presentable(error), asked)
            case _:
                return self._retry(event, f"{type(self.publisher).__name__} gave no outcome", None)

    def _retry(self, event: Delivery, error: str, asked_delay: float | None) -> Retry | Dead:
        return self.policy.decide(
            error,
            attempts=event.attempts,
            age_seconds=(self.now - event.created_at).total_seconds(),
            roll=self.roll(),
            event_max_attempts=event.max_attempts,
            asked_delay=asked_delay,
        )


def _release_blocked(
    batch: Sequence[Delivery], events: Sequence[Delivery], outcomes: dict[int, Outcome]
) -> Sequence[Delivery]:
    """Release the events of a batch that stand behind a failed event of their ordering key. Return the others."""
    failed = {seq for seq, outcome in outcomes.items() if not isinstance(outcome, Published | Dead)}
    blocked = {
        (event.queue, event.ordering_key) for event in events if event.seq in failed and event.ordering_key is not None
    }
    behind = [event.seq for event in batch if (event.queue, event.ordering_key) in blocked]
    outcomes |= dict.fromkeys(behind, RELEASED)
    return [event for event in batch if event.seq not in outcomes] if behind else batch


def _all_published(events: Sequence[Delivery], outcomes: dict[int, Outcome]) -> bool:
    return (
        len(outcomes) == len(events)
        and list(outcomes.values()).count(PUBLISHED) == len(events)
        and all(map(outcomes.__contains__, map(_seq, events)))
    )


def _reject_overdelivered(
    events: Sequence[Delivery], max_deliveries: int | None
) -> tuple[dict[int, Outcome], Sequence[Delivery]]:
    """The deaths of those handed out too often, and the others."""
    if not overdelivered(max(map(_deliveries, events), default=0), max_deliveries):
        return {}, events
    deaths: dict[int, Outcome] = {}
    others = []
    for event in events:
        if overdelivered(event.deliveries, max_deliveries):
            deaths[event.seq] = Dead(f"delivered {event.deliveries} times; the limit is {max_deliveries}")
        else:
            others.append(event)
    return deaths, others


def _in_waves(
    attempt: _Attempt, order_policy: OrderPolicy, events: Sequence[Delivery], stopped: Callable[[], bool]
) -> dict[int, Outcome]:
    """Hand over one event of each ordering key at a time, so that a failure stops those behind it.

    After two waves in a row with nothing but retries, the destination is down, not the events bad: what is left goes
    back uncounted, or each of a thousand waves would wait for a timeout of its own.
    """
    wave = [event for event in events if event.ordering_key is None]
    queues = _key_queues(events)
    outcomes: dict[int, Outcome] = {event.seq: RELEASED for event in events}
    blocking = BLOCKING[order_policy]
    place = failed_waves = 0
    while queues and failed_waves < 2 and not (place and stopped()):
        wave += [queue[place] for queue in queues]
        given = attempt.publish(wave)
        failed_waves = failed_waves + 1 if all(isinstance(outcome, Retry) for outcome in given.values()) else 0
        sent = attempt.resolve(wave, given)
        outcomes |= sent
        queues = [
            queue for queue in queues if not isinstance(sent[queue[place].seq], blocking) and len(queue) > place + 1
        ]
        wave = []
        place += 1
    return outcomes


def _key_queues(events: Sequence[Delivery]) -> list[list[Delivery]]:
    """The events of each ordering key, in order."""
    queues: dict[tuple[str, str], list[Delivery]] = {}
    for event in events:
        if event.ordering_key is not None:
            queues.setdefault((event.queue, event.ordering_key), []).append(event)
    return list(queues.values())
