"""Read streams and their committed state from outside, running or not. Internal entries of a stream are left out."""

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
    """State of one key."""

    key: str
    part: int
    state: str
    """The state as a JSON object."""
    expires_at: datetime | None


def find_stream(store: StateStore, name: str) -> Started:
    """Return the stream with this name, as it was last started."""
    streams = {found.stream: found for found in store.streams()}
    if name not in streams:
        there = ", ".join(list(streams)[:SHOWN_STREAMS]) or "none"
        raise UsageError(f"stream {name!r} does not exist in {mask_url(store.url)}; existing streams: {there}")
    return streams[name]


def look(
    store: StateStore, stream: Started, keys: Collection[str] | None = None, *, part: int | None = None
) -> Iterator[Kept]:
    """Yield the unexpired state of these keys or of all, by key, from one state partition or from all."""
    now = time.time()
    for key, saved in store.read(stream.stream, keys, part=part):
        if is_users(key) and not saved.expired(now):
            yield Kept(key, part_of(key, stream.parts), saved.data.decode(), _time(saved.expires_at))


def _time(seconds: float | None) -> datetime | None:
    """Return seconds since 1970 as a time; None also for times beyond the range of `datetime`."""
    try:
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError):
        return None
