"""Emits by plain SQL: events that cannot be delivered are refused; in tables of older releases they become dead letters
at the upgrade."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from databases import to_version
from sqlalchemy import text

from penstock.model.errors import InvalidEvent
from penstock.model.event import Event
from penstock.model.lifecycle import State
from penstock.model.outcome import PUBLISHED
from penstock.model.selection import Selection
from penstock.store.registry import open_store
from penstock.store.sql.store import SqlStore

ANY = ["sqlite", "postgres"]
FAR = {"sqlite": "253402300800000000", "postgres": "'infinity'"}
LONG = "'" + 256 * "x" + "'"

# Column, value in SQL, and the start of the error message.
REFUSED = [
    ("event_type", "''", "event_type must"),
    ("event_type", LONG, "event_type must"),
    ("queue", "''", "queue must"),
    ("queue", LONG, "queue must"),
    ("partition_key", LONG, "partition_key must"),
    ("ordering_key", "''", "ordering_key must"),
    ("dedupe_key", LONG, "dedupe_key must"),
    ("headers", "'[1]'", "headers must be a JSON object of strings"),
    ("headers", "'7'", "headers must be a JSON object of strings"),
    ("headers", """'{"a": 1}'""", "headers must be a JSON object of strings"),
    ("headers", """'{"a": ["b"]}'""", "headers must be a JSON object of strings"),
    ("headers", """'{"a": null}'""", "headers must be a JSON object of strings"),
    ("priority", "101", "priority must"),
    ("priority", "-101", "priority must"),
    ("max_attempts", "0", "max_attempts must"),
    ("delay_seconds", "-1", "delay_seconds must"),
    ("delay_seconds", "1e12", "delay_seconds must"),
    ("dedupe_seconds", "0", "dedupe_seconds must"),
]
REFUSED_BY_SQLITE = [
    ("event_type", "x'00'", "event_type must"),
    ("event_id", "'one'", "event_id must be a UUID"),
    ("event_id", f"'{31 * '0'}g'", "event_id must be a UUID"),
    ("event_id", "7", "event_id must be a UUID"),
    ("headers", "'{'", "headers must be a JSON object of strings"),
    ("headers", "7", "headers must be a JSON object of strings"),
    ("priority", "'high'", "priority must"),
    ("priority", "0.5", "priority must"),
    ("max_attempts", "'many'", "max_attempts must"),
    ("available_at", "'2026-11-19 12:00:00'", "available_at must be microseconds"),
    ("available_at", "9e18", "available_at must be microseconds"),
    ("created_at", "-9e18", "created_at must be microseconds"),
    ("delay_seconds", "'soon'", "delay_seconds must"),
]
REFUSED_BY_POSTGRES = [
    ("available_at", "'infinity'", "available_at must lie in the years 1 to 9999"),
    ("available_at", "'-infinity'", "available_at must lie in the years 1 to 9999"),
    ("available_at", "'0044-03-15 BC'", "available_at must lie in the years 1 to 9999"),
    ("available_at", "'12000-01-01'", "available_at must lie in the years 1 to 9999"),
    ("created_at", "'infinity'", "created_at must lie in the years 1 to 9999"),
    ("delay_seconds", "'NaN'", "delay_seconds must"),
    ("dedupe_seconds", "'NaN'", "dedupe_seconds must"),
]
EVERYWHERE = [(dialect, *case) for dialect in ANY for case in REFUSED]
EVERYWHERE += [("sqlite", *case) for case in REFUSED_BY_SQLITE]
EVERYWHERE += [("postgres", *case) for case in REFUSED_BY_POSTGRES]

Open = Callable[[str], SqlStore]


@pytest.fixture
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    stores: list[SqlStore] = []

    def open_on(dialect: str) -> SqlStore:
        url = f"sqlite:///{tmp_path}/p.db" if dialect == "sqlite" else request.getfixturevalue("postgres_url")
        store = open_store(url)
        assert isinstance(store, SqlStore)
        stores.append(store)
        return store

    yield open_on
    for store in stores:
        store.close()


def emit(store: SqlStore, **values: str) -> None:
    columns = {"event_type": "'plain'", **values}
    with store.transaction() as connection:
        given = f"INSERT INTO penstock_outbox ({', '.join(columns)}) VALUES ({', '.join(columns.values())})"
        connection.exec_driver_sql(given, execution_options={"no_parameters": True})


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, postgres_server: Any) -> Iterator[dict[str, SqlStore]]:
    """An empty store on each database, shared by the tests in which every event is refused."""
    url = postgres_server.create_database()
    stores = {
        "sqlite": open_store(f"sqlite:///{tmp_path_factory.mktemp('plain')}/p.db"),
        "postgres": open_store(url),
    }
    for store in stores.values():
        store.initialise()
    yield stores
    for store in stores.values():
        store.close()
    postgres_server.drop_database(url)


@pytest.mark.parametrize(("dialect", "column", "value", "message"), EVERYWHERE)
def test_plain_sql_emit_of_invalid_event_is_refused(
    both: dict[str, SqlStore], dialect: str, column: str, value: str, message: str
) -> None:
    store = both[dialect]
    with pytest.raises(InvalidEvent, match=f"^penstock_outbox: {message}"):
        emit(store, **{column: value})
    assert not store.find(Selection(everything=True)).records
    assert not store.claim("outbox", limit=10, claimant="test").events


@pytest.mark.parametrize("dialect", ANY)
def test_plain_sql_values_at_limits_are_accepted(opened: Open, dialect: str) -> None:
    store = opened(dialect)
    store.initialise()
    emit(store, priority="100", max_attempts="1", delay_seconds="0", headers="""'{"a": "b"}'""", queue="'q'")
    emit(store, priority="-100", delay_seconds="0.5", dedupe_seconds="0.001", headers="'null'", event_type="'ä'")
    emit(store, headers="NULL", priority="NULL", max_attempts="NULL", available_at="NULL", payload="NULL")
    records = store.find(Selection(everything=True)).records
    assert sorted((record.priority, dict(record.headers)) for record in records) == [
        (-100, {}),
        (0, {}),
        (100, {"a": "b"}),
    ]


UNREADABLE = [
    *((dialect, "headers", "'[1]'", "headers that are no JSON object of strings") for dialect in ANY),
    *((dialect, "headers", """'{"a": 1}'""", "headers that are no JSON object of strings") for dialect in ANY),
    *((dialect, "available_at", FAR[dialect], "a time") for dialect in ANY),
    *((dialect, "created_at", FAR[dialect], "a time") for dialect in ANY),
    ("postgres", "available_at", "'-infinity'", "a time outside the years 1 to 9999"),
    ("postgres", "available_at", "'0044-03-15 BC'", "a time outside the years 1 to 9999"),
    ("sqlite", "available_at", "'soon'", "a time that is not in the years 1 to 9999"),
    ("sqlite", "event_id", "'one'", "an event_id that is no UUID ('one')"),
    ("sqlite", "headers", "'{'", "headers that are no JSON object of strings"),
    ("sqlite", "priority", "'high'", "a priority or max_attempts that is no integer"),
    ("sqlite", "max_attempts", "'many'", "a priority or max_attempts that is no integer"),
]


@pytest.mark.parametrize("key", ["NULL", "'k'"])
@pytest.mark.parametrize(("dialect", "column", "value", "error"), UNREADABLE)
def test_upgrade_makes_unreadable_events_dead_letters(
    opened: Open, dialect: str, column: str, value: str, error: str, key: str
) -> None:
    store = opened(dialect)
    to_version(store, "0004")
    emit(store, payload="'before'", ordering_key=key)
    emit(store, **{column: value, "payload": "'bad'", "ordering_key": key})
    emit(store, payload="'behind'", ordering_key=key)
    store.initialise()

    held = store.claim("outbox", limit=10, claimant="test")
    assert [event.payload for event in held.events] == [b"before", b"behind"]
    store.settle(held.lease, dict.fromkeys((event.seq for event in held.events), PUBLISHED))
    (dead,) = store.find(Selection(states=frozenset({State.DEAD}))).records
    assert dead.payload == b"bad"
    assert dead.last_error is not None
    assert dead.last_error.startswith(f"emitted by plain SQL with {error}")
    assert [entry.what for entry in store.history(dead.event_id)] == ["died"]

    assert store.replay(Selection(ids=frozenset({dead.event_id}))) == 1
    (again,) = store.claim("outbox", limit=10, claimant="test").events
    assert (again.payload, again.ordering_key) == (b"bad", None if key == "NULL" else "k")
    if column == "headers":
        assert again.headers == {"penstock-unreadable-headers": value.strip("'")}
    assert again.created_at.year < 9999


@pytest.mark.parametrize("dialect", ANY)
def test_upgrade_keeps_readable_events_unchanged(opened: Open, dialect: str) -> None:
    store = opened(dialect)
    to_version(store, "0004")
    emitted = store.append([Event(event_type="a", headers={"a": "b"}, delay_seconds=60), Event(event_type="b")])
    before = store.find(Selection(everything=True)).records
    store.initialise()
    assert store.find(Selection(everything=True)).records == before
    assert {record.event_id for record in before} == set(emitted)


def test_failed_emit_leaves_no_events_in_open_transaction(opened: Open) -> None:
    """On SQLite, a transaction can continue after a failed statement."""
    store = opened("sqlite")
    store.initialise()
    (known,) = store.append([Event(event_type="a")])
    with store.transaction() as connection:
        connection.execute(text("CREATE TABLE effects (number integer)"))
        with pytest.raises(InvalidEvent, match="already exists"):
            store.append([Event(event_type="new"), Event(event_type="a", event_id=known)], connection=connection)
    with store.transaction() as connection:
        assert connection.execute(text("SELECT count(*) FROM penstock_events")).scalar() == 1
        assert connection.execute(text("SELECT count(*) FROM effects")).scalar() == 0
