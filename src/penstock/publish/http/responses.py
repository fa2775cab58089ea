"""Outcomes of failed HTTP responses, without I/O."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from penstock.model.outcome import Dead, Retry

BODY_CHARACTERS = 200
# Upper limit for the delay that a receiver can request: an event that waits for years looks lost.
LONGEST_DELAY_SECONDS = 86_400.0

# Statuses caused by the address, the credentials or the time, not by the event: a later attempt may succeed.
_PASSING = frozenset({401, 403, 404, 407, 408, 425, 429})


def failure(status: int, reason: str, headers: Mapping[str, str], body: str, now: datetime) -> Dead | Retry:
    """Return the outcome of a response that is not 2xx.

    Dead for a 4xx that rejects the event itself, a retry for everything else. A `Retry-After` of the receiver sets the
    shortest delay.
    """
    error = _error(status, reason, headers, body)
    if 400 <= status < 500 and status not in _PASSING:
        return Dead(error)
    return Retry(error, retry_after(headers.get("retry-after", ""), now))


def retry_after(value: str, now: datetime) -> float | None:
    """Return the seconds that a `Retry-After` requests, as a number or a date; None if no wait is requested."""
    asked = _seconds(value.strip(), now)
    return min(asked, LONGEST_DELAY_SECONDS) if asked > 0 else None


def _seconds(value: str, now: datetime) -> float:
    if value.isascii() and value.isdecimal():
        return float(value) if len(value) < 10 else math.inf
    try:
        time = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return 0.0
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return (time - now).total_seconds()


def _error(status: int, reason: str, headers: Mapping[str, str], body: str) -> str:
    said = " ".join(body.split())
    parts = [f"the receiver answered {status} {reason}".rstrip()]
    if 300 <= status < 400:
        parts[0] += f" to {headers.get('location', 'an unknown URL')}; redirects are not followed, use that URL instead"
    if said:
        parts.append(said if len(said) <= BODY_CHARACTERS else said[: BODY_CHARACTERS - 1] + "…")
    return ": ".join(parts)
