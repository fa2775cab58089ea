"""JSON encoding of job payloads, and validation against Pydantic models.

The error of an invalid payload lists each wrong field, so that the submitter can correct the payload.
"""

import json
from typing import TYPE_CHECKING, Any

from penstock.model.errors import InvalidEvent, InvalidPayload
from penstock.model.text import describe

if TYPE_CHECKING:
    from pydantic import BaseModel

DEEPEST = 100


def encode(what: str, value: Any) -> bytes:
    """Encode a value as JSON; a Pydantic model serialises itself. `what` names the value in error messages."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json")
    try:
        if _too_deep(value):
            raise InvalidEvent(f"{what} is nested more than {DEEPEST} levels deep")
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidEvent(f"{what} can't be written as JSON: {error}") from error


def decode(raw: bytes) -> Any:
    """Decode JSON. Also reject numbers and characters that could not be encoded again."""
    try:
        value = json.loads(raw)
        encode("it", value)
    except (ValueError, RecursionError, InvalidEvent) as error:
        raise InvalidPayload(f"invalid payload: not JSON: {error}") from error
    return value


def shown(raw: bytes | None) -> Any:
    """Return a payload for display: decoded JSON, or text with replacements for undecodable bytes."""
    if raw is None:
        return None
    try:
        return decode(raw)
    except InvalidPayload:
        return raw.decode(errors="replace")


def fitted(raw: bytes, model: "type[BaseModel] | None") -> Any:
    """Decode a payload for a handler: an instance of `model`, or plain JSON if `model` is None."""
    value = decode(raw)
    if model is None:
        return value
    from pydantic import ValidationError

    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        # Omit the input values, which may be secrets.
        errors = error.errors(include_url=False, include_input=False, include_context=False)
        raise InvalidPayload(describe(errors)) from error


def _too_deep(value: Any) -> bool:
    """Check the nesting level by level: a recursive check would exceed the recursion limit on such values."""
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [part for whole in level for part in _parts(whole)]
        if not level:
            return False
    return True


def _parts(value: Any) -> Any:
    match value:
        case dict():
            return value.values()
        case list() | tuple():
            return value
        case _:
            return ()
