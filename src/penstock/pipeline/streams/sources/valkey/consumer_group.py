"""Consumer groups of Valkey and Redis streams: check for entries, take entries and acknowledge them.

The server's consumer group is the authoritative record of delivery. Entries that were delivered and not acknowledged
are delivered again: first to the same consumer, and after an idle time to any consumer. Clients are opened once per
process and never sent to another process.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from valkey import Valkey
from valkey.exceptions import (
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    AuthorizationError,
    ClusterDownError,
    NoPermissionError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
    ValkeyError,
)
from valkey.exceptions import ConnectionError as LostConnection
from valkey.exceptions import TimeoutError as NoAnswer

from penstock.config.options import known_options
from penstock.config.urls import mask_url
from penstock.model.errors import PenstockError, PipelineError, SourceUnavailable, UsageError
from penstock.pipeline.streams.sources.valkey.entries import EntryId, StreamEntry, entry_of, in_order
from penstock.publish.valkey import CLIENT_OPTIONS, open_client, replies_of

PAGE = 1_000
BEGINNING = "0"
ONLY_NEW = "$"
# Used as an entry id: selects entries that were not delivered to any consumer yet.
UNDELIVERED = ">"

_REFUSED = (AuthenticationError, AuthenticationWrongNumberOfArgsError, AuthorizationError, NoPermissionError)
_PASSING = (LostConnection, NoAnswer, OSError, ReadOnlyError, ClusterDownError, TryAgainError)
# Errors of old servers for XAUTOCLAIM, for XPENDING with IDLE, and for ranges that exclude their first id.
_TOO_OLD = re.compile(r"unknown command|syntax error|Invalid stream ID", re.IGNORECASE)
_NO_GROUP = re.compile(r"NOGROUP|no such key", re.IGNORECASE)


@lru_cache(maxsize=8)
def client_of(url: str) -> Valkey:
    """Return this process's client for the URL. The client connects on first use."""
    return open_client(url, known_options(url, CLIENT_OPTIONS))


class Group:
    """One consumer group of one stream."""

    def __init__(self, url: str, stream: str, name: str) -> None:
        self.stream = stream
        self.name = name
        self._url = url

    def ensure(self, start: str) -> None:
        """Create the group, and the stream if needed. An existing group is left unchanged."""
        with self._plain_errors() as client:
            if self._position(client) is not None:
                return
            try:
                client.xgroup_create(self.stream, self.name, id=start, mkstream=True)
            except ResponseError as error:
                if not str(error).startswith("BUSYGROUP"):  # another process has created the group
                    raise

    def has_something(self, consumers: Iterable[str], min_idle_time_ms: int) -> bool:
        """Return True if these consumers would get entries: pending entries, idle entries of others, or new ones."""
        with self._plain_errors() as client:
            return (
                any(client.xpending_range(self.stream, self.name, "-", "+", 1, one) for one in consumers)
                or self._first_idle(client, min_idle_time_ms) is not None
                or self._has_new(client)
            )

    def own(self, consumer: str, limit: int) -> list[StreamEntry]:
        """Return the entries delivered to this consumer and not acknowledged. Acknowledge those deleted since then."""
        with self._plain_errors() as client:
            return self._counted(client, consumer, self._read(client, consumer, BEGINNING, limit))

    def idle(self, consumer: str, limit: int, min_idle_time_ms: int) -> list[StreamEntry]:
        """Take over entries that other consumers have left unacknowledged for `min_idle_time_ms`.

        The server drops entries that were deleted since. Servers before version 7 assign deleted entries to this
        consumer instead; they are then among its own entries the next time.
        """
        found: list[StreamEntry] = []
        with self._plain_errors() as client:
            cursor = self._first_idle(client, min_idle_time_ms) if limit > 0 else None
            while cursor is not None and len(found) < limit:
                count = min(PAGE, limit - len(found))
                reply: Any = client.xautoclaim(self.stream, self.name, consumer, min_idle_time_ms, cursor, count)
                found += self._entries(reply[1])
                cursor = None if EntryId.parse(reply[0]) == (0, 0) else reply[0]
            return self._counted(client, consumer, found)

    def new(self, consumer: str, limit: int) -> list[StreamEntry]:
        """Take entries that were not delivered to any consumer yet."""
        with self._plain_errors() as client:
            return self._read(client, consumer, UNDELIVERED, limit)

    def acknowledge(self, entry_ids: Sequence[str], *, delete: bool) -> int:
        """Acknowledge entries and, with `delete`, delete them from the stream. Return the number that were pending."""
        with self._plain_errors() as client:
            pipeline: Any = client.pipeline(transaction=delete)  # its methods have no types
            for start in range(0, len(entry_ids), PAGE):
                page = entry_ids[start : start + PAGE]
                pipeline.xack(self.stream, self.name, *page)
                if delete:
                    pipeline.xdel(self.stream, *page)
            replies = replies_of(client, pipeline)
            if failed := [reply for reply in replies if isinstance(reply, Exception)]:
                raise failed[0]
            return sum(int(str(reply)) for reply in (replies[::2] if delete else replies))

    def _position(self, client: Any) -> str | None:
        """Return the id of the last entry delivered to any consumer; None if the group does not exist."""
        try:
            groups = client.xinfo_groups(self.stream)
        except ResponseError as error:
            if _NO_GROUP.search(str(error)):
                return None
            raise
        found = (group["last-delivered-id"].decode() for group in groups if group["name"] == self.name.encode())
        return next(found, None)

    def _has_new(self, client: Any) -> bool:
        """Return True if the stream has undelivered entries.

        Query the next entry, because the server's lag is sometimes unknown and the stream's last id may belong to a
        deleted entry.
        """
        position = self._position(client)
        if position is None:
            raise PipelineError(_gone(self.stream, self.name))
        return bool(client.xrange(self.stream, f"({position}", "+", count=1))

    def _first_idle(self, client: Any, min_idle_time_ms: int) -> bytes | None:
        found = client.xpending_range(self.stream, self.name, "-", "+", 1, idle=min_idle_time_ms)
        return found[0]["message_id"] if found else None

    def _read(self, client: Any, consumer: str, after: str, limit: int) -> list[StreamEntry]:
        """Read entries page by page: those delivered to this consumer after an id, or undelivered ones.

        Acknowledge entries that were deleted.
        """
        found: list[StreamEntry] = []
        while len(found) < limit:
            streams = client.xreadgroup(self.name, consumer, {self.stream: after}, count=min(PAGE, limit - len(found)))
            if not streams or not (page := streams[0][1]):
                break
            found += self._entries(page)
            if after != UNDELIVERED:
                after = page[-1][0]
            if deleted := [entry_id for entry_id, fields in page if not fields]:
                client.xack(self.stream, self.name, *deleted)
        return found

    def _entries(self, page: Iterable[tuple[bytes | None, dict[bytes, bytes]]]) -> Iterator[StreamEntry]:
        """Yield the entries that still exist. Only deleted entries have no fields."""
        for entry_id, fields in page:
            if entry_id is not None and fields:
                yield StreamEntry(self.stream, EntryId.parse(entry_id), fields)

    def _counted(self, client: Any, consumer: str, entries: Sequence[StreamEntry]) -> list[StreamEntry]:
        """Return the entries with the number of their earlier deliveries, which the server counts."""
        if not entries:
            return []
        ids = [entry.entry_id for entry in entries]
        deliveries = dict(self._deliveries(client, consumer, min(ids), max(ids)))
        return [entry._replace(attempts=deliveries.get(entry.entry_id, 1) - 1) for entry in entries]

    def _deliveries(self, client: Any, consumer: str, first: EntryId, last: EntryId) -> Iterator[tuple[EntryId, int]]:
        start: str | None = str(first)
        while start is not None:
            page = client.xpending_range(self.stream, self.name, start, str(last), PAGE, consumer)
            for one in page:
                yield EntryId.parse(one["message_id"]), one["times_delivered"]
            start = f"({page[-1]['message_id'].decode()}" if len(page) == PAGE else None

    @contextmanager
    def _plain_errors(self) -> Iterator[Any]:
        """Yield the client, and convert its errors into Penstock's errors."""
        client = client_of(self._url)
        try:
            yield client
        except (ValkeyError, OSError) as error:
            if isinstance(error, ReadOnlyError):
                # The server became a replica: disconnect, so that the next command resolves the address again.
                client.connection_pool.disconnect()
            raise plain_error(error, self._url, self.stream, self.name) from None


def plain_error(error: Exception, url: str, stream: str, group: str) -> PenstockError:
    """Convert an error of the server or the connection into a Penstock error with an actionable message."""
    shown, said = mask_url(url), mask_url(str(error))
    if isinstance(error, _REFUSED):
        return UsageError(f"{shown} rejected the credentials, or this user has no permission: {said}")
    if isinstance(error, _PASSING):
        return SourceUnavailable(f"{shown} is unavailable: {said}")
    if said.startswith("WRONGTYPE"):
        return UsageError(f"key {stream!r} at {shown} is not a stream; use the key of a stream")
    if _NO_GROUP.search(said):
        return PipelineError(_gone(stream, group))
    if _TOO_OLD.search(said):
        return UsageError(f"{shown} is too old ({said}); use Valkey, or Redis 6.2 or later")
    return PipelineError(f"{shown} rejected a command on stream {stream!r}: {said}")


def _gone(stream: str, group: str) -> str:
    """Return the message for a group that no longer exists. The user must decide where a new group starts.

    From the beginning, acknowledged entries would be delivered again. From anywhere else, unacknowledged entries could
    be lost.
    """
    return (
        f"consumer group {group!r} of stream {stream!r} was deleted with its record of acknowledged entries; recreate "
        f"it with XGROUP CREATE {stream} {group} 0 MKSTREAM to read all entries again, or with an entry id instead of "
        "0 to read the entries after it"
    )


def take(
    groups: Sequence[Group], consumer: str, *, limit: int, min_idle_time_ms: int, rotation: int = 0
) -> list[StreamEntry]:
    """Take up to `limit` entries for this consumer; return them oldest first.

    The consumer's own unacknowledged entries are taken first, then idle entries of other consumers, then new ones.
    `rotation` selects the stream that is read first, so that no stream starves.
    """
    start = rotation % len(groups)
    rotated = [*groups[start:], *groups[:start]]
    taken: list[StreamEntry] = []
    for group in rotated:
        taken += group.own(consumer, limit - len(taken))
    for group in rotated:
        taken += group.idle(consumer, limit - len(taken), min_idle_time_ms)
    for group in rotated:
        taken += group.new(consumer, limit - len(taken))
    return in_order(taken)


def acknowledge(url: str, group: str, event_ids: Iterable[str], *, delete_acknowledged: bool = False) -> int:
    """Acknowledge events to the consumer group. Return the number of events that were pending.

    Call this after the effects of the events are committed. `SourceUnavailable` is raised if the server is unavailable,
    and may be ignored: unacknowledged events are delivered again. Events of a group that no longer exists do not count.
    """
    by_stream: dict[str, list[str]] = {}
    for event_id in event_ids:
        stream, entry_id = entry_of(event_id)
        by_stream.setdefault(stream, []).append(entry_id)
    return sum(
        Group(url, stream, group).acknowledge(entry_ids, delete=delete_acknowledged)
        for stream, entry_ids in by_stream.items()
    )
