"""Error texts and outcomes of failed publish calls."""

from collections.abc import Sequence

from penstock.config.urls import mask_url
from penstock.model.outcome import RELEASED, Outcome, Retry
from penstock.model.text import brief, storable
from penstock.publish.api import Message

ERROR_LIMIT = 1_000


def error_text(error: BaseException) -> str:
    """Return the type and message of an error, as stored with the event."""
    return presentable(brief(error))


def presentable(error: object) -> str:
    """Return an error's text shortened and without passwords, safe to show to anyone."""
    return storable(mask_url(str(error)), ERROR_LIMIT)


def nothing_sent(messages: Sequence[Message], error: str) -> dict[int, Outcome]:
    """Return the outcomes of a batch of which nothing was sent.

    An event without an ordering key is retried. Of each ordering key, the first event is retried and the later ones are
    released.
    """
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
