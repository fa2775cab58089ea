"""Routing: the topic of each event, from a template. No I/O.

A pattern that matches the event's type replaces the default template. Templates are validated when a routing is
created, so that routing an event cannot fail.
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
    """Templates of topics. `template` fills in `{event_type}`, `{queue}`, `{partition_key}` and `{ordering_key}`.

    `patterns` maps globs over event types, such as `orders.*`, to templates; the first match wins. A key that the event
    lacks becomes empty text. An event whose topic would be empty gets its type as the topic.
    """

    template: str = DEFAULT_TEMPLATE
    patterns: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for template in (self.template, *self.patterns.values()):
            _require_template(template)

    def route(self, events: Sequence[Delivery]) -> list[Message]:
        """Return each event with its topic, in the order given."""
        if not self.patterns:
            return list(map(Message, map(_topic(self.template), events), events))
        topics = {event_type: _topic(self._template_for(event_type)) for event_type in {e.event_type for e in events}}
        return [Message(topics[event.event_type](event), event) for event in events]

    def _template_for(self, event_type: str) -> str:
        matching = (template for glob, template in self.patterns.items() if fnmatchcase(event_type, glob))
        return next(matching, self.template)


def _topic(template: str) -> Callable[[Delivery], str]:
    """Return a function from an event to its topic, without formatting if the template needs none."""
    if template == DEFAULT_TEMPLATE:
        return attrgetter("event_type")
    names = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    if not names:
        constant = template.format()
        return lambda _: constant
    return lambda event: template.format(**{n: getattr(event, n) or "" for n in names}) or event.event_type


def _require_template(template: str) -> None:
    """Accept only plain field names: attributes, indexes and format specs would make a template fail on some events."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise UsageError(
            f"invalid topic template {template!r}: {error}; expected one such as '{{queue}}.{{event_type}}'"
        ) from error
    if not template:
        raise UsageError("topic template must not be empty; the default is '{event_type}'")
    for _, name, spec, conversion in parts:
        if name is not None and (name not in FIELDS or spec or conversion):
            known = ", ".join(f"{{{known}}}" for known in FIELDS)
            raise UsageError(f"invalid topic template {template!r}; supported fields: {known}")
