"""An event exists if and only if its transaction committed, for every kind of connection."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
from psycopg.rows import dict_row, namedtuple_row, scalar_row
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import penstock
from penstock import EventId, Outbox, Outcome, Retry, Selection
from penstock.model.errors import NotSupported, StoreError, UsageError

Emit = Callable[[Any], object]


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def outbox(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Outbox]:
    servers = {"postgresql": "postgres_url", "mysql": "mariadb_url"}
    on_server = servers.get(request.param)
    url = request.getfixturevalue(on_server) if on_server else f"sqlite:///{tmp_path}/shop.db"
    with opened(url) as box:
        yield box


@pytest.fixture
def sqlite_outbox(tmp_path: Path) -> Iterator[Outbox]:
    with opened(f"sqlite:///{tmp_path}/shop.db") as box:
        yield box


@pytest.fixture
def postgres_outbox(postgres_url: str) -> Iterator[Outbox]:
    with opened(postgres_url) as box:
        yield box


@contextmanager
def opened(url: str) -> Iterator[Outbox]:
    with penstock.connect(url) as box:
        box.store.initialise()
        yield box


def types(outbox: Outbox) -> list[str]:
    return sorted(record.event_type for record in outbox.store.find(Selection(everything=True), limit=1_000).records)


def url_of(outbox: Outbox) -> str:
    return outbox.store.engine.url.render_as_string(hide_password=False)


def path_of(outbox: Outbox) -> str:
    return str(outbox.store.engine.url.database)


def as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


def first_id(outbox: Outbox) -> EventId:
    return outbox.store.find(Selection(everything=True), limit=1).records[0].event_id


def dsn_of(outbox: Outbox) -> str:
    return url_of(outbox).replace("postgresql+psycopg://", "postgresql://")


def check_commit_and_rollback(outbox: Outbox, emit_in: Callable[[Emit, bool], None]) -> None:
    """Emit and commit, then emit and roll back: one event with emit, and enough events for COPY with emit_many."""
    emit_in(lambda connection: outbox.emit("kept", {"a": 1}, connection=connection), True)
    emit_in(lambda connection: outbox.emit("gone", {"a": 1}, connection=connection), False)
    assert types(outbox) == ["kept"]
    many = [outbox.event("many", {"n": n}, ordering_key=f"k{n % 3}") for n in range(50)]
    lost = [outbox.event("lost", {"n": n}) for n in range(50)]
    emit_in(lambda connection: outbox.emit_many(many, connection=connection), True)
    emit_in(lambda connection: outbox.emit_many(lost, connection=connection), False)
    assert types(outbox) == ["kept", *["many"] * 50]


def test_emit_without_connection_commits(outbox: Outbox) -> None:
    event_id = outbox.emit("kept", "hello", headers={"a": "b"}, partition_key="p", priority=3, max_attempts=7)
    (record,) = outbox.store.find(Selection(ids=frozenset({event_id}))).records
    assert (record.payload, record.partition_key, record.priority, record.max_attempts) == (b"hello", "p", 3, 7)
    assert record.headers == {"a": "b", "content-type": "text/plain; charset=utf-8"}


def test_emit_many_stores_all_events_or_none(outbox: Outbox) -> None:
    first = outbox.event("kept", b"")
    (event_id,) = outbox.emit_many([first])
    twin = penstock.Event(event_type="twin", event_id=event_id)
    others = [outbox.event("other", b"") for _ in range(30)]
    for batch in ([others[0], twin], [*others, twin]):
        with pytest.raises(UsageError, match="already exists"):
            outbox.emit_many(batch)
    assert types(outbox) == ["kept"]


def test_sqlalchemy_session_emits_in_its_transaction(outbox: Outbox) -> None:
    engine = create_engine(url_of(outbox))

    def emit_in(emit: Emit, commit: bool) -> None:
        with Session(engine) as session:
            session.execute(text("SELECT 1"))
            emit(session)
            session.commit() if commit else session.rollback()

    check_commit_and_rollback(outbox, emit_in)
    engine.dispose()


def test_sqlalchemy_connection_emits_in_its_transaction(outbox: Outbox) -> None:
    engine = create_engine(url_of(outbox))

    def emit_in(emit: Emit, commit: bool) -> None:
        with engine.connect() as connection, connection.begin() as transaction:
            emit(connection)
            transaction.commit() if commit else transaction.rollback()

    check_commit_and_rollback(outbox, emit_in)
    engine.dispose()


def test_sqlalchemy_savepoint_rolls_back_its_events(outbox: Outbox) -> None:
    engine = create_engine(url_of(outbox))
    with Session(engine) as session, session.begin():
        outbox.emit("before", connection=session)
        with session.begin_nested() as savepoint:
            outbox.emit_many([outbox.event("gone") for _ in range(30)], connection=session)
            savepoint.rollback()
        outbox.emit("after", connection=session)
    assert types(outbox) == ["after", "before"]
    engine.dispose()


def test_sqlalchemy_autocommit_connection_emits_all_or_none(outbox: Outbox) -> None:
    engine = create_engine(url_of(outbox), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        outbox.emit("kept", connection=connection)
        with pytest.raises(UsageError, match="already exists"):
            outbox.emit_many(
                [outbox.event("gone"), penstock.Event(event_type="x", event_id=first_id(outbox))], connection=connection
            )
        outbox.emit("kept", connection=connection)
        assert types(outbox) == ["kept", "kept"]
    engine.dispose()


def test_session_subclass_and_scoped_session_are_accepted(outbox: Outbox) -> None:
    engine = create_engine(url_of(outbox))
    scope = scoped_session(sessionmaker(engine))

    class OurSession(Session):
        pass

    outbox.emit("scoped", connection=scope)
    scope.commit()
    with OurSession(engine) as session, session.begin():
        outbox.emit("ours", connection=session)
    assert types(outbox) == ["ours", "scoped"]
    scope.remove()
    engine.dispose()


@pytest.mark.parametrize("autocommit", [False, True])
def test_psycopg_connection_emits_in_its_transaction(postgres_outbox: Outbox, autocommit: bool) -> None:
    def emit_in(emit: Emit, commit: bool) -> None:
        dsn = dsn_of(postgres_outbox)
        with (
            psycopg.connect(dsn, autocommit=autocommit) as connection,
            connection.transaction(force_rollback=not commit),
        ):
            emit(connection)

    check_commit_and_rollback(postgres_outbox, emit_in)


def test_psycopg_autocommit_connection_commits_emit(postgres_outbox: Outbox) -> None:
    with psycopg.connect(dsn_of(postgres_outbox), autocommit=True) as connection:
        postgres_outbox.emit("kept", b"", ordering_key="k", connection=connection)
        assert connection.info.transaction_status.name == "IDLE"
    assert types(postgres_outbox) == ["kept"]


@pytest.mark.parametrize("row_factory", [dict_row, namedtuple_row, scalar_row])
def test_psycopg_connection_may_have_any_row_factory(postgres_outbox: Outbox, row_factory: Any) -> None:
    class OurConnection(psycopg.Connection[Any]):
        pass

    with OurConnection.connect(dsn_of(postgres_outbox), row_factory=row_factory) as connection:
        first = postgres_outbox.emit("deduped", dedupe_key="x", connection=connection)
        assert postgres_outbox.emit("deduped", dedupe_key="x", connection=connection) == first
        postgres_outbox.emit_many([postgres_outbox.event("many") for _ in range(30)], connection=connection)
        connection.commit()
        claim = postgres_outbox.store.claim("outbox", limit=50, claimant="test")
        outcomes: dict[int, Outcome] = {event.seq: Retry("x", 0) for event in claim.events}
        assert len(postgres_outbox.store.settle_in(connection, claim.lease, outcomes).retried) == 31


def test_failed_psycopg_transaction_stays_failed(postgres_outbox: Outbox) -> None:
    with psycopg.connect(dsn_of(postgres_outbox)) as connection:
        first = postgres_outbox.emit("gone", connection=connection)
        with pytest.raises(UsageError, match="already exists"):
            postgres_outbox.emit_many([penstock.Event(event_type="twin", event_id=first)], connection=connection)
        with pytest.raises(StoreError, match="aborted"):
            postgres_outbox.emit("late", connection=connection)
        connection.rollback()
        postgres_outbox.emit("kept", connection=connection)
    assert types(postgres_outbox) == ["kept"]


def test_async_psycopg_connection_is_refused_with_advice(postgres_outbox: Outbox) -> None:
    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(dsn_of(postgres_outbox)) as connection:
            with pytest.raises(UsageError, match="async"):
                postgres_outbox.emit("a", connection=connection)

    asyncio.run(run())
    assert types(postgres_outbox) == []


@pytest.mark.parametrize("isolation_level", ["", "IMMEDIATE", None])
def test_sqlite3_connection_emits_in_its_transaction(sqlite_outbox: Outbox, isolation_level: str | None) -> None:
    def emit_in(emit: Emit, commit: bool) -> None:
        connection = sqlite3.connect(path_of(sqlite_outbox), isolation_level=isolation_level)  # type: ignore[arg-type]
        if isolation_level is None:
            connection.execute("BEGIN")
        emit(connection)
        connection.execute("COMMIT" if commit else "ROLLBACK")
        connection.close()

    check_commit_and_rollback(sqlite_outbox, emit_in)


def test_sqlite3_autocommit_connection_commits_emit(sqlite_outbox: Outbox) -> None:
    connection = sqlite3.connect(path_of(sqlite_outbox), isolation_level=None)
    sqlite_outbox.emit("kept", b"", connection=connection)
    assert not connection.in_transaction
    connection.close()
    assert types(sqlite_outbox) == ["kept"]


@pytest.mark.parametrize("isolation_level", ["", None])
def test_sqlite3_subclass_with_any_row_factory_is_accepted(sqlite_outbox: Outbox, isolation_level: str | None) -> None:
    class OurConnection(sqlite3.Connection):
        pass

    path = path_of(sqlite_outbox)
    connection = sqlite3.connect(path, factory=OurConnection, isolation_level=isolation_level)  # type: ignore[arg-type]
    connection.row_factory = lambda cursor, row: dict(
        zip((column[0] for column in cursor.description), row, strict=True)
    )
    first = sqlite_outbox.emit("deduped", dedupe_key="x", connection=connection)
    assert sqlite_outbox.emit("deduped", dedupe_key="x", connection=connection) == first
    assert connection.execute("SELECT 1 AS one").fetchone() == {"one": 1}
    connection.commit()
    claim = sqlite_outbox.store.claim("outbox", limit=5, claimant="test")
    outcomes: dict[int, Outcome] = {event.seq: Retry("x", 0) for event in claim.events}
    assert len(sqlite_outbox.store.settle_in(connection, claim.lease, outcomes).retried) == 1
    connection.commit()
    connection.close()
    assert types(sqlite_outbox) == ["deduped"]


@pytest.fixture
def django_connection(outbox: Outbox) -> Iterator[Any]:
    import django
    from django.conf import settings
    from django.db import connections

    if not settings.configured:
        settings.configure(DATABASES={}, USE_TZ=True)
        django.setup()
    url = outbox.store.engine.url
    kind = {"sqlite": "sqlite3"}.get(url.get_backend_name(), url.get_backend_name())
    if kind == "mysql":
        pymysql.install_as_MySQLdb()  # Django imports mysqlclient; PyMySQL takes its place in this test
    place = {"NAME": url.database, "USER": url.username or "", "HOST": url.host or "", "PORT": url.port or ""}
    place |= {"PASSWORD": url.password or ""}
    configured = connections.configure_settings({"default": {"ENGINE": f"django.db.backends.{kind}", **place}})
    connections.databases["default"] = configured["default"]
    yield connections["default"]
    connections["default"].close()
    del connections["default"]


def test_django_connection_emits_in_its_transaction(outbox: Outbox, django_connection: Any) -> None:
    from django.db import transaction

    class Regret(Exception):
        pass

    def emit_in(emit: Emit, commit: bool) -> None:
        try:
            with transaction.atomic(using="default"):
                emit(django_connection)
                if not commit:
                    raise Regret
        except Regret:
            pass

    check_commit_and_rollback(outbox, emit_in)


def test_django_autocommit_connection_emits_all_or_none(outbox: Outbox, django_connection: Any) -> None:
    outbox.emit("kept", b"", ordering_key="k", connection=django_connection)
    assert types(outbox) == ["kept"]
    twins = [outbox.event("gone"), penstock.Event(event_type="twin", event_id=first_id(outbox))]
    with pytest.raises(UsageError, match="already exists"):
        outbox.emit_many(twins, connection=django_connection)
    assert types(outbox) == ["kept"]
    assert not django_connection.in_atomic_block


def test_django_savepoint_rolls_back_its_events(outbox: Outbox, django_connection: Any) -> None:
    from django.db import transaction

    with transaction.atomic(using="default"):
        outbox.emit("before", connection=django_connection)
        savepoint = transaction.savepoint(using="default")
        outbox.emit_many([outbox.event("gone") for _ in range(30)], connection=django_connection)
        transaction.savepoint_rollback(savepoint, using="default")
        outbox.emit("after", connection=django_connection)
    assert types(outbox) == ["after", "before"]


def test_django_without_time_zones_stores_correct_times(
    outbox: Outbox, django_connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without USE_TZ, Django's connections return times without a time zone."""
    from django.conf import settings

    monkeypatch.setattr(settings, "USE_TZ", False)
    django_connection.close()
    before = outbox.store.now()
    outbox.emit_many([outbox.event("many", delay=60) for _ in range(30)], connection=django_connection)
    outbox.emit("one", delay=60, dedupe_key="x", connection=django_connection)
    for record in outbox.store.find(Selection(everything=True)).records:
        assert before - timedelta(seconds=1) <= record.created_at <= outbox.store.now()
        assert record.available_at - record.created_at == timedelta(seconds=60)


def test_async_session_executes_insert_statement(outbox: Outbox) -> None:
    if not outbox.store.capabilities.insert_into_view:
        with pytest.raises(NotSupported, match="does not support INSERT into a view"):
            outbox.insert(outbox.event("a"))
        return
    url = url_of(outbox).replace("sqlite:", "sqlite+aiosqlite:")

    async def run() -> None:
        engine = create_async_engine(url)
        for name, commit in (("kept", True), ("gone", False)):
            async with AsyncSession(engine) as session:
                event = outbox.event(name, {"n": 1}, ordering_key="k", delay=0.0, dedupe_key=name, headers={"a": "b"})
                await session.execute(outbox.insert(event))
                await (session.commit() if commit else session.rollback())
        await engine.dispose()

    asyncio.run(run())
    (record,) = outbox.store.find(Selection(everything=True)).records
    assert (record.event_type, record.ordering_key, record.headers["a"]) == ("kept", "k", "b")
    claim = outbox.store.claim("outbox", limit=5, claimant="test")
    assert [event.event_id for event in claim.events] == [record.event_id]


def test_async_session_is_refused_with_advice(outbox: Outbox) -> None:
    engine = create_async_engine("sqlite+aiosqlite:///unused.db")
    able = outbox.store.capabilities.insert_into_view
    how = r"await session\.execute\(outbox\.insert" if able else "pass a synchronous session"

    class OurSession(AsyncSession):
        pass

    for kind in (AsyncSession, OurSession):
        with pytest.raises(UsageError, match=how):
            outbox.emit("a", connection=kind(engine))


def test_connection_to_different_database_kind_is_refused(postgres_outbox: Outbox, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "other.db")
    with pytest.raises(UsageError, match="connection is to sqlite, but store is on postgresql"):
        postgres_outbox.emit("a", connection=connection)
    connection.close()
    with pytest.raises(UsageError, match=r"unsupported connection type builtins\.object"):
        postgres_outbox.emit("a", connection=object())


@pytest.mark.parametrize("outbox", ["sqlite", "postgresql"], indirect=True)
def test_plain_sql_insert_emits_event(outbox: Outbox) -> None:
    marker = "%s" if "postgresql" in url_of(outbox) else "?"
    with outbox.store.engine.begin() as connection:
        connection.exec_driver_sql(
            f"INSERT INTO penstock_outbox (event_type, payload, queue) VALUES ('plain', {marker}, 'q')", (b"x",)
        )
    claim = outbox.store.claim("q", limit=5, claimant="test")
    assert [(event.event_type, event.payload) for event in claim.events] == [("plain", b"x")]
