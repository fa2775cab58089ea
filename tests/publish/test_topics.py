"""Topics of events, from a template in the URL."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import UsageError
from penstock.publish.topics import FIELDS, Routing
from penstock.testing.events import delivery


def topics(routing: Routing, *events):
    return [message.topic for message in routing.route(events)]


def test_default_topic_is_event_type():
    assert topics(Routing(), delivery(event_type="orders.paid"), delivery(event_type="users")) == [
        "orders.paid",
        "users",
    ]


def test_template_without_fields_is_one_topic():
    assert topics(Routing("everything"), delivery(), delivery(event_type="users")) == ["everything", "everything"]


def test_doubled_braces_are_literal():
    assert topics(Routing("{{all}}"), delivery()) == ["{all}"]


def test_template_inserts_fields_of_event():
    routing = Routing("{queue}/{event_type}/{partition_key}/{ordering_key}")
    event = delivery(queue="mail", event_type="sent", partition_key="p", ordering_key="o")
    assert topics(routing, event, delivery(event_type="orders.paid", partition_key="q")) == [
        "mail/sent/p/o",
        "outbox/orders.paid/q/",
    ]


def test_empty_topic_falls_back_to_event_type():
    assert topics(Routing("{partition_key}"), delivery(), delivery(partition_key="p")) == ["orders.created", "p"]


def test_braces_in_field_values_are_not_expanded():
    assert topics(Routing("to.{event_type}"), delivery(event_type="{queue}")) == ["to.{queue}"]


def test_first_matching_pattern_wins_over_template():
    routing = Routing("rest.{event_type}", {"orders.paid": "money", "orders.*": "{event_type}.v1", "*.paid": "never"})
    events = [
        delivery(event_type=name) for name in ("orders.paid", "orders.created", "users.paid", "users", "Orders.x")
    ]
    assert topics(routing, *events) == ["money", "orders.created.v1", "never", "rest.users", "rest.Orders.x"]


@given(st.lists(st.sampled_from(["a", "b.c", "b.d"])), st.sampled_from(["{event_type}", "x", "x.{event_type}"]))
def test_routing_keeps_every_event_in_order(types, template):
    events = [delivery(event_type=event_type) for event_type in types]
    for routing in (Routing(template), Routing(template, {"b.*": "b"})):
        assert [message.event for message in routing.route(events)] == events


@pytest.mark.parametrize(
    "template",
    [
        "{",
        "a}b",
        "{}",
        "{0}",
        "{unknown}",
        "{payload}",
        "{event_type.__class__}",
        "{queue[0]}",
        "{queue!r}",
        "{queue:>9}",
        "",
    ],
)
def test_invalid_template_is_refused(template):
    with pytest.raises(UsageError, match="template"):
        Routing(template)
    with pytest.raises(UsageError, match="template"):
        Routing(patterns={"orders.*": template})


def test_template_error_lists_available_fields():
    with pytest.raises(UsageError) as refusal:
        Routing("{tenant}")
    assert all(f"{{{name}}}" in str(refusal.value) for name in ("tenant", *FIELDS))


def test_routing_can_be_pickled():
    routing = Routing("{queue}", {"a*": "b"})
    assert pickle.loads(pickle.dumps(routing)) == routing
