"""Dispatch: send claimed events to a publisher and determine one outcome per event.

Ordering keys, retry policies and failing publishers are handled in this module, once for all publishers. Settling the
outcomes is left to the store.
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

# Exceptions that concern the destination, independent of the events in the call.
UNREACHABLE = (PublishError, ConnectionError, TimeoutError)
# After this many consecutive exceptions, calls with a single event included, the publisher is assumed to raise for
# every event.
MOST_EXCEPTIONS = 32
# The outcomes that block the later events of an ordering key. A dead event does not block its key.
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
    """Send the events and return their outcomes by seq. `roll` returns a number in [0, 1) for the jitter of each retry.

    Exceptions of the publisher become outcomes and are never raised. If the publisher is not `in_order`, events with
    ordering keys are sent in several waves; between waves, the remaining events are released once `stopped` returns
    True. If the publisher is `in_order`, events that the publisher released after a failure stay released under either
    order policy, until the next claim.
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
    """The arguments of one `dispatch` call, except the events."""

    publisher: Publisher
    routing: Routing
    policy: RetryPolicy
    now: datetime
    roll: Callable[[], float]

    def publish(self, events: Sequence[Delivery]) -> dict[int, Outcome]:
        """Send the events in one call; after an exception, split the batch and send the halves.

        An event that makes the publisher raise thus fails alone. A half may repeat events that an earlier call already
        sent.
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
            except Exception as error:  # any exception becomes outcomes, so that the relay keeps running
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
        """Apply the retry policy to the publisher's outcomes. Skip the loop in the usual case: all published."""
        if _all_published(events, outcomes):
            return outcomes
        return {event.seq: self._resolve(event, outcomes.get(event.seq)) for event in events}

    def _resolve(self, event: Delivery, outcome: object) -> Outcome:
        """Return a valid outcome: a publisher is foreign code and may return no outcome or an object of the wrong
        type."""
        match outcome:
            case Published() | Released():
                return outcome
            case Dead(error=error):
                return Dead(presentable(error))
            case Retry(error=error, delay_seconds=asked):
                return self._retry(event, presentable(error), asked)
            case _:
                return self._retry(event, f"{type(self.publisher).__name__} returned no outcome", None)

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
    """Release the events of the batch that follow a failed event of their ordering key. Return the others."""
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
    """Return dead outcomes for events delivered too often, and the remaining events."""
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
    """Send one event of each ordering key per wave, so that a failure blocks the later events of the key.

    After two consecutive waves in which every event is to be retried, assume that the destination is down and release
    the remaining events without counting an attempt. Otherwise each of a thousand waves could wait for a time-out.
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
    """Return the events of each ordering key, in order."""
    queues: dict[tuple[str, str], list[Delivery]] = {}
    for event in events:
        if event.ordering_key is not None:
            queues.setdefault((event.queue, event.ordering_key), []).append(event)
    return list(queues.values())
