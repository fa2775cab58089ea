"""Subject and headers of an event in NATS, and the outcome of a stream's acknowledgement. No I/O.

NATS supports only ASCII headers, and trims them. Other headers are encoded, never changed or dropped.
"""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from penstock.model.event import Delivery
from penstock.model.outcome import PUBLISHED, Dead, Outcome, Retry
from penstock.publish.fast_text import created_at_text, event_id_text

ENCODED_HEADERS = "Penstock-Headers"
# A server reads at most 4,096 bytes of a protocol line, which also contains the reply subject and two sizes.
SUBJECT_BYTES = 3_900
NO_RESPONDERS = "503"
MESSAGE_TOO_LARGE = 10054

_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# Clients use the names `Status` and `Description` for the first line of a server's own messages.
_RESERVED_NAME = re.compile(r"(?i)nats-|penstock-|status\Z|description\Z")
_CARRIED = re.compile(r"(?:[!-~](?:[ -~]*[!-~])?)?")
_UNESCAPED = re.compile(r"(?:[!-$&-~](?:[ -$&-~]*[!-$&-~])?)?")
_SUBJECT = re.compile(r"[^ \t\r\n\f\0.]+(?:\.[^ \t\r\n\f\0.]+)*")


@lru_cache(maxsize=10_000)
def subject_fault(subject: str) -> str | None:
    """Return the reason why no server would accept this subject, or None. A retry would not help."""
    if not _SUBJECT.fullmatch(subject):
        return f"invalid subject {subject!r}; expected words separated by dots, without spaces"
    if not {"*", ">"}.isdisjoint(subject.split(".")):
        return f"invalid subject {subject!r}; * and > are wildcards"
    if subject.startswith(("$JS.", "$SYS.")):
        return f"invalid subject {subject!r}; $JS. and $SYS. are reserved for the server"
    if len(subject.encode()) > SUBJECT_BYTES:
        return f"invalid subject {subject[:40]!r}…; expected at most {SUBJECT_BYTES:,} bytes"
    return None


def wire_headers(event: Delivery) -> dict[str, str]:
    """Return the headers of the message, all of them in ASCII."""
    event_id = event_id_text(event)
    headers = {
        # A replay is intended: the stream must not drop it as a duplicate.
        "Nats-Msg-Id": f"{event_id}/{event.replays}" if event.replays else event_id,
        "Penstock-Event-Id": event_id,
        "Penstock-Event-Type": escaped(event.event_type),
        "Penstock-Queue": escaped(event.queue),
        "Penstock-Created-At": created_at_text(event),
    }
    if event.partition_key is not None:
        headers["Penstock-Partition-Key"] = escaped(event.partition_key)
    if event.ordering_key is not None:
        headers["Penstock-Ordering-Key"] = escaped(event.ordering_key)
    if event.headers:
        headers |= _own_headers(event.headers)
    return headers


def message_size(headers: Mapping[str, str], payload: bytes) -> int:
    """Return the bytes that count for the server's `max_payload`: `NATS/1.0`, a line for each header, the payload."""
    header_bytes = sum(map(len, headers)) + sum(map(len, headers.values())) + 4 * len(headers)
    return header_bytes + 12 + len(payload)


def escaped(text: str) -> str:
    """Percent-encode text as in a URL, if necessary; `%` is always encoded."""
    return text if _UNESCAPED.fullmatch(text) else quote(text, safe="")


def _own_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the event's own headers. Those that NATS cannot carry are encoded together as JSON."""
    carried = {name: value for name, value in headers.items() if _carried(name, value)}
    if len(carried) < len(headers):
        encoded = {name: value for name, value in headers.items() if name not in carried}
        carried[ENCODED_HEADERS] = json.dumps(encoded)
    return carried


def _carried(name: str, value: str) -> bool:
    return bool(_HEADER_NAME.fullmatch(name) and not _RESERVED_NAME.match(name) and _CARRIED.fullmatch(value))


def outcome(subject: str, answer: bytes, headers: Mapping[str, str] | None) -> Outcome:
    """Return the outcome that the answer to a message implies."""
    if headers and headers.get("Status") == NO_RESPONDERS:
        return Retry(
            f"no stream accepts subject {subject!r}; create one, or check that JetStream is enabled and that the "
            "stream has a leader"
        )
    said = _parsed(answer)
    if "error" in said:
        return _refusal(subject, said["error"])
    if "stream" in said and "seq" in said:
        return PUBLISHED
    return Retry(f"invalid acknowledgement for subject {subject!r}; expected one of a stream, got {answer[:100]!r}")


def _parsed(answer: bytes) -> dict[str, Any]:
    try:
        said = json.loads(answer)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _refusal(subject: str, error: Any) -> Outcome:
    details = error if isinstance(error, dict) else {}
    cause = f"the stream rejected {subject!r}: {details.get('description', error)}"
    return Dead(cause) if details.get("err_code") == MESSAGE_TOO_LARGE else Retry(cause)
