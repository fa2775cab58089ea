"""`null:` accepts and discards events, for benchmarks of the rest of the pipeline and for queues without consumers."""

from collections.abc import Sequence

from penstock.config.options import known_options
from penstock.model.outcome import PUBLISHED, Outcome
from penstock.publish.api import Message, Unpicklable


class NullPublisher(Unpicklable):
    in_order = True

    def publish(self, messages: Sequence[Message]) -> dict[int, Outcome]:
        return dict.fromkeys([message.event.seq for message in messages], PUBLISHED)

    def close(self) -> None:
        """Do nothing: no resource is open."""


def from_url(url: str) -> NullPublisher:
    known_options(url)
    return NullPublisher()
