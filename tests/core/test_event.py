"""Events: validation, encoding of payloads, decoding of deliveries."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import InvalidEvent
from penstock.model.event import MILLENNIUM, Event, encode_payload
from penstock.testing.events import delivery

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


@given(st.binary())
def test_bytes_payload_is_unchanged(payload: bytes) -> None:
    assert encode_payload(payload) == (payload, {})
    assert encode_payload(memoryview(payload))[0] == payload


@given(st.text())
def test_text_payload_is_encoded_as_utf_8(payload: str) -> None:
    assert encode_payload(payload) == (payload.encode(), {"content-type": "text/plain; charset=utf-8"})


@given(json_values.filter(lambda value: not isinstance(value, str)))
def test_other_payloads_are_encoded_as_json(payload: Any) -> None:
    body, headers = encode_payload(payload)
    assert json.loads(body) == payload
    assert headers == {"content-type": "application/json"}


def test_explicit_content_type_is_kept() -> None:
    assert encode_payload({}, {"Content-Type": "application/x"})[1] == {"Content-Type": "application/x"}
    assert encode_payload({}, {"trace": "1"})[1] == {"trace": "1", "content-type": "application/json"}


@pytest.mark.parametrize("payload", [object(), {1, 2}, float("nan"), "\ud800"])
def test_unencodable_payload_is_refused(payload: object) -> None:
    with pytest.raises(InvalidEvent):
        encode_payload(payload)


@pytest.mark.parametrize(
    "wrong",
    [
        {"event_type": ""},
        {"event_type": "x" * 256},
        {"event_type": "a\x00b"},
        {"event_type": 7},
        {"queue": ""},
        {"ordering_key": ""},
        {"payload": "text"},
        {"headers": {"a": 1}},
        {"headers": {"a": "\x00"}},
        {"headers": {"a": "\ud800"}},
        {"headers": {"\ud800": "a"}},
        {"event_type": "\ud800"},
        {"partition_key": "a" * 255 + "é"},
        {"dedupe_key": "\udfff"},
        {"priority": 101},
        {"priority": -101},
        {"max_attempts": 0},
        {"max_attempts": 2**31},
        {"dedupe_seconds": 0},
        {"dedupe_seconds": float("inf")},
        {"dedupe_seconds": float("nan")},
        {"delay_seconds": -1},
        {"delay_seconds": float("inf")},
        {"delay_seconds": float("nan")},
        {"delay_seconds": 1e12},
        {"available_at": datetime(2026, 1, 1)},
        {"available_at": datetime(2026, 1, 1, tzinfo=UTC), "delay_seconds": 1},
    ],
)
def test_invalid_field_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidEvent):
        Event(**{"event_type": "order.placed", **wrong})


def test_fields_at_bounds_are_accepted() -> None:
    event = Event(
        event_type="é" * 255,
        priority=-100,
        max_attempts=2**31 - 1,
        delay_seconds=0,
        dedupe_seconds=0.001,
        headers={"": ""},
    )
    assert (event.priority, event.max_attempts) == (-100, 2**31 - 1)


def test_delivery_decodes_raw_store_values() -> None:
    event_id = uuid4()
    moment = MILLENNIUM + timedelta(days=9_000, microseconds=7)
    micros = (moment - MILLENNIUM) // timedelta(microseconds=1)
    raw = delivery(event_id=event_id.bytes, headers=None, created_at=micros, available_at=micros)
    plain = delivery(event_id=event_id, headers={}, created_at=moment, available_at=moment)
    assert raw.event_id == plain.event_id == event_id
    assert raw.created_at == raw.available_at == plain.created_at == moment
    assert raw.headers == {}
    assert raw._asdict()["event_id"] == event_id


def test_delivery_decodes_payload_as_json_and_text() -> None:
    assert delivery(payload=b'{"a": [1]}').json() == {"a": [1]}
    assert delivery(payload="grün".encode()).text() == "grün"
