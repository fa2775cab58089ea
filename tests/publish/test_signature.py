"""Signatures of webhooks."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import InvalidSignature, UsageError
from penstock.publish.http.signature import parse_secrets, sign, verify

NOW = 1_700_000_000
SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef01234567").decode()


def signed(secret: str = SECRET, event_id: str = "e1", body: bytes = b"{}", moment: int = NOW) -> dict[str, str]:
    return {
        "Webhook-Id": event_id,
        "Webhook-Timestamp": str(moment),
        "Webhook-Signature": sign(parse_secrets(secret), event_id, moment, body),
    }


def test_signature_equals_example_of_specification() -> None:
    """The example of standardwebhooks.com, which its libraries use in their tests."""
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signature = sign([key], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@given(st.binary(), st.uuids())
def test_signed_request_is_verified(body: bytes, event_id: object) -> None:
    assert verify(signed(event_id=str(event_id), body=body), body, SECRET, now=NOW) == str(event_id)


@pytest.mark.parametrize("given_secret", [f"old {SECRET}", f"{SECRET} new"])
def test_old_and_new_secret_are_valid_during_rotation(given_secret: str) -> None:
    assert verify(signed(given_secret), b"{}", SECRET, now=NOW) == "e1"
    assert verify(signed(SECRET), b"{}", given_secret, now=NOW) == "e1"


@pytest.mark.parametrize(
    "change",
    [
        {"Webhook-Id": "e2"},
        {"Webhook-Timestamp": str(NOW + 1)},
        {"Webhook-Signature": ""},
        {"Webhook-Signature": "v1,"},
        {"Webhook-Signature": "v1,AAAA v1a,BBBB Füße"},
        {"Webhook-Signature": sign([b"another"], "e1", NOW, b"{}")},
        {"Webhook-Signature": sign(parse_secrets(SECRET), "e1", NOW, b"{}").removeprefix("v1,")},
    ],
)
def test_altered_request_is_refused(change: dict[str, str]) -> None:
    with pytest.raises(InvalidSignature, match="does not match the body"):
        verify(signed() | change, b"{}", SECRET, now=NOW)


@pytest.mark.parametrize("missing", ["Webhook-Id", "Webhook-Timestamp", "Webhook-Signature"])
def test_missing_header_is_named_in_error(missing: str) -> None:
    headers = signed()
    del headers[missing]
    with pytest.raises(InvalidSignature, match=missing.lower()):
        verify(headers, b"{}", SECRET, now=NOW)


@pytest.mark.parametrize("moment", [NOW - 301, NOW + 301])
def test_timestamp_outside_tolerance_is_refused(moment: int) -> None:
    with pytest.raises(InvalidSignature, match="over 300 s"):
        verify(signed(moment=moment), b"{}", SECRET, now=NOW)
    assert verify(signed(moment=moment), b"{}", SECRET, now=NOW, tolerance_seconds=301) == "e1"


def test_invalid_timestamp_is_refused_even_if_signed() -> None:
    with pytest.raises(InvalidSignature, match="invalid webhook-timestamp 'soon'"):
        verify(signed(moment="soon"), b"{}", SECRET, now=NOW)  # type: ignore[arg-type]


def test_current_time_is_default() -> None:
    with pytest.raises(InvalidSignature, match="over 300 s"):
        verify(signed(moment=1), b"{}", SECRET)


@pytest.mark.parametrize("secret", ["", "  ", "whsec_", "whsec_not base64", "whsec_!"])
def test_invalid_secret_is_usage_error(secret: str) -> None:
    with pytest.raises(UsageError):
        verify(signed(), b"{}", secret, now=NOW)
