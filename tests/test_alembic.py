"""Alembic in an application whose database holds the store: autogenerate leaves Penstock's tables unchanged."""

import io
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, create_engine, inspect

import penstock
from penstock import Outbox, Selection
from penstock.admin.doctor import Check, Level, examine
from penstock.alembic import PREFIX

GUIDE = Path(__file__).resolve().parent.parent / "docs" / "guides" / "stores.md"
ENV = """
from alembic import context
from sqlalchemy import Column, Index, Integer, MetaData, String, Table

connection = context.config.attributes["connection"]
target_metadata = MetaData()
orders = Table(
    "orders",
    target_metadata,
    Column("id", Integer, primary_key=True),
    Column("penstock_event_id", String(36)),
    Index("penstock_of_order", "penstock_event_id"),
)
seen = context.config.attributes["seen"]
{configure}

with context.begin_transaction():
    context.run_migrations()
"""
ONE_FILTER = """
import penstock.alembic

def noting(object_, name, type_, reflected, compare_to):
    seen.append(name)
    return True

filters = {{"include_object": noting, "{name}": penstock.alembic.{name}}}
context.configure(connection=connection, target_metadata=target_metadata, **filters)
"""


def from_the_guide() -> str:
    """Return the call of `context.configure` that the stores guide shows."""
    (block,) = re.findall(r"^```python\n(from penstock\.alembic.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    return textwrap.dedent(block)


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def outbox(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Outbox]:
    servers = {"postgresql": "postgres_url", "mysql": "mariadb_url"}
    on_server = servers.get(request.param)
    url = request.getfixturevalue(on_server) if on_server else f"sqlite:///{tmp_path}/shop.db"
    with penstock.connect(url) as box:
        box.store.initialise()
        yield box


@pytest.fixture
def connection(outbox: Outbox) -> Iterator[Connection]:
    """Open the application's connection to the store's database."""
    engine = create_engine(outbox.store.engine.url)
    with engine.connect() as opened:
        yield opened
    engine.dispose()


@pytest.fixture
def config(connection: Connection, tmp_path: Path) -> Config:
    """Create an application's migrations, as `alembic init` does, with an env.py that has one table."""
    config = Config(tmp_path / "alembic.ini", stdout=io.StringIO())
    command.init(config, str(tmp_path / "migrations"))
    config = Config(tmp_path / "alembic.ini", stdout=io.StringIO())
    config.attributes.update(connection=connection, seen=[])
    return config


def write_env(config: Config, configure: str) -> None:
    Path(config.get_main_option("script_location") or "", "env.py").write_text(ENV.format(configure=configure))


def test_every_table_and_view_has_excluded_prefix(outbox: Outbox) -> None:
    found = inspect(outbox.store.engine)
    names = [*found.get_table_names(), *found.get_view_names()]
    assert "penstock_events" in names
    assert [name for name in names if not name.startswith(PREFIX)] == []


def test_autogenerate_leaves_store_unchanged(outbox: Outbox, connection: Connection, config: Config) -> None:
    emitted = outbox.emit("order.placed", {"number": 1})
    write_env(config, from_the_guide())
    command.revision(config, autogenerate=True)
    command.upgrade(config, "head")
    command.check(config)  # the application's table and index exist, and autogenerate finds no difference
    assert "orders" in inspect(connection).get_table_names()
    assert [record.event_id for record in outbox.store.find(Selection()).records] == [emitted]


@pytest.mark.parametrize("name", ["include_name", "include_object"])
def test_either_filter_suffices(config: Config, name: str) -> None:
    write_env(config, ONE_FILTER.format(name=name))
    command.revision(config, autogenerate=True)
    command.upgrade(config, "head")
    command.check(config)


def test_excluded_tables_are_not_reflected(config: Config) -> None:
    write_env(config, ONE_FILTER.format(name="include_name"))
    command.revision(config, autogenerate=True)
    seen = config.attributes["seen"]
    assert "orders" in seen
    assert "penstock_events" not in seen


def alembic_checks(outbox: Outbox) -> list[Check]:
    return [check for check in examine(outbox.store) if check.name == "Alembic"]


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Outbox]:
    with penstock.connect(f"sqlite:///{tmp_path}/shop.db") as box:
        box.store.initialise()
        yield box


@pytest.mark.parametrize("template", ["generic", "pyproject"])
def test_doctor_warns_if_env_file_lacks_filters(
    embedded: Outbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    config = Config(tmp_path / "alembic.ini", toml_file=tmp_path / "pyproject.toml", stdout=io.StringIO())
    command.init(config, str(tmp_path / "migrations"), template=template)
    monkeypatch.chdir(tmp_path)
    (check,) = alembic_checks(embedded)
    assert check.level is Level.WARN
    assert f"in {tmp_path}/migrations/env.py, pass include_name and include_object of penstock.alembic" in check.detail
    with (tmp_path / "migrations" / "env.py").open("a") as env:
        env.write(from_the_guide())
    (check,) = alembic_checks(embedded)
    assert check.level is Level.OK


def test_doctor_searches_only_folders_of_repository(
    embedded: Outbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command.init(Config(tmp_path / "alembic.ini", stdout=io.StringIO()), str(tmp_path / "migrations"))
    folder = tmp_path / "src" / "shop"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    assert alembic_checks(embedded) == []
    (tmp_path / ".git").mkdir()
    assert len(alembic_checks(embedded)) == 1
    (tmp_path / "src" / ".git").mkdir()
    assert alembic_checks(embedded) == []


@pytest.mark.parametrize("content", ["", "[alembic", "[alembic]\nscript_location = nowhere\n"])
def test_doctor_ignores_unusable_alembic_ini(
    embedded: Outbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    (tmp_path / "alembic.ini").write_text(content)
    monkeypatch.chdir(tmp_path)
    assert alembic_checks(embedded) == []
