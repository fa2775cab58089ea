"""Create and upgrade the tables: run the numbered SQL files in `migrations/` that a database does not have yet.

A step is a file, `migrations/<dialect>/<number>_<name>.sql`. Its first line is a comment, the title that
`penstock init` prints; a statement ends with `;` before an empty line. Each step runs in a separate transaction, under
a lock that admits one process at a time, and is recorded in `penstock_version`.
"""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from sqlalchemy import Connection, text

from penstock.model.errors import NotInitialised, StoreConflict
from penstock.store.api import Upgrade

MIGRATIONS = Path(__file__).parent / "migrations"
# Version table and locks are the same as in releases before this runner: each recognises databases of the other.
VERSION_TABLE = "penstock_version"
CREATE_VERSION_TABLE = """
CREATE TABLE IF NOT EXISTS penstock_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT penstock_version_pkc PRIMARY KEY (version_num)
)
"""
UPGRADE_LOCK = 7_367_686_563
# Greatest wait for a table lock. While a statement waits for one, all later users of the table wait behind it. After
# the time-out the step is rolled back, and retried after a pause in which the other users proceed. The limit exceeds
# PostgreSQL's deadlock_timeout of 1 s, after which a waiting statement cancels an autovacuum that holds the table.
LOCK_SECONDS = 2
RETRY_SECONDS = 60.0
# The collation that compares names byte by byte, including trailing spaces, on MariaDB (True) and MySQL (False).
COLLATIONS = {True: "utf8mb4_nopad_bin", False: "utf8mb4_0900_bin"}


@dataclass(frozen=True, slots=True)
class Step:
    """One migration file of a dialect."""

    version: str
    title: str
    statements: Sequence[str]


def steps(dialect: str) -> list[Step]:
    """Read the migrations of a dialect, oldest first."""
    return [_read(path) for path in sorted((MIGRATIONS / dialect).glob("*.sql"))]


def _read(path: Path) -> Step:
    content = path.read_text(encoding="utf-8").rstrip(";\n")
    title = content.partition("\n")[0].removeprefix("-- ")
    return Step(path.name.partition("_")[0], title, content.split(";\n\n"))


def head(dialect: str) -> str:
    """Return the version of the newest migration."""
    return steps(dialect)[-1].version


def current(connection: Connection) -> str | None:
    """Return the version of the tables; None if there are none."""
    if not connection.dialect.has_table(connection, VERSION_TABLE):
        return None
    version: str | None = connection.exec_driver_sql("SELECT version_num FROM penstock_version").scalar()
    return version


def upgrade(transaction: Callable[[], AbstractContextManager[Connection]]) -> Upgrade:
    """Run the steps that the database does not have yet, each in a new `transaction`."""
    before, step = _advance(transaction)
    after, done = before, []
    while step is not None:
        done.append(f"{step.version}: {step.title}")
        after, step = _advance(transaction)
    assert after is not None
    return Upgrade(before, after, done)


def _advance(transaction: Callable[[], AbstractContextManager[Connection]]) -> tuple[str | None, Step | None]:
    """Run the next step, if any; return the version before the step, and the step."""
    deadline = time.monotonic() + RETRY_SECONDS
    while True:
        try:
            with transaction() as connection:
                _lock(connection)
                version = current(connection)
                step = _after(version, steps(connection.dialect.name))
                if step is not None:
                    run(connection, step)
                return version, step
        except StoreConflict as conflict:
            if time.monotonic() > deadline:
                raise StoreConflict(
                    f"cannot upgrade within {RETRY_SECONDS:.0f} s: other transactions or upgrades use the tables; "
                    "end long transactions and try again"
                ) from conflict
        time.sleep(LOCK_SECONDS * random.uniform(1, 2))


def _after(version: str | None, history: Sequence[Step]) -> Step | None:
    """Return the step after `version`; raise `NotInitialised` if only newer code knows this version."""
    versions = [None, *(step.version for step in history)]
    if version not in versions:
        raise NotInitialised(f"unknown table version {version!r}; upgrade Penstock")
    return next(iter(history[versions.index(version) :]), None)


def run(connection: Connection, step: Step) -> None:
    """Run a step and record its version, in the transaction of `connection`."""
    collation = COLLATIONS[bool(getattr(connection.dialect, "is_mariadb", False))]
    for statement in step.statements:
        # Pass no parameters: with a parameter list, even an empty one, drivers read % as the start of a placeholder.
        options = {"no_parameters": True}
        connection.exec_driver_sql(statement.replace("{collation}", collation), execution_options=options)
    if current(connection) is None:
        connection.exec_driver_sql(CREATE_VERSION_TABLE)
        record = "INSERT INTO penstock_version (version_num) VALUES (:version)"
    else:
        record = "UPDATE penstock_version SET version_num = :version"
    connection.execute(text(record), {"version": step.version})


def _lock(connection: Connection) -> None:
    """Make other upgrades of the database wait until this transaction ends. SQLite has one writer at a time anyway."""
    match connection.dialect.name:
        case "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": UPGRADE_LOCK})
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
        case "mysql":
            # A session lock, because each CREATE commits implicitly and would end a transaction's lock. The session
            # lock ends with the connection: detached, it is closed after the commit instead of returned to the pool.
            connection.detach()
            name = f"penstock-upgrade-{sha256(str(connection.engine.url.database).encode()).hexdigest()[:32]}"
            given = {"name": name, "wait": RETRY_SECONDS}
            if not connection.execute(text("SELECT GET_LOCK(:name, :wait)"), given).scalar():
                raise StoreConflict("another process is upgrading the tables; try again")
            connection.exec_driver_sql(f"SET SESSION lock_wait_timeout = {LOCK_SECONDS}")
