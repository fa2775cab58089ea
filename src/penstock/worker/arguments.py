"""Arguments of a handler, derived from its signature: the event, its typed payload, or both."""

import inspect
import sys
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, get_args, get_origin

from penstock.config.extras import needs_extra
from penstock.model.errors import InvalidPayload, UsageError
from penstock.model.event import Delivery
from penstock.model.text import describe
from penstock.worker.received import Received

Read = Callable[[Received], Any]


def reader_of(handler: Callable[..., Any], *, batch: bool) -> Callable[[Sequence[Received]], tuple[Any, ...]]:
    """Return a function that converts events to the arguments of a handler.

    A parameter without annotation, or with the annotation `Received`, receives the event. Any other annotation is the
    type of the payload: `bytes`, `str`, `dict`, a dataclass, a Pydantic model, or any other type that Pydantic
    validates.
    """
    parameters = _parameters(handler)
    readers = [_reader(handler, parameter, batch=batch) for parameter in parameters]
    if batch:
        return lambda events: tuple([read(event) for event in events] for read in readers)
    if readers == [_event]:
        return lambda events: (events[0],)
    return lambda events: tuple(read(events[0]) for read in readers)


def _parameters(handler: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        signature = inspect.signature(handler, eval_str=True)
    except NameError as error:
        raise UsageError(f"the annotations of handler {_name(handler)} can't be read: {error}") from error
    given = list(signature.parameters.values())
    collecting = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [one for one in given if one.default is one.empty and one.kind not in collecting]
    if not needed:  # without required parameters: pass the event to the first one
        needed = [one.replace(annotation=one.empty) for one in given if one.kind != one.VAR_KEYWORD][:1]
    if not 1 <= len(needed) <= 2 or any(one.kind is one.KEYWORD_ONLY for one in needed):
        raise UsageError(f"handler {_name(handler)} must take the event, its payload, or both, and nothing else")
    return needed


def _reader(handler: Callable[..., Any], parameter: inspect.Parameter, *, batch: bool) -> Read:
    wanted = parameter.annotation
    if batch and wanted is not inspect.Parameter.empty:
        arguments = get_args(wanted)
        if get_origin(wanted) not in (list, Sequence) and wanted is not list:
            raise UsageError(f"handler {_name(handler)} takes batches: annotate {parameter.name} as a list")
        wanted = arguments[0] if arguments else inspect.Parameter.empty
    if wanted in (inspect.Parameter.empty, Any, Received, Delivery):
        return _event
    if wanted is bytes:
        return attrgetter("payload")
    if wanted is str:
        return _text
    return _checked(wanted)


def _event(event: Received) -> Received:
    return event


def _text(event: Received) -> str:
    try:
        return event.text()
    except UnicodeDecodeError as error:
        raise InvalidPayload(f"the payload is not UTF-8: {error.reason} at byte {error.start}") from error


def _checked(wanted: Any) -> Read:
    """Return a reader that decodes JSON and validates it with Pydantic; `dict` means an object with string keys."""
    with needs_extra("a handler that takes a typed payload", "worker"):
        from pydantic import TypeAdapter, ValidationError

    adapter: Any = TypeAdapter(dict[str, Any] if wanted is dict else wanted)

    def read(event: Received) -> Any:
        try:
            return adapter.validate_json(event.payload)
        except ValidationError as error:
            raise InvalidPayload(describe(error.errors(include_url=False, include_input=False))) from error

    return read


def _name(handler: Callable[..., Any]) -> str:
    module = getattr(handler, "__module__", None)
    name = getattr(handler, "__qualname__", repr(handler))
    return f"{module}.{name}" if module in sys.modules and module != "__main__" else name
