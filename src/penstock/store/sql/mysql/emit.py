"""Emits on MySQL and MariaDB: multi-row INSERTs, in the caller's transaction if there is one."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from penstock.model.errors import InvalidEvent
from penstock.model.event import Event, EventId
from penstock.store.event_ids import ids_for, new_event_id
from penstock.store.sql.columns import COLUMNS
from penstock.store.sql.dedupe import Named, Window, first_of_windows, window, without_duplicates
from penstock.store.sql.event_rows import event_row, pending_row
from penstock.store.sql.mysql import ordering_keys
from penstock.store.sql.mysql.transaction import utc
from penstock.store.sql.schema import CHANGING
from penstock.store.sql.transaction import Transaction

# The driver combines rows into multi-row statements of up to about 1 MB.
_INSERT = "INSERT INTO {} ({}) VALUES ({})"
_EVENT = ("event_id", "event_type", "payload", "headers", "partition_key", "ordering_key", "created_at")
EVENTS = _INSERT.format("penstock_events", ", ".join(_EVENT), ", ".join(["%s"] * len(_EVENT)))
PENDING = _INSERT.format("penstock_pending", COLUMNS, ", ".join(["%s"] * len(CHANGING)))

# The seqs of the inserted events. They increase in the order of the rows, but are not guaranteed to be consecutive.
NUMBERS = """
SELECT e.seq FROM JSON_TABLE(:rows, '$[*]' COLUMNS (given_id CHAR(32) PATH '$[0]')) given
STRAIGHT_JOIN penstock_events e ON e.event_id = UNHEX(given_id)
"""

# Opens a deduplication window unless it is open. Both servers support VALUES(). Assignments run from left to right, and
# both test `expires_at`, so that column is set last.
OPEN_WINDOWS = """
INSERT INTO penstock_dedupe (queue, dedupe_key, event_id, expires_at) VALUES (%s, %s, %s, %s)
ON DUPLICATE KEY UPDATE event_id = IF(expires_at <= {now}, VALUES(event_id), event_id),
    expires_at = IF(expires_at <= {now}, VALUES(expires_at), expires_at)
"""
# A locking read of rows that this transaction has locked already: in a caller's stricter transaction a plain read could
# miss the newest versions.
WINDOWS = """
SELECT dedupe_key, event_id FROM penstock_dedupe WHERE queue = :queue AND dedupe_key IN :names LOCK IN SHARE MODE
"""
NAME_OPENER = "UPDATE penstock_dedupe SET event_id = %s WHERE queue = %s AND dedupe_key = %s"

# Bytes. With payloads below this size no statement comes near any server's max_allowed_packet.
LARGE = 1_000_000
LARGEST = "SELECT @@max_allowed_packet"


def append(tx: Transaction, cursor: Any, events: Sequence[Event], now: datetime) -> list[EventId]:
    """Write events; return their ids, and for a duplicate the id of the first event."""
    _refuse_too_large(tx, events)
    ids = list(ids_for(events))
    written = list(zip(ids, events, strict=True))
    if any(event.dedupe_key is not None for event in events):
        opened, known = _open_windows(tx, cursor, written, now)
        ids = [known.get(window(event), event_id) for event_id, event in written]
        written = without_duplicates(written, opened)
    ordering_keys.hold(
        tx, cursor, ((event.queue, event.ordering_key) for _, event in written if event.ordering_key), now
    )
    if written:
        _write(tx, cursor, written, now)
    return ids


def _refuse_too_large(tx: Transaction, events: Sequence[Event]) -> None:
    """Raise `InvalidEvent` for payloads above max_allowed_packet, at which a server only closes the connection.

    The driver sends bytes as hexadecimal digits, two for each byte.
    """
    large = [event.payload for event in events if len(event.payload) > LARGE]
    if not large:
        return
    largest = int(tx.scalar(LARGEST))
    for payload in large:
        if 2 * len(payload) + 2 * LARGE > largest:
            raise InvalidEvent(
                f"payload of {len(payload):,} bytes, sent in hexadecimal, exceeds the server's max_allowed_packet of "
                f"{largest:,}; raise max_allowed_packet"
            )


def _write(tx: Transaction, cursor: Any, written: Sequence[Named], now: datetime) -> None:
    cursor.executemany(EVENTS, [event_row(event_id.bytes, event, now) for event_id, event in written])
    numbers = sorted(row[0] for row in tx.rows(NUMBERS, rows=[[event_id.hex] for event_id, _ in written]))
    pending = zip(numbers, written, strict=True)
    cursor.executemany(PENDING, [pending_row(seq, event, now, utc, _seconds) for seq, (_, event) in pending])


def _open_windows(
    tx: Transaction, cursor: Any, given: Sequence[Named], now: datetime
) -> tuple[dict[Window, Named], dict[Window | None, EventId]]:
    """Return the events that opened a window, and the event of each window.

    A window is opened under a new id, which no other emit can have stored: finding this id shows that the window was
    opened here. If the caller has set the event's id, the new id is then replaced by it.
    """
    first = first_of_windows(given)
    named = {key: event_id for key, (event_id, event) in first.items() if event.event_id is not None}
    marks = {key: new_event_id() if key in named else event_id for key, (event_id, _) in first.items()}
    rows = [(*key, marks[key].bytes, now + timedelta(seconds=first[key][1].dedupe_seconds)) for key in sorted(first)]
    cursor.executemany(OPEN_WINDOWS.format(now=f"'{now.isoformat(sep=' ')}'"), rows)
    found = _windows(tx, sorted(first))
    opened = {key: one for key, one in first.items() if found[key] == marks[key].bytes}
    for key in opened.keys() & named.keys():
        cursor.execute(NAME_OPENER, (named[key].bytes, *key))
    known: dict[Window | None, EventId] = {key: EventId(UUID(bytes=raw)) for key, raw in found.items()}
    return opened, known | {key: event_id for key, (event_id, _) in opened.items()}


def _windows(tx: Transaction, windows: Sequence[Window]) -> dict[Window, bytes]:
    found: dict[Window, bytes] = {}
    for queue, names in ordering_keys.in_bounds(windows):
        found |= {(queue, name): event_id for name, event_id in tx.rows(WINDOWS, queue=queue, names=names)}
    return found


def _seconds(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)
