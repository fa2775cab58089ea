"""Creating and upgrading the tables, with Alembic. Safe to repeat, and safe to run from several places at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from penstock.errors import NotInitialised

MIGRATIONS = Path(__file__).parent / "migrations"
VERSION_TABLE = "penstock_version"
# A number that only Penstock locks, so that two upgrades of one database wait for each other.
UPGRADE_LOCK = 7_367_686_563


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What an upgrade did: from where, to where, by which steps."""

    before: str | None
    after: str
    steps: Sequence[str]


def upgrade(connection: Connection) -> Upgrade:
    """Bring the tables up to this code, in the transaction of `connection`."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": UPGRADE_LOCK})
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    before = current(connection)
    steps = _steps(before)
    if steps:
        command.upgrade(config, "head")
    return Upgrade(before, head(), steps)


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
