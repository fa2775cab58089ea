"""Routing: which topic an event goes to. Pure; a routing that was made can route any event.

The topic comes from a template; a pattern that matches the event's type brings a template of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from operator import attrgetter
from string import Formatter

from penstock.model.errors import UsageError
from penstock.model.event import Delivery
from penstock.publish.api import Message

DEFAULT_TEMPLATE = "{event_type}"
FIELDS = ("event_type", "queue", "partition_key", "ordering_key")


@dataclass(frozen=True, slots=True)
class Routing:
    """`template` fills in `{event_type}`, `{queue}`, `{partition_key}` and `{ordering_key}`.

    `patterns` maps globs over event types, such as `orders.*`, to templates; the first that matches wins.
    A key that the event lacks leaves its place empty, and an event left without any topic goes to its type.
    """

    template: str = DEFAULT_TEMPLATE
    patterns: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for template in (self.template, *self.patterns.values()):
            _require_template(template)

    def route(self, events: Sequence[Delivery]) -> list[Message]:
        """Each event with its topic, in the order given."""
        if not self.patterns:
            return list(map(Message, map(_topic(self.template), events), events))
        topics = {event_type: _topic(self._template_for(event_type)) for event_type in {e.event_type for e in events}}
        return [Message(topics[event.event_type](event), event) for event in events]

    def _template_for(self, event_type: str) -> str:
        matching = (template for glob, template in self.patterns.items() if fnmatchcase(event_type, glob))
        return next(matching, self.template)


def _topic(template: str) -> Callable[[Delivery], str]:
    """How to get a topic from an event, without formatting where the template doesn't call for it."""
    if template == DEFAULT_TEMPLATE:
        return attrgetter("event_type")
    names = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    if not names:
        constant = template.format()
        return lambda _: constant
    return lambda event: template.format(**{n: getattr(event, n) or "" for n in names}) or event.event_type


def _require_template(template: str) -> None:
    """Only plain field names: attributes, indexes and format specs would let a template fail on some events."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise UsageError(
            f"the topic template {template!r} is not one ({error}); one is '{{queue}}.{{event_type}}'"
        ) from error
    if not template:
        raise UsageError("a topic template can't be empty; the default is '{event_type}'")
    for _, name, spec, conversion in parts:
        if name is not None and (name not in FIELDS or spec or conversion):
            known = ", ".join(f"{{{known}}}" for known in FIELDS)
            raise UsageError(f"the topic template {template!r} can use {known} and nothing else in braces")
