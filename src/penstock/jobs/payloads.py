"""What jobs carry: JSON, in and out, and the models that payloads have to fit. A payload that can't be read or doesn't
fit is told field by field, so that whoever submitted it can mend it."""

import json
from typing import TYPE_CHECKING, Any

from penstock.model.errors import InvalidEvent, InvalidPayload
from penstock.model.text import describe

if TYPE_CHECKING:
    from pydantic import BaseModel

DEEPEST = 100


def encode(what: str, value: Any) -> bytes:
    """A value as JSON. `what` names it in the error. A Pydantic model is written as it says itself."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json")
    try:
        if _too_deep(value):
            raise InvalidEvent(f"{what} is nested more than {DEEPEST} levels deep")
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidEvent(f"{what} can't be written as JSON: {error}") from error


def decode(raw: bytes) -> Any:
    """The JSON in these bytes, if it is any. Numbers and characters that can't be written again are refused as well."""
    try:
        value = json.loads(raw)
        encode("it", value)
    except (ValueError, RecursionError, InvalidEvent) as error:
        raise InvalidPayload(f"invalid payload: not JSON: {error}") from error
    return value


def shown(raw: bytes | None) -> Any:
    """For people: the JSON in these bytes, or else their text as far as it can be read."""
    if raw is None:
        return None
    try:
        return decode(raw)
    except InvalidPayload:
        return raw.decode(errors="replace")


def fitted(raw: bytes, model: "type[BaseModel] | None") -> Any:
    """The payload as a handler gets it: an instance of its type's model, or plain JSON where there is none."""
    value = decode(raw)
    if model is None:
        return value
    from pydantic import ValidationError

    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        # Without the values, which may be secrets.
        errors = error.errors(include_url=False, include_input=False, include_context=False)
        raise InvalidPayload(describe(errors)) from error


def _too_deep(value: Any) -> bool:
    """Level by level, because a recursion would fail on just what it looks for."""
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
