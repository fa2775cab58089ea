"""Signatures of webhooks by the rules of standardwebhooks.com, for the `https:` destination and for receivers.

    event_id = verify(request.headers, body, os.environ["WEBHOOK_SECRET"])     # raises InvalidSignature

The signature covers the event's id, the time of the attempt and the body, but no other headers.
"""

import base64
import hashlib
import hmac
import time
from collections.abc import Mapping, Sequence

from penstock.model.errors import InvalidSignature, UsageError

TOLERANCE_SECONDS = 300.0
PREFIX = "whsec_"
VERSION = "v1,"


def verify(
    headers: Mapping[str, str],
    body: bytes,
    secret: str,
    *,
    tolerance_seconds: float = TOLERANCE_SECONDS,
    now: float | None = None,
) -> str:
    """Verify a signed request and return the id of its event; raise `InvalidSignature` otherwise.

    `body` is the request body before any parsing. `secret` is the sender's secret; of several, separated by spaces,
    each is accepted. Deduplicate by the id: a replayed request also verifies, until its timestamp differs from
    the clock by more than the tolerance.
    """
    keys = parse_secrets(secret)
    named = {name.lower(): value for name, value in headers.items()}
    try:
        event_id, timestamp, signatures = (named[f"webhook-{part}"] for part in ("id", "timestamp", "signature"))
    except KeyError as missing:
        raise InvalidSignature(f"the request is not signed; missing header {missing}") from None
    expected = [_signature(key, event_id, timestamp, body).encode() for key in keys]
    if not any(hmac.compare_digest(one, given.encode()) for one in expected for given in signatures.split()):
        raise InvalidSignature("the signature does not match the body and the secret")
    _require_recent(timestamp, time.time() if now is None else now, tolerance_seconds)
    return event_id


def sign(keys: Sequence[bytes], event_id: str, timestamp: int, body: bytes) -> str:
    """Return the header `webhook-signature`, with one signature for each key."""
    return " ".join(_signature(key, event_id, str(timestamp), body) for key in keys)


def parse_secrets(text: str) -> tuple[bytes, ...]:
    """Return the keys in a secret's text. Text after `whsec_` is base64; without this prefix it is used unchanged."""
    keys = tuple(map(_key, text.split()))
    if not keys:
        raise UsageError("missing signing secret; create one with: openssl rand -base64 32")
    return keys


def _key(secret: str) -> bytes:
    if not secret.startswith(PREFIX):
        return secret.encode()
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except ValueError:
        key = b""
    if not key:
        raise UsageError(f"invalid signing secret; expected base64 after {PREFIX}")
    return key


def _signature(key: bytes, event_id: str, timestamp: str, body: bytes) -> str:
    signed = hmac.digest(key, f"{event_id}.{timestamp}.".encode() + body, hashlib.sha256)
    return VERSION + base64.b64encode(signed).decode()


def _require_recent(timestamp: str, now: float, tolerance_seconds: float) -> None:
    if not (timestamp.isascii() and timestamp.isdecimal()):
        raise InvalidSignature(f"invalid webhook-timestamp {timestamp!r}; expected seconds since 1970")
    if abs(now - int(timestamp)) > tolerance_seconds:
        raise InvalidSignature(f"webhook-timestamp and clock differ by over {tolerance_seconds:g} s; check both clocks")
