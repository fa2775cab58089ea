"""The tables, for every SQL backend. An event is written once; its state is where its number lives.

`penstock_events` holds what never changes. A narrow row in pending, claimed or archive holds the rest,
and a transition moves that row from one to the other in one transaction.
"""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Dialect,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    Uuid,
    desc,
    text,
)
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.types import Boolean, DateTime, Double, Float, TypeDecorator, TypeEngine

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


class Moment(TypeDecorator[datetime]):
    """A point in time with its zone. SQLite has no such type: there it is microseconds since 1970, as a number,
    because numbers compare and add up where its date strings do neither. Nor has MySQL: there it is in UTC."""

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
                moment: datetime = value.replace(tzinfo=UTC)
                return moment
            case _:
                return value.astimezone(UTC)  # type: ignore[no-any-return]


class BinaryId(TypeDecorator[UUID]):
    """An id as its 16 bytes."""

    impl = LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(mysql.BINARY(16))

    def process_bind_param(self, value: UUID | None, dialect: Dialect) -> Any:  # noqa: ARG002
        return None if value is None else value.bytes

    def process_result_value(self, value: Any, dialect: Dialect) -> UUID | None:  # noqa: ARG002
        return None if value is None else UUID(bytes=value)


def to_micros(moment: datetime) -> int:
    return (moment - EPOCH) // MICROSECOND


def from_micros(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


metadata = MetaData()

# No headers is NULL, which costs a reader nothing to decode.
Headers = JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
# SQLite counts rows by an INTEGER primary key only.
Seq = BigInteger().with_variant(Integer(), "sqlite")
# Text on SQLite, so that a person with a shell can read and type it.
Id = Uuid().with_variant(Uuid(native_uuid=False), "sqlite").with_variant(BinaryId(), "mysql")
# What MySQL has in an index must have an end; what has none there is a LONGTEXT, because a TEXT has one too.
Name = Text().with_variant(String(255), "mysql")
Words = Text().with_variant(mysql.LONGTEXT(), "mysql")
Payload = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql")


def _changing() -> list[Column[Any]]:
    """The columns that travel with an event from state to state."""
    return [
        Column("seq", Seq, primary_key=True, autoincrement=False),
        Column("queue", Name, nullable=False),
        Column("ordering_key", Name),
        Column("priority", SmallInteger, nullable=False),
        Column("attempts", Integer, nullable=False),
        Column("deliveries", Integer, nullable=False),
        Column("max_attempts", Integer),
        Column("replays", Integer, nullable=False),
        Column("suspect", SmallInteger, nullable=False),
        Column("available_at", Moment, nullable=False),
        Column("last_error", Words),
    ]


CHANGING = tuple(column.name for column in _changing())

events = Table(
    "penstock_events",
    metadata,
    Column("seq", Seq, Identity(), primary_key=True),
    Column("event_id", Id, nullable=False, unique=True),
    Column("event_type", Name, nullable=False),
    Column("payload", Payload, nullable=False),
    Column("headers", Headers),
    Column("partition_key", Name),
    Column("ordering_key", Name),
    Column("created_at", Moment, nullable=False),
    Column("origin", Id),
)
# A copy, for one of several destinations, is found by the id of the event that it is a copy of.
Index(
    "penstock_events_origin",
    events.c.origin,
    postgresql_where=events.c.origin.is_not(None),
    sqlite_where=events.c.origin.is_not(None),
)

pending = Table("penstock_pending", metadata, *_changing())
# The claim's road: one probe per priority level, then by time, then by number.
Index(
    "penstock_pending_ready",
    pending.c.queue,
    desc(pending.c.priority),
    pending.c.available_at,
    pending.c.seq,
    postgresql_where=pending.c.ordering_key.is_(None),
    sqlite_where=pending.c.ordering_key.is_(None),
)
# The line of an ordering key.
Index(
    "penstock_pending_line",
    pending.c.queue,
    pending.c.ordering_key,
    pending.c.seq,
    postgresql_where=pending.c.ordering_key.is_not(None),
    sqlite_where=pending.c.ordering_key.is_not(None),
)

claimed = Table("penstock_claimed", metadata, *_changing(), Column("lease_id", Id, nullable=False))
Index("penstock_claimed_lease", claimed.c.lease_id, claimed.c.ordering_key)

archive = Table(
    "penstock_archive",
    metadata,
    *_changing(),
    Column("state", Text().with_variant(String(9), "mysql"), nullable=False),
    Column("settled_at", Moment, nullable=False),
    Column("lease_id", Id),
)
Index(
    "penstock_archive_dead",
    archive.c.queue,
    archive.c.seq,
    postgresql_where=text("state = 'DEAD'"),
    sqlite_where=text("state = 'DEAD'"),
)

leases = Table(
    "penstock_leases",
    metadata,
    Column("lease_id", Id, primary_key=True),
    Column("queue", Name, nullable=False),
    Column("claimant", Words, nullable=False),
    Column("token", Id, nullable=False),
    Column("claims", Integer, nullable=False),
    Column("moved", Boolean, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("claimed_at", Moment, nullable=False),
    Column("expires_at", Moment, nullable=False),
    Column("closed_at", Moment),
)
Index(
    "penstock_leases_open",
    leases.c.expires_at,
    postgresql_where=leases.c.closed_at.is_(None),
    sqlite_where=leases.c.closed_at.is_(None),
)
Index(
    "penstock_leases_closed",
    leases.c.closed_at,
    postgresql_where=leases.c.closed_at.is_not(None),
    sqlite_where=leases.c.closed_at.is_not(None),
)

# A row for each live ordering key: whose turn it is, from when on, and who holds it.
keys = Table(
    "penstock_keys",
    metadata,
    Column("queue", Name, primary_key=True),
    Column("ordering_key", Name, primary_key=True),
    Column("next_at", Moment, nullable=False),
    Column("lease_id", Id),
)
Index(
    "penstock_keys_ready",
    keys.c.queue,
    keys.c.next_at,
    postgresql_where=keys.c.lease_id.is_(None),
    sqlite_where=keys.c.lease_id.is_(None),
)
Index(
    "penstock_keys_lease",
    keys.c.lease_id,
    postgresql_where=keys.c.lease_id.is_not(None),
    sqlite_where=keys.c.lease_id.is_not(None),
)

dedupe = Table(
    "penstock_dedupe",
    metadata,
    Column("queue", Name, primary_key=True),
    Column("dedupe_key", Name, primary_key=True),
    Column("event_id", Id, nullable=False),
    Column("expires_at", Moment, nullable=False),
)
Index("penstock_dedupe_expiry", dedupe.c.expires_at)

# Every transition but the plain good way: the timeline, and the audit trail.
history = Table(
    "penstock_history",
    metadata,
    Column("id", Seq, Identity(), primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("at", Moment, nullable=False),
    Column("what", Words, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("lease_id", Id),
    Column("by", Words),
    Column("detail", Words),
)
Index("penstock_history_seq", history.c.seq, history.c.id)

relays = Table(
    "penstock_relays",
    metadata,
    Column("relay_id", Id, primary_key=True),
    Column("queue", Name, nullable=False),
    Column("destination", Words, nullable=False),
    Column("host", Words, nullable=False),
    Column("started_at", Moment, nullable=False),
    Column("seen_at", Moment, nullable=False),
    Column("stopping", Boolean, nullable=False),
)

# What the tasks of a Spark write have brought, until its commit makes events of it.
staged = Table(
    "penstock_staged",
    metadata,
    Column("write_id", Id, primary_key=True),
    Column("batch_id", BigInteger, primary_key=True, autoincrement=False),
    Column("place", Integer, primary_key=True, autoincrement=False),
    Column("part_id", Id, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("event_id", Id, nullable=False),
    Column("event_type", Name, nullable=False),
    Column("queue", Name, nullable=False),
    Column("payload", Payload, nullable=False),
    Column("headers", Headers),
    Column("partition_key", Name),
    Column("ordering_key", Name),
    Column("priority", SmallInteger, nullable=False),
    Column("max_attempts", Integer),
    Column("available_at", Moment),
    Column("delay_seconds", Double),
    Column("dedupe_key", Name),
    Column("dedupe_seconds", Double, nullable=False),
    Column("staged_at", Moment, nullable=False),
)

# The last batch of each streaming query that became events.
sinks = Table(
    "penstock_sinks",
    metadata,
    Column("query_id", Id, primary_key=True),
    Column("batch_id", BigInteger, nullable=False),
    Column("committed_at", Moment, nullable=False),
)

# Queues that somebody has paused or limited.
queues = Table(
    "penstock_queues",
    metadata,
    Column("queue", Name, primary_key=True),
    Column("paused_at", Moment),
    Column("paused_by", Words),
    Column("max_claimed", Integer),
)

# What a handler said of an event: how far it has come, and what came of it.
notes = Table(
    "penstock_notes",
    metadata,
    Column("seq", Seq, primary_key=True, autoincrement=False),
    Column("progress", Payload),
    Column("result", Payload),
    Column("noted_at", Moment, nullable=False),
)

# The view that shows an event as one row. Inserting into it emits: the way in for async sessions and plain SQL.
outbox = Table(
    "penstock_outbox",
    MetaData(),
    Column("seq", Seq),
    Column("event_id", Id),
    Column("event_type", Name),
    Column("queue", Name),
    Column("state", Words),
    Column("payload", Payload),
    Column("headers", Headers),
    Column("partition_key", Name),
    Column("ordering_key", Name),
    Column("priority", SmallInteger),
    Column("attempts", Integer),
    Column("deliveries", Integer),
    Column("max_attempts", Integer),
    Column("replays", Integer),
    Column("suspect", SmallInteger),
    Column("last_error", Words),
    Column("created_at", Moment),
    Column("available_at", Moment),
    Column("claimed_at", Moment),
    Column("claimed_by", Words),
    Column("lease_expires_at", Moment),
    Column("published_at", Moment),
    Column("settled_at", Moment),
    Column("dedupe_key", Name),
    Column("dedupe_seconds", Float),
    Column("delay_seconds", Float),
)
