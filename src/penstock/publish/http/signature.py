"""Signatures of webhooks, as standardwebhooks.com has them: made by the `https:` destination, verified by receivers.

    event_id = verify(request.headers, body, os.environ["WEBHOOK_SECRET"])     # raises InvalidSignature

Signed are the event's id, the time of the attempt and the body: not the other headers.
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
    """The id of the event that this request brings, or `InvalidSignature`.

    `body` is what arrived, before any parsing. `secret` is what the sender has; several, separated by spaces, are all
    accepted. Deduplicate by the id: a copied request verifies too, until its time is more than the tolerance away.
    """
    keys = parse_secrets(secret)
    named = {name.lower(): value for name, value in headers.items()}
    try:
        event_id, timestamp, signatures = (named[f"webhook-{part}"] for part in ("id", "timestamp", "signature"))
    except KeyError as missing:
        raise InvalidSignature(f"the request is not signed: it has no header {missing}") from None
    expected = [_signature(key, event_id, timestamp, body).encode() for key in keys]
    if not any(hmac.compare_digest(one, given.encode()) for one in expected for given in signatures.split()):
        raise InvalidSignature("the signature is not one of this body with this secret")
    _require_recent(timestamp, time.time() if now is None else now, tolerance_seconds)
    return event_id


def sign(keys: Sequence[bytes], event_id: str, timestamp: int, body: bytes) -> str:
    """The header `webhook-signature`: one signature for each key."""
    return " ".join(_signature(key, event_id, str(timestamp), body) for key in keys)


def parse_secrets(text: str) -> tuple[bytes, ...]:
    """The keys in a secret's text: after `whsec_` comes base64, anything else is taken as it is."""
    keys = tuple(map(_key, text.split()))
    if not keys:
        raise UsageError("the secret for signatures is empty; make one with: openssl rand -base64 32")
    return keys


def _key(secret: str) -> bytes:
    if not secret.startswith(PREFIX):
        return secret.encode()
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except ValueError:
        key = b""
    if not key:
        raise UsageError(f"a secret that begins with {PREFIX} goes on in base64, and this one does not")
    return key


def _signature(key: bytes, event_id: str, timestamp: str, body: bytes) -> str:
    signed = hmac.digest(key, f"{event_id}.{timestamp}.".encode() + body, hashlib.sha256)
    return VERSION + base64.b64encode(signed).decode()


def _require_recent(timestamp: str, now: float, tolerance_seconds: float) -> None:
    if not (timestamp.isascii() and timestamp.isdecimal()):
        raise InvalidSignature("the header webhook-timestamp is not a number of seconds since 1970")
    if abs(now - int(timestamp)) > tolerance_seconds:
        raise InvalidSignature(f"the request was signed more than {tolerance_seconds:g} s from now; is a clock wrong?")
