"""Messages as JSON."""

import json
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from penstock.model.event import Delivery
from penstock.publish.api import Message
from penstock.publish.json_message import as_json_fields, as_json_line, payload_bytes
from penstock.testing.events import delivery


def test_message_has_all_fields_of_delivery():
    fields = as_json_fields(Message("somewhere", delivery()))
    assert fields.keys() == {*Delivery._fields, "topic", "payload_encoding"}


def test_json_line_has_values_of_delivery():
    event = delivery(
        headers={"a": "ä"},
        partition_key="p",
        ordering_key="o",
        priority=3,
        created_at=datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
        attempts=1,
        deliveries=2,
        max_attempts=4,
        replays=5,
        suspect=6,
        last_error="boom",
    )
    fields = json.loads(as_json_line(Message("somewhere", event)))
    assert fields["topic"] == "somewhere"
    assert fields["event_id"] == str(event.event_id)
    assert datetime.fromisoformat(fields["created_at"]) == event.created_at
    assert datetime.fromisoformat(fields["available_at"]) == event.available_at
    written_otherwise = {"event_id", "payload", "created_at", "available_at"}
    plain = {name: value for name, value in event._asdict().items() if name not in written_otherwise}
    assert {name: fields[name] for name in plain} == plain


def test_text_payload_stays_text_and_binary_is_base64():
    text = as_json_fields(Message("t", delivery(payload=b'{"a": 1}')))
    binary = as_json_fields(Message("t", delivery(payload=b"\xff\x00")))
    assert (text["payload"], text["payload_encoding"]) == ('{"a": 1}', "utf-8")
    assert (binary["payload"], binary["payload_encoding"]) == ("/wA=", "base64")


@given(st.binary(), st.dictionaries(st.text(), st.text()))
def test_payload_and_headers_survive_one_ascii_line(payload, headers):
    line = as_json_line(Message("t", delivery(payload=payload, headers=headers)))
    assert line.isascii()
    assert line.splitlines(keepends=True) == [line]
    fields = json.loads(line)
    assert payload_bytes(fields) == payload
    assert fields["headers"] == headers
