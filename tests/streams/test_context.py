"""State of a key, and payloads: JSON values are kept unchanged; other values fail only their own event."""

import json
from typing import Any

import pytest

from penstock.model.errors import UsageError
from penstock.streams.context import KeyState
from penstock.streams.event import StreamEvent, decode_json


@pytest.mark.parametrize(
    "data",
    [
        b'{"amount": 1}',
        b' {"amount": 1}\n',
        b'\xef\xbb\xbf{"amount": 1}',
        '{"name": "Žofie 🚰"}'.encode("utf-16"),
        "7".encode("utf-16-le"),
        '{"name": "Žofie 🚰"}'.encode("utf-32"),
        b'"\\ud800"',
        '"\ud800"'.encode(errors="surrogatepass"),
        b"[1, 2.5, null, NaN]",
        b"12",
    ],
)
def test_payload_is_decoded_like_json_loads(data: bytes) -> None:
    assert repr(decode_json(data)) == repr(json.loads(data))
    assert repr(StreamEvent("id", "key", data).json()) == repr(json.loads(data))


@pytest.mark.parametrize("data", [b"", b"{", b"1 2", b"\xff\xfe\xff", b"{'a': 1}", b'{"a": 1}}'])
def test_invalid_json_fails_like_json_loads(data: bytes) -> None:
    with pytest.raises(ValueError) as expected:  # noqa: PT011
        json.loads(data)
    with pytest.raises(type(expected.value)):
        decode_json(data)


@pytest.mark.parametrize("value", [1, -1, 2**63, "text", "\ud800", True, None, 1.5, [1, {"a": "\udfff"}], {"a": [1]}])
def test_json_values_are_kept_unchanged(value: Any) -> None:
    state = KeyState()
    state["value"] = value
    state.check()
    state.settle()
    assert KeyState(state.saved(None))["value"] == value


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), pytest.param(10**5_000, id="many digits"), b"bytes", {1, 2}, object(), [object()]],
)
def test_non_json_values_are_refused_before_writing(value: Any) -> None:
    state = KeyState()
    state["kept"] = 1
    state.check()
    state.settle()
    state["value"] = value
    with pytest.raises(UsageError, match="value"):
        state.check()
    state.undo()
    assert dict(state) == {"kept": 1}


def test_get_sees_changes_of_current_event() -> None:
    state = KeyState()
    assert state.get("sum", 0) == 0
    state["sum"] = 1
    assert (state.get("sum"), state["sum"]) == (1, 1)
    state.settle()
    state.delete("sum")
    assert state.get("sum", "none") == "none"
    assert "sum" not in state
    state.undo()
    assert state.get("sum") == 1


def test_changes_to_list_values_can_be_undone() -> None:
    state = KeyState()
    state["seen"] = [1]
    state.settle()
    state.get("seen", []).append(2)
    assert state["seen"] == [1, 2]
    state.undo()
    assert state["seen"] == [1]
