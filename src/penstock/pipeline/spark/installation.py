"""The installed Spark: its folder and versions, found without importing PySpark."""

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from penstock.config.extras import needs_extra
from penstock.pipeline.spark.java import cache_folder


class CoreJar(NamedTuple):
    """Versions of Scala and Spark, as in the name of Spark's core jar."""

    scala: str
    version: str


def spark_home(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder that Spark is installed in."""
    if home := environment.get("SPARK_HOME"):
        return Path(home)
    with needs_extra("the pipeline", "spark"):
        spec = find_spec("pyspark")
        if spec is None or spec.origin is None:
            raise ImportError("pyspark")
    return Path(spec.origin).parent


def home_without_zips(environment: Mapping[str, str] = os.environ) -> Path:
    """Return a folder of links to the installed Spark, without `python/lib`.

    The JVM puts $SPARK_HOME/python/lib/pyspark.zip first on the path of each Python process that plans a data source,
    and bytecode of a zip is not cached. Four such processes start before a stream's first batch, and compiling took
    them 1.3 s of processor time.
    """
    home = spark_home(environment)
    linked = cache_folder(environment) / f"spark-home-{hashlib.sha256(str(home).encode()).hexdigest()[:12]}"
    try:
        linked.mkdir(parents=True, exist_ok=True)
        for name in ("bin", "conf", "jars"):
            with suppress(FileExistsError):
                (linked / name).symlink_to(home / name)
    except OSError:  # the cache folder is read-only
        return home
    return linked


def core_jar(home: Path) -> CoreJar:
    """Return the versions of Scala and Spark at `home`, or defaults if its core jar is missing."""
    core = next((home / "jars").glob("spark-core_*.jar"), None)
    if core is None:
        return CoreJar("2.13", "4")
    scala, _, version = core.stem.removeprefix("spark-core_").partition("-")
    return CoreJar(scala, version)
