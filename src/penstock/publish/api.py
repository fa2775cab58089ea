"""Interface of a publisher: a batch of messages in, one outcome per event out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

from penstock.model.event import Delivery
from penstock.model.outcome import Outcome

Outcomes = Mapping[int, Outcome]
"""Outcomes by the event's seq."""


@dataclass(frozen=True, slots=True)
class Message:
    """An event with the topic that the routing chose."""

    topic: str
    event: Delivery


class Publisher(Protocol):
    """Client of a destination. A call of `publish` is one attempt, without hidden retries, and gives every event an
    outcome.

    `in_order` is True if a call sends its messages in the given order and, after a failure, releases the later events
    of the same ordering key instead of sending them. If False, the dispatcher sends one event of an ordering key at a
    time.
    """

    in_order: bool

    def publish(self, messages: Sequence[Message]) -> Outcomes: ...

    def close(self) -> None:
        """Flush pending work and close the connections."""
        ...


class Unpicklable:
    """Base class that forbids pickling. An object that has not connected yet may otherwise be picklable."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"cannot pickle a {type(self).__name__}; pass its URL and open it in the other process")
