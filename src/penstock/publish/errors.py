"""What a failed publish leaves behind: the text of its error, and outcomes for a batch none of which went out."""

from collections.abc import Sequence

from penstock.config.urls import mask_url
from penstock.model.outcome import RELEASED, Outcome, Retry
from penstock.model.text import brief, storable
from penstock.publish.api import Message

ERROR_LIMIT = 1_000


def error_text(error: BaseException) -> str:
    """The error as an event's record keeps it: its type and message."""
    return presentable(brief(error))


def presentable(error: object) -> str:
    """An error's text that anyone may read: short, and without passwords."""
    return storable(mask_url(str(error)), ERROR_LIMIT)


def nothing_sent(messages: Sequence[Message], error: str) -> dict[int, Outcome]:
    """Nothing of this batch went out: the first event of each key failed, what stood behind it was never tried."""
    outcomes: dict[int, Outcome] = {}
    failed: set[tuple[str, str]] = set()
    for event in (message.event for message in messages):
        if event.ordering_key is None:
            outcomes[event.seq] = Retry(error)
            continue
        key = (event.queue, event.ordering_key)
        outcomes[event.seq] = RELEASED if key in failed else Retry(error)
        failed.add(key)
    return outcomes
