"""Tables and columns as SQLAlchemy queries use them, for every SQL backend. The files in `migrations/` create them.

`penstock_events` contains the columns of an event that never change. A narrow row with the same seq contains the
others. This row is in the table pending, claimed or archive, according to the event's state; a transition moves the
row in one transaction.
"""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Dialect,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    Uuid,
)
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.types import Boolean, DateTime, Double, Float, TypeDecorator, TypeEngine

from penstock.model.times import from_micros, to_micros


class UtcTime(TypeDecorator[datetime]):
    """Point in time with its time zone. SQLite stores integer microseconds since 1970, because its date strings support
    neither comparison nor addition. MySQL stores a DATETIME in UTC, because it has no type with a time zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "sqlite":
            return dialect.type_descriptor(BigInteger())
        if dialect.name == "mysql":
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None or dialect.name == "postgresql":
            return value
        return to_micros(value) if dialect.name == "sqlite" else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        match dialect.name:
            case "sqlite":
                return from_micros(value)
            case "mysql":
                time: datetime = value.replace(tzinfo=UTC)
                return time
            case _:
                return value.astimezone(UTC)  # type: ignore[no-any-return]


class BinaryId(TypeDecorator[UUID]):
    """UUID stored as its 16 bytes."""

    impl = LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(mysql.BINARY(16))

    def process_bind_param(self, value: UUID | None, dialect: Dialect) -> Any:  # noqa: ARG002
        return None if value is None else value.bytes

    def process_result_value(self, value: Any, dialect: Dialect) -> UUID | None:  # noqa: ARG002
        return None if value is None else UUID(bytes=value)


metadata = MetaData()

# Store NULL for an event without headers: readers need not decode anything.
Headers = JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
# Ids are text on SQLite, readable and typeable in a shell.
Id = Uuid().with_variant(Uuid(native_uuid=False), "sqlite").with_variant(BinaryId(), "mysql")


def columns(kind: Any, *names: str) -> list[Column[Any]]:
    """Return columns with these names and one type."""
    return [Column(name, kind) for name in names]


def _changing() -> list[Column[Any]]:
    """Return the columns that move with an event from state to state."""
    return [
        Column("seq", BigInteger),
        *columns(Text, "queue", "ordering_key"),
        *columns(Integer, "priority", "attempts", "deliveries", "max_attempts", "replays", "suspect"),
        Column("available_at", UtcTime),
        Column("last_error", Text),
    ]


CHANGING = tuple(column.name for column in _changing())

events = Table(
    "penstock_events",
    metadata,
    Column("seq", BigInteger),
    Column("event_id", Id),
    Column("event_type", Text),
    Column("payload", LargeBinary),
    Column("headers", Headers),
    *columns(Text, "partition_key", "ordering_key"),
    Column("created_at", UtcTime),
    Column("origin", Id),
)

pending = Table("penstock_pending", metadata, *_changing())

claimed = Table("penstock_claimed", metadata, *_changing(), Column("lease_id", Id))

archive = Table(
    "penstock_archive",
    metadata,
    *_changing(),
    Column("state", Text),
    Column("settled_at", UtcTime),
    Column("lease_id", Id),
)

leases = Table(
    "penstock_leases",
    metadata,
    Column("lease_id", Id),
    *columns(Text, "queue", "claimant"),
    Column("token", Id),
    Column("claims", Integer),
    Column("moved", Boolean),
    Column("max_attempts", Integer),
    *columns(UtcTime, "claimed_at", "expires_at", "closed_at"),
)

# Timeline and audit trail: failures, releases, lost attempts, expired leases, replays and cancellations.
history = Table(
    "penstock_history",
    metadata,
    *columns(BigInteger, "id", "seq"),
    Column("at", UtcTime),
    Column("what", Text),
    Column("attempts", Integer),
    Column("lease_id", Id),
    *columns(Text, "by", "detail"),
)

relays = Table(
    "penstock_relays",
    metadata,
    Column("relay_id", Id),
    *columns(Text, "queue", "destination", "host"),
    *columns(UtcTime, "started_at", "seen_at"),
    Column("stopping", Boolean),
)

# Rows written by the tasks of a Spark write, until its commit turns them into events.
staged = Table(
    "penstock_staged",
    metadata,
    Column("write_id", Id),
    Column("batch_id", BigInteger),
    Column("place", Integer),
    Column("part_id", Id),
    Column("number", BigInteger),
    Column("event_id", Id),
    *columns(Text, "event_type", "queue"),
    Column("payload", LargeBinary),
    Column("headers", Headers),
    *columns(Text, "partition_key", "ordering_key"),
    *columns(Integer, "priority", "max_attempts"),
    Column("available_at", UtcTime),
    Column("delay_seconds", Double),
    Column("dedupe_key", Text),
    Column("dedupe_seconds", Double),
    Column("staged_at", UtcTime),
)

# Queues that are or were paused or limited, and the number of published events purged from each queue.
queues = Table(
    "penstock_queues",
    metadata,
    Column("queue", Text),
    Column("paused_at", UtcTime),
    Column("paused_by", Text),
    Column("max_claimed", Integer),
    Column("purged", BigInteger),
)

# Progress and result of an event, as recorded by its handler.
notes = Table(
    "penstock_notes",
    metadata,
    Column("seq", BigInteger),
    *columns(LargeBinary, "progress", "result"),
    Column("noted_at", UtcTime),
)

# View of each event as one row. An INSERT into the view emits an event, for async sessions and plain SQL.
outbox = Table(
    "penstock_outbox",
    metadata,
    Column("seq", BigInteger),
    Column("event_id", Id),
    *columns(Text, "event_type", "queue", "state"),
    Column("payload", LargeBinary),
    Column("headers", Headers),
    *columns(Text, "partition_key", "ordering_key"),
    *columns(Integer, "priority", "attempts", "deliveries", "max_attempts", "replays", "suspect"),
    Column("last_error", Text),
    *columns(UtcTime, "created_at", "available_at", "claimed_at"),
    Column("claimed_by", Text),
    *columns(UtcTime, "lease_expires_at", "published_at", "settled_at"),
    Column("dedupe_key", Text),
    *columns(Float, "dedupe_seconds", "delay_seconds"),
)
