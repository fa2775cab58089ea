"""The seam between Penstock and a destination: a batch goes in, one outcome per event comes out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

from penstock.model.event import Delivery
from penstock.model.outcome import Outcome

Outcomes = Mapping[int, Outcome]
"""Outcomes by the event's seq."""


@dataclass(frozen=True, slots=True)
class Message:
    """An event with the topic that routing chose for it."""

    topic: str
    event: Delivery


class Publisher(Protocol):
    """One call is one attempt: no hidden retries, and every event of the batch gets an outcome.

    `in_order` says that within one call the messages go out in the order given, and that after a failure the
    later ones of the same ordering key are not sent but `Released`. Where it is False the dispatcher
    hands over one event of a key at a time.
    """

    in_order: bool

    def publish(self, messages: Sequence[Message]) -> Outcomes: ...

    def close(self) -> None:
        """Flush what is under way and let go of connections."""
        ...


class Unpicklable:
    """Refuses to be pickled, even before it has connected, when nothing else would object."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} stays in its process; send its URL and open it there")
