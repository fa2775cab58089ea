"""Outcomes of a claimed event, as publishers and handlers report them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never


@dataclass(frozen=True, slots=True)
class Published:
    """The destination accepted the event, or its handler succeeded. The store keeps `result` with the event."""

    result: bytes | None = None
    keep: bool = True


@dataclass(frozen=True, slots=True)
class Retry:
    """The attempt failed and may succeed later.

    Without `delay_seconds`, the retry policy sets the delay. `keep` applies only if this attempt was the event's last.
    """

    error: str
    delay_seconds: float | None = None
    keep: bool = True


@dataclass(frozen=True, slots=True)
class Dead:
    """The event failed permanently."""

    error: str
    keep: bool = True


@dataclass(frozen=True, slots=True)
class Released:
    """The event was never passed to a publisher or handler. It returns to the queue without counting an attempt."""


Outcome = Published | Retry | Dead | Released
PUBLISHED = Published()
RELEASED = Released()


class Dropped(StrEnum):
    """Outcome of claimed events that the result of a step does not contain."""

    DEAD = "dead"
    """Make the event a dead letter, which can be inspected and replayed."""
    DISCARD = "discard"
    """Settle the event as published."""
    RELEASE = "release"
    """Return the event to the queue without counting an attempt; it will be delivered again."""

    @property
    def outcome(self) -> Outcome:
        match self:
            case Dropped.DEAD:
                return Dead("dropped by a step")
            case Dropped.DISCARD:
                return PUBLISHED
            case Dropped.RELEASE:
                return RELEASED
            case _:
                assert_never(self)
