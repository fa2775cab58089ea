"""Creating and upgrading the tables, with Alembic. Safe to repeat, and safe to run from several places at once."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from penstock.errors import NotInitialised, StoreConflict

MIGRATIONS = Path(__file__).parent / "migrations"
VERSION_TABLE = "penstock_version"
# A number that only Penstock locks, so that two upgrades of one database wait for each other.
UPGRADE_LOCK = 7_367_686_563
UPGRADE_WAIT_SECONDS = 30
# The collations that compare names byte by byte, trailing spaces included: each server has its own name for it.
COLLATIONS = {True: "utf8mb4_nopad_bin", False: "utf8mb4_0900_bin"}


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What an upgrade did: from where, to where, by which steps."""

    before: str | None
    after: str
    steps: Sequence[str]


def upgrade(connection: Connection) -> Upgrade:
    """Bring the tables up to this code, in the transaction of `connection`."""
    with _alone(connection):
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        config.attributes["connection"] = connection
        before = current(connection)
        steps = _steps(before)
        if steps:
            command.upgrade(config, "head")
        return Upgrade(before, head(), steps)


@contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    """Two upgrades of one database wait for each other. SQLite has one writer at a time anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": UPGRADE_LOCK})
    if connection.dialect.name != "mysql":
        yield
        return
    # Of the session, not the transaction, which the first CREATE would end; and by name for the whole server.
    database = str(connection.engine.url.database)
    name = {"name": f"penstock-upgrade-{sha256(database.encode()).hexdigest()[:32]}"}
    if not connection.execute(text("SELECT GET_LOCK(:name, :wait)"), name | {"wait": UPGRADE_WAIT_SECONDS}).scalar():
        raise StoreConflict("another process has been upgrading the tables for a long time; try again")
    raw: Any = connection.connection.dbapi_connection
    try:
        yield
        raw.commit()  # before the next one may look
    finally:
        connection.execute(text("SELECT RELEASE_LOCK(:name)"), name)


def run_beside(file: str, connection: Connection) -> None:
    """Run the statements that lie beside a migration, in the SQL of the database."""
    path = Path(file).with_suffix(f".{connection.dialect.name}.sql")
    collation = COLLATIONS[bool(getattr(connection.dialect, "is_mariadb", False))]
    for statement in path.read_text().split("\n--;\n"):
        connection.exec_driver_sql(statement.replace("{collation}", collation))


def current(connection: Connection) -> str | None:
    """The version of the tables; None where there are none."""
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return context.get_current_revision()


def head() -> str:
    """The version that this code wants."""
    revision = ScriptDirectory(str(MIGRATIONS)).get_current_head()
    assert revision is not None
    return revision


def require_known(connection: Connection) -> None:
    """Refuse tables that newer code made and this code doesn't know."""
    version = current(connection)
    known = {script.revision for script in ScriptDirectory(str(MIGRATIONS)).walk_revisions()}
    if version is not None and version not in known:
        raise NotInitialised(f"the tables are at version {version}, which this Penstock doesn't know: upgrade Penstock")


def _steps(before: str | None) -> list[str]:
    script = ScriptDirectory(str(MIGRATIONS))
    steps = [f"{one.revision}: {one.doc}" for one in script.walk_revisions("base", "head")]
    done = 0 if before is None else [one.revision for one in script.walk_revisions("base", "head")].index(before)
    pending = steps if before is None else steps[:done]
    return pending[::-1]
