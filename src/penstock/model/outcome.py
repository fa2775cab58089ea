"""Outcomes of a claimed event, as publishers and handlers report them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never


@dataclass(frozen=True, slots=True)
class Published:
    """The destination has it, or the handler is done with it. A `result` is kept with the event."""

    result: bytes | None = None
    keep: bool = True


@dataclass(frozen=True, slots=True)
class Retry:
    """It failed and may work later. Without a delay the retry policy chooses one. `keep` is for its last attempt."""

    error: str
    delay_seconds: float | None = None
    keep: bool = True


@dataclass(frozen=True, slots=True)
class Dead:
    """It failed and won't work later."""

    error: str
    keep: bool = True


@dataclass(frozen=True, slots=True)
class Released:
    """It was never handed to a publisher or handler, and goes back uncounted."""


Outcome = Published | Retry | Dead | Released
PUBLISHED = Published()
RELEASED = Released()


class Dropped(StrEnum):
    """What becomes of events that are claimed and that a step's result doesn't have."""

    DEAD = "dead"
    """They are dead: visible, and to be replayed."""
    DISCARD = "discard"
    """They are done with, as if published."""
    RELEASE = "release"
    """They go back, uncounted, and come again."""

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
