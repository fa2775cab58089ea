"""Dispatch: one outcome per event, for any answer or failure of a publisher."""

from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import PublishError
from penstock.model.lifecycle import OrderPolicy
from penstock.model.outcome import PUBLISHED, RELEASED, Dead, Published, Released, Retry
from penstock.model.retry import RetryPolicy
from penstock.publish.dispatch import MOST_EXCEPTIONS, dispatch
from penstock.publish.errors import ERROR_LIMIT, nothing_sent
from penstock.publish.topics import Routing
from penstock.testing.events import CREATED_AT, delivery

POLICY = RetryPolicy(initial_seconds=8, factor=2, jitter=0.5, max_attempts=10)
NOW = CREATED_AT + timedelta(seconds=60)


class Scripted:
    """Returns scripted outcomes by seq, PUBLISHED for other events, and records each call."""

    def __init__(self, script=None, *, in_order=False):
        self.in_order = in_order
        self.script = script or {}
        self.calls = []

    def publish(self, messages):
        self.calls.append([message.event for message in messages])
        return {message.event.seq: self.script.get(message.event.seq, PUBLISHED) for message in messages}

    def close(self):
        """Do nothing: no resource is open."""


class Raising(Scripted):
    def __init__(self, error, *, in_order=False):
        super().__init__(in_order=in_order)
        self.error = error

    def publish(self, messages):
        super().publish(messages)
        raise self.error


class RaisingForBadEvents(Scripted):
    """Raises for a call that contains one of the bad events."""

    def __init__(self, *bad, in_order=False):
        super().__init__(in_order=in_order)
        self.bad = {event.seq for event in bad}

    def publish(self, messages):
        outcomes = super().publish(messages)
        if self.bad.intersection(outcomes):
            raise ValueError("can't encode")
        return outcomes


class Answering(Scripted):
    """Returns the same answer to every call."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def publish(self, messages):
        return self.answer


def run(publisher, events, *, policy=POLICY, routing=None, roll=lambda: 0.0, **options):
    return dispatch(publisher, routing or Routing(), policy, events, now=NOW, roll=roll, **options)


def keyed(key, count, **overrides):
    return [delivery(ordering_key=key, **overrides) for _ in range(count)]


def test_unordered_events_are_published_in_one_call():
    events = [delivery() for _ in range(5)]
    publisher = Scripted()
    assert run(publisher, events) == {event.seq: PUBLISHED for event in events}
    assert publisher.calls == [events]


def test_publisher_is_not_called_without_events():
    publisher = Scripted()
    assert run(publisher, []) == {}
    assert publisher.calls == []


def test_events_have_topics_of_routing():
    topics = []

    class Listening(Scripted):
        def publish(self, messages):
            topics.extend(message.topic for message in messages)
            return super().publish(messages)

    run(Listening(), [delivery(), *keyed("a", 2)], routing=Routing("to.{queue}"))
    assert topics == ["to.outbox"] * 3


def test_retry_without_delay_uses_policy_delay():
    first, third = delivery(), delivery(attempts=2)
    publisher = Scripted({first.seq: Retry("busy"), third.seq: Retry("busy")})
    outcomes = run(publisher, [first, third], roll=iter([0.0, 0.5]).__next__)
    assert outcomes == {first.seq: Retry("busy", 8.0), third.seq: Retry("busy", 24.0)}


def test_retry_with_delay_uses_longer_of_both_delays():
    event = delivery()
    assert run(Scripted({event.seq: Retry("busy", 30.0)}), [event]) == {event.seq: Retry("busy", 30.0)}
    assert run(Scripted({event.seq: Retry("busy", 3.0)}), [event]) == {event.seq: Retry("busy", 8.0)}


def test_last_attempt_is_dead():
    event, own_limit = delivery(attempts=9), delivery(attempts=1, max_attempts=2)
    publisher = Scripted({event.seq: Retry("busy"), own_limit.seq: Retry("busy", 5.0)})
    assert run(publisher, [event, own_limit]) == {event.seq: Dead("busy"), own_limit.seq: Dead("busy")}


def test_maximum_age_counts_from_creation():
    policy = RetryPolicy(initial_seconds=8, jitter=0, max_age_seconds=67)
    old, young = delivery(), delivery(created_at=CREATED_AT + timedelta(seconds=2))
    outcomes = run(Scripted({old.seq: Retry("busy"), young.seq: Retry("busy")}), [old, young], policy=policy)
    assert isinstance(outcomes[old.seq], Dead)
    assert outcomes[young.seq] == Retry("busy", 8.0)


def test_dead_and_released_outcomes_are_kept():
    refused, untouched, fine = delivery(), delivery(), delivery()
    publisher = Scripted({refused.seq: Dead("no such topic"), untouched.seq: RELEASED, fine.seq: Published()})
    assert run(publisher, [refused, untouched, fine]) == {
        refused.seq: Dead("no such topic"),
        untouched.seq: RELEASED,
        fine.seq: PUBLISHED,
    }


@pytest.mark.parametrize("in_order", [True, False])
def test_events_beyond_max_deliveries_are_dead_unpublished(in_order):
    worn, last_chance, fresh = delivery(deliveries=6), delivery(deliveries=5), delivery(ordering_key="a")
    publisher = Scripted(in_order=in_order)
    outcomes = run(publisher, [worn, last_chance, fresh], max_deliveries=5)
    assert outcomes == {
        worn.seq: Dead("delivered 6 times; the limit is 5"),
        last_chance.seq: PUBLISHED,
        fresh.seq: PUBLISHED,
    }
    assert publisher.calls == [[last_chance, fresh]]


def test_event_dead_before_publishing_does_not_block_key():
    worn, behind = keyed("a", 2)
    outcomes = run(Scripted(), [worn._replace(deliveries=9), behind], max_deliveries=5)
    assert isinstance(outcomes[worn.seq], Dead)
    assert outcomes[behind.seq] == PUBLISHED


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (PublishError("the broker is gone"), "PublishError: the broker is gone"),
        (ZeroDivisionError("a bug"), "ZeroDivisionError: a bug"),
        (TimeoutError(), "TimeoutError"),
        (OSError("NUL \x00 and \udcff"), "OSError: NUL \ufffd and ?"),
        (OSError("at amqp://me:secret@host/"), "OSError: at amqp://me:***@host/"),
    ],
)
@pytest.mark.parametrize("in_order", [True, False])
def test_publisher_exception_is_retry_with_error_text(error, text, in_order):
    events = [delivery(), delivery(ordering_key="a")]
    assert run(Raising(error, in_order=in_order), events) == {event.seq: Retry(text, 8.0) for event in events}


@pytest.mark.parametrize("place", [0, 1, 499, 500, 998, 999])
@pytest.mark.parametrize("in_order", [True, False])
def test_event_that_raises_in_publisher_fails_alone(place, in_order):
    events = [delivery() for _ in range(1_000)]
    bad = events[place]
    publisher = RaisingForBadEvents(bad, in_order=in_order)
    outcomes = run(publisher, events)
    assert outcomes.pop(bad.seq) == Retry("ValueError: can't encode", 8.0)
    assert outcomes == {event.seq: PUBLISHED for event in events if event is not bad}
    assert len(publisher.calls) <= 21


def test_only_events_that_raise_in_publisher_fail():
    events = [delivery() for _ in range(100)]
    bad = {events[number].seq for number in (3, 4, 5, 50, 99)}
    outcomes = run(RaisingForBadEvents(*(event for event in events if event.seq in bad)), events)
    assert {seq for seq, outcome in outcomes.items() if outcome == PUBLISHED} == {e.seq for e in events} - bad
    assert all(isinstance(outcomes[seq], Retry) for seq in bad)


@pytest.mark.parametrize("order_policy", OrderPolicy)
def test_exception_releases_later_events_of_key(order_policy):
    a, b = keyed("a", 4), keyed("b", 4)
    publisher = RaisingForBadEvents(a[1], in_order=True)
    outcomes = run(publisher, [event for pair in zip(a, b, strict=True) for event in pair], order_policy=order_policy)
    assert [type(outcomes[event.seq]) for event in a] == [Published, Retry, Released, Released]
    assert [outcomes[event.seq] for event in b] == [PUBLISHED] * 4
    behind = {a[2].seq, a[3].seq}
    after = next(number for number, call in enumerate(publisher.calls) if call == [a[1]])
    assert not behind.intersection(event.seq for call in publisher.calls[after:] for event in call)


def test_destination_lost_during_bisection_is_not_called_again():
    a, rest = keyed("a", 2), [delivery() for _ in range(6)]

    class Leaving(RaisingForBadEvents):
        def publish(self, messages):
            outcomes = super().publish(messages)
            if len(self.calls) > 5:
                raise ConnectionResetError("gone")
            return outcomes

    publisher = Leaving(a[0], in_order=True)
    outcomes = run(publisher, [*a, *rest])
    assert len(publisher.calls) == 6
    assert outcomes[a[0].seq] == Retry("ValueError: can't encode", 8.0)
    assert outcomes[a[1].seq] == RELEASED
    assert [outcomes[event.seq] for event in rest[:2]] == [PUBLISHED] * 2
    assert [outcomes[event.seq] for event in rest[2:]] == [Retry("ConnectionResetError: gone", 8.0)] * 4


@pytest.mark.parametrize("error", [ConnectionRefusedError(), TimeoutError(), PublishError("the broker is gone")])
def test_batch_for_unreachable_destination_is_sent_once(error):
    publisher = Raising(error, in_order=True)
    a = keyed("a", 2)
    outcomes = run(publisher, [delivery(), *a])
    assert len(publisher.calls) == 1
    assert outcomes[a[1].seq] == RELEASED


def test_calls_are_limited_when_every_event_raises():
    events = [delivery() for _ in range(1_000)]
    publisher = Raising(ValueError("a bug"))
    outcomes = run(publisher, events)
    assert len(publisher.calls) == MOST_EXCEPTIONS
    assert list(outcomes.values()) == [Retry("ValueError: a bug", 8.0)] * 1_000


def test_long_errors_are_shortened():
    raised, given_back, deadly = delivery(), delivery(), delivery()
    long = "x" * 5_000
    outcomes = run(Raising(OSError(long)), [raised])
    outcomes |= run(Scripted({given_back.seq: Retry(long), deadly.seq: Dead(long)}), [given_back, deadly])
    assert [len(outcomes[event.seq].error) for event in (raised, given_back, deadly)] == [ERROR_LIMIT] * 3


def test_error_objects_are_converted_to_text():
    busy, refused = delivery(), delivery()
    publisher = Scripted({busy.seq: Retry(OSError("busy")), refused.seq: Dead(404)})
    assert run(publisher, [busy, refused]) == {busy.seq: Retry("busy", 8.0), refused.seq: Dead("404")}


def test_keyboard_interrupt_propagates():
    with pytest.raises(KeyboardInterrupt):
        run(Raising(KeyboardInterrupt()), [delivery()])


@pytest.mark.parametrize("keys", [(None, None), ("a", "b")])
def test_event_without_outcome_is_retried(keys):
    answered, forgotten = (delivery(ordering_key=key) for key in keys)
    outcomes = run(Answering({answered.seq: PUBLISHED}), [answered, forgotten])
    assert outcomes == {answered.seq: PUBLISHED, forgotten.seq: Retry("Answering returned no outcome", 8.0)}


def test_outcome_of_unknown_event_is_ignored():
    ours, stranger = delivery(), delivery()
    assert run(Answering({stranger.seq: PUBLISHED}), [ours]) == {ours.seq: Retry("Answering returned no outcome", 8.0)}
    assert run(Answering({ours.seq: PUBLISHED, stranger.seq: Dead("no")}), [ours]) == {ours.seq: PUBLISHED}


@pytest.mark.parametrize("answer", [None, 7, [1, 2], {}])
def test_invalid_result_of_publisher_is_retry(answer):
    event = delivery()
    assert isinstance(run(Answering(answer), [event])[event.seq], Retry)


def test_invalid_outcome_of_event_is_retry():
    event = delivery()
    assert run(Answering({event.seq: True}), [event]) == {event.seq: Retry("Answering returned no outcome", 8.0)}


def test_calls_have_one_event_per_key_unordered_first():
    a, b, loose = keyed("a", 3), keyed("b", 2), [delivery(), delivery()]
    publisher = Scripted()
    run(publisher, [a[0], loose[0], b[0], a[1], b[1], loose[1], a[2]])
    assert publisher.calls == [[*loose, a[0], b[0]], [a[1], b[1]], [a[2]]]


def test_publisher_in_order_gets_whole_batch():
    events = keyed("a", 3)
    publisher = Scripted(in_order=True)
    run(publisher, events)
    assert publisher.calls == [events]


def test_failure_releases_later_events_of_key():
    a, b = keyed("a", 4), keyed("b", 3)
    outcomes = run(Scripted({a[1].seq: Retry("busy")}), [*a, *b])
    assert [outcomes[event.seq] for event in a] == [PUBLISHED, Retry("busy", 8.0), RELEASED, RELEASED]
    assert [outcomes[event.seq] for event in b] == [PUBLISHED] * 3


def test_skip_policy_publishes_later_events_of_failed_key():
    a = keyed("a", 4)
    outcomes = run(Scripted({a[1].seq: Retry("busy")}), a, order_policy=OrderPolicy.SKIP)
    assert [outcomes[event.seq] for event in a] == [PUBLISHED, Retry("busy", 8.0), PUBLISHED, PUBLISHED]


def test_dead_event_unblocks_its_key():
    refused, exhausted, last = (
        delivery(ordering_key="a"),
        delivery(ordering_key="a", attempts=9),
        delivery(ordering_key="a"),
    )
    publisher = Scripted({refused.seq: Dead("no"), exhausted.seq: Retry("busy")})
    assert run(publisher, [refused, exhausted, last]) == {
        refused.seq: Dead("no"),
        exhausted.seq: Dead("busy"),
        last.seq: PUBLISHED,
    }


@pytest.mark.parametrize("order_policy", OrderPolicy)
def test_release_also_releases_later_events_of_key(order_policy):
    events = keyed("a", 3)
    outcomes = run(Scripted({events[0].seq: RELEASED}), events, order_policy=order_policy)
    assert set(outcomes.values()) == {RELEASED}


def test_same_key_in_two_queues_is_ordered_separately():
    here, there = keyed("a", 2), keyed("a", 2, queue="other")
    outcomes = run(Scripted({here[0].seq: Retry("busy")}), [*here, *there])
    assert outcomes[here[1].seq] == RELEASED
    assert outcomes[there[1].seq] == PUBLISHED


@pytest.mark.parametrize("policy", [POLICY, RetryPolicy.none()])
def test_unreachable_destination_gets_few_calls_for_long_key(policy):
    events = keyed("a", 1_000)
    publisher = Raising(TimeoutError())
    outcomes = run(publisher, events, policy=policy, order_policy=OrderPolicy.SKIP)
    assert len(publisher.calls) == 2
    assert Counter(type(outcome) for outcome in outcomes.values())[Released] == 998


def test_successive_dead_events_do_not_stop_dispatch():
    events = keyed("a", 20)
    outcomes = run(Scripted({event.seq: Dead("no") for event in events}), events)
    assert set(outcomes.values()) == {Dead("no")}


def test_unsent_batch_retries_only_first_event_of_each_key():
    loose, a = [delivery(), delivery()], keyed("a", 2)
    outcomes = nothing_sent(Routing().route([loose[0], a[0], loose[1], a[1]]), "disk full")
    assert [outcomes[event.seq] for event in (*loose, *a)] == [*[Retry("disk full")] * 3, RELEASED]


ANSWERS = st.sampled_from([PUBLISHED, PUBLISHED, PUBLISHED, Retry("busy"), Dead("no"), None])


@given(
    st.lists(st.tuples(st.sampled_from([None, None, "a", "b", "c"]), ANSWERS), max_size=30),
    st.sampled_from(OrderPolicy),
)
def test_every_event_has_outcome_and_keys_keep_order(batch, order_policy):
    events = [delivery(ordering_key=key) for key, _ in batch]
    publisher = Scripted({event.seq: answer for event, (_, answer) in zip(events, batch, strict=True)})
    outcomes = run(publisher, events, order_policy=order_policy)

    assert outcomes.keys() == {event.seq for event in events}
    handed = [event for call in publisher.calls for event in call]
    released = {seq for seq, outcome in outcomes.items() if outcome == RELEASED}
    assert sorted(event.seq for event in handed) == sorted(outcomes.keys() - released), "handed over once, or released"
    for call in publisher.calls:
        assert max(Counter(e.ordering_key for e in call if e.ordering_key).values(), default=1) == 1
    for key in "abc":
        of_key = [event.seq for event in events if event.ordering_key == key]
        assert [event.seq for event in handed if event.ordering_key == key] == of_key[
            : _dispatched_count(of_key, released)
        ]
        if order_policy is OrderPolicy.BLOCK:
            retried = [isinstance(outcomes[seq], Retry) for seq in of_key]
            assert True not in retried or released.issuperset(of_key[retried.index(True) + 1 :])


def _dispatched_count(of_key, released):
    return len([seq for seq in of_key if seq not in released])
