"""Encoding of events as CloudEvents, decoded by hand according to the specification."""

import base64
import json
import re
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.publish.api import Message
from penstock.publish.http.cloudevents import binary, escaped, structured
from penstock.testing.events import delivery

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
NAMES = TEXT | st.sampled_from(["content-type", "Content-Type", "ce-id", "Host", "x-a", "X-A", "x_a", "traceparent"])


def document(**fields: Any) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(structured(Message("topic", delivery(**fields))).body)
    return parsed


@given(st.dictionaries(NAMES, TEXT), TEXT.filter(bool), st.binary())
def test_binary_mode_encodes_all_fields_in_valid_headers(headers: dict[str, str], key: str, payload: bytes) -> None:
    event = delivery(headers=headers, partition_key=key, payload=payload, event_type=key, queue=key)
    sent, body = binary(Message("topic", event))
    assert body == payload
    for name, value in sent:
        assert re.fullmatch("[A-Za-z0-9-]+", name)
        assert re.fullmatch(r"([!-~]([\t -~]*[!-~])?)?", value)
    lower = [name.lower() for name, _ in sent]
    assert len(lower) == len(set(lower)), "no receiver could tell two of a name apart"
    attributes = {name[3:]: unquote(value) for name, value in sent if name.startswith("ce-")}
    plain = {name: value for name, value in sent if not name.startswith("ce-")}
    assert plain | json.loads(attributes.get("headers", "{}")) == headers
    assert attributes["partitionkey"] == attributes["type"] == attributes["queue"] == key


@given(st.dictionaries(NAMES, TEXT), TEXT.filter(bool), st.binary() | TEXT.map(str.encode))
def test_structured_mode_encodes_all_fields_in_one_document(headers: dict[str, str], key: str, payload: bytes) -> None:
    parsed = document(headers=headers, ordering_key=key, payload=payload)
    assert json.loads(parsed.get("headers", "{}")) == headers
    assert parsed["orderingkey"] == key
    assert all(re.fullmatch("[a-z0-9]+|data_base64", name) for name in parsed)
    if "data_base64" in parsed:
        assert base64.b64decode(parsed["data_base64"]) == payload
        assert "data" not in parsed


@pytest.mark.parametrize(
    ("content_type", "payload", "data"),
    [
        ("application/json", b'{"a": [1, null]}', {"a": [1, None]}),
        ("Application/JSON; charset=utf-8", '"Füße"'.encode(), "Füße"),
        ("application/vnd.shop+json", b"null", None),
        ("text/plain", b'"quoted"\n', '"quoted"\n'),
        ("text/plain; charset=UTF-8", "水".encode(), "水"),
    ],
)
def test_structured_mode_embeds_json_and_text(content_type: str, payload: bytes, data: object) -> None:
    parsed = document(headers={"Content-Type": content_type}, payload=payload)
    assert parsed["data"] == data
    assert parsed["datacontenttype"] == content_type
    assert "data_base64" not in parsed


@pytest.mark.parametrize(
    ("content_type", "payload"),
    [
        (None, b'{"a": 1}'),
        ("application/json", b""),
        ("application/json", b"{'a': 1}"),
        ("application/json", b'{"a": NaN}'),
        ("application/json", b"\xef\xbb\xbf{}"),
        ("application/json", b"[" * 100_000),
        ("application/json", b"9" * 10_000),
        ("application/json", b'"\xff"'),
        ("text/plain", "水".encode()),
        ("text/plain; charset=latin-1", b"\xfc"),
        ("text/plain; charset=utf-8", b"\xfc"),
        ("application/avro", b"\x00\x01"),
    ],
)
def test_structured_mode_encodes_other_payloads_in_base64(content_type: str | None, payload: bytes) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    parsed = document(headers=headers, payload=payload)
    assert base64.b64decode(parsed["data_base64"]) == payload
    assert "data" not in parsed


def test_numbers_of_json_payload_keep_their_digits() -> None:
    body = structured(
        Message("t", delivery(headers={"content-type": "application/json"}, payload=b"[1.10, 1e400]"))
    ).body
    assert b'"data":[1.10, 1e400]}' in body


def test_invalid_content_type_is_only_header() -> None:
    parsed = document(headers={"content-type": "水"})
    assert "datacontenttype" not in parsed
    assert json.loads(parsed["headers"]) == {"content-type": "水"}


def test_trace_headers_become_attributes() -> None:
    parsed = document(headers={"traceparent": "00-ab-cd-01", "tracestate": ""})
    assert parsed["traceparent"] == "00-ab-cd-01"
    assert "tracestate" not in parsed


def test_source_is_queue_unless_configured() -> None:
    message = Message("topic", delivery(queue="a b/c"))
    assert dict(binary(message).headers)["ce-source"] == "/penstock/a%2520b%252Fc"
    assert json.loads(structured(message).body)["source"] == "/penstock/a%20b%2Fc"
    assert dict(binary(message, "https://shop").headers)["ce-source"] == "https://shop"


def test_values_are_escaped_as_specified() -> None:
    assert escaped("Euro € 😀") == "Euro%20%E2%82%AC%20%F0%9F%98%80"
    assert escaped('"100%"') == "%22100%25%22"
    plain = "".join(map(chr, range(0x21, 0x7F))).replace('"', "").replace("%", "")
    assert escaped(plain) == plain
    assert escaped(plain + " ") == plain + "%20"
