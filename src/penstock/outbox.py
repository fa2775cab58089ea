"""The outbox: an application's object for emitting events."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from datetime import datetime, timedelta
from typing import Any, Self

from sqlalchemy import Insert

from penstock.config.routes import Routes
from penstock.config.urls import store_url
from penstock.model.errors import InvalidEvent, NotSupported
from penstock.model.event import DEFAULT_QUEUE, Event, EventId, encode_payload
from penstock.store.api import Store, StoreOptions
from penstock.store.event_ids import new_event_id
from penstock.store.registry import open_store
from penstock.store.sql.schema import outbox as outbox_view


def connect(url: str | None = None, options: StoreOptions | None = None, *, routes: Routes | None = None) -> "Outbox":
    """Return the outbox in the database at `url` (default: `PENSTOCK_STORE`, then `sqlite:///penstock.db`).

    No connection is opened before the first emit. With routes that set `unrouted = "refuse"` (see
    `penstock.load_routes`), emitting an event that no route matches raises an error.
    """
    return Outbox(open_store(store_url(url), options), routes)


class Outbox:
    """Emits events, in a separate transaction or in the application's transaction."""

    def __init__(self, store: Store, routes: Routes | None = None) -> None:
        self.store = store
        self.routes = routes

    def emit(
        self,
        event_type: str,
        payload: object = b"",
        *,
        queue: str = DEFAULT_QUEUE,
        headers: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        priority: int = 0,
        available_at: datetime | None = None,
        delay: float | timedelta | None = None,
        max_attempts: int | None = None,
        dedupe_key: str | None = None,
        dedupe_seconds: float = 86_400.0,
        connection: object | None = None,
    ) -> EventId:
        """Write one event; with `connection`, in the caller's transaction, so that both commit or neither does.

        `connection` is a SQLAlchemy Session or Connection, a psycopg, sqlite3 or PyMySQL connection, or a Django
        connection. A second emit with the same `dedupe_key` within `dedupe_seconds` adds nothing and returns the first
        event's id.
        """
        event = self.event(
            event_type,
            payload,
            queue=queue,
            headers=headers,
            partition_key=partition_key,
            ordering_key=ordering_key,
            priority=priority,
            available_at=available_at,
            delay=delay,
            max_attempts=max_attempts,
            dedupe_key=dedupe_key,
            dedupe_seconds=dedupe_seconds,
        )
        return self.emit_many([event], connection=connection)[0]

    def emit_many(self, events: Iterable[Event], *, connection: object | None = None) -> list[EventId]:
        """Write many events, all or none; on PostgreSQL with COPY, for 20 or more and if the driver supports COPY."""
        all_events = list(events)
        if self.routes is not None:
            self.routes.require({event.event_type for event in all_events})
        return self.store.append(all_events, connection=connection)

    def event(
        self,
        event_type: str,
        payload: object = b"",
        *,
        headers: Mapping[str, str] | None = None,
        delay: float | timedelta | None = None,
        **fields: Any,
    ) -> Event:
        """Return an unwritten event with its payload encoded, for `emit_many` and `insert`."""
        body, all_headers = encode_payload(payload, headers)
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        try:
            return Event(event_type=event_type, payload=body, headers=all_headers, delay_seconds=seconds, **fields)
        except TypeError as error:
            raise InvalidEvent(f"invalid event field: {error}") from error

    def insert(self, event: Event) -> Insert:
        """Return the INSERT that emits `event`, for async sessions: `await session.execute(outbox.insert(event))`."""
        if not self.store.capabilities.insert_into_view:
            raise NotSupported(
                "this database does not support INSERT into a view; use emit with a synchronous session's connection"
            )
        if self.routes is not None:
            self.routes.require([event.event_type])
        named = event if event.event_id else replace(event, event_id=new_event_id())
        values = {field.name: getattr(named, field.name) for field in fields(named)}
        return outbox_view.insert().values({**values, "headers": dict(named.headers) or None})

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
