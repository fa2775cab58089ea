"""Looking at streams and their state from outside, whether they run or not: what a user's handlers keep, and nothing of
what a stream keeps for itself."""

import time
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from penstock.config.urls import mask_url
from penstock.model.errors import UsageError
from penstock.streams.app import part_of
from penstock.streams.engine.work import is_users
from penstock.streams.state.api import Started, StateStore

SHOWN_STREAMS = 20


class Kept(NamedTuple):
    """The state of one key."""

    key: str
    part: int
    state: str
    """A JSON object."""
    expires_at: datetime | None


def find_stream(store: StateStore, name: str) -> Started:
    """The stream of this name, as it was last started."""
    streams = {found.stream: found for found in store.streams()}
    if name not in streams:
        there = ", ".join(list(streams)[:SHOWN_STREAMS]) or "none: no stream has run with this state yet"
        raise UsageError(f"there is no stream {name!r} in {mask_url(store.url)}; there are: {there}")
    return streams[name]


def look(
    store: StateStore, stream: Started, keys: Collection[str] | None = None, *, part: int | None = None
) -> Iterator[Kept]:
    """The state of these keys or of all, in one part or in all, by key. What has expired is no longer there."""
    now = time.time()
    for key, saved in store.read(stream.stream, keys, part=part):
        if is_users(key) and not saved.expired(now):
            yield Kept(key, part_of(key, stream.parts), saved.data.decode(), _time(saved.expires_at))


def _time(seconds: float | None) -> datetime | None:
    """None also for what is further away than a calendar reaches."""
    try:
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError):
        return None
