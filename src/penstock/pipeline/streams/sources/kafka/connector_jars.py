"""Find the jars of Spark's Kafka connector, which no Python package contains.

The jars must be on the class path when the JVM starts, so they are located before a session is opened.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from penstock.model.errors import UsageError
from penstock.pipeline.spark.installation import core_jar, spark_home
from penstock.pipeline.spark.java import cache_folder

VARIABLE = "PENSTOCK_SPARK_JARS"
_LAUNCHER_VARIABLES = ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_REMOTE")
# The connector and its dependencies that Spark lacks.
PARTS = ("spark-sql-kafka-0-10", "spark-token-provider-kafka-0-10", "kafka-clients", "commons-pool2")


def connector_jars(folder: str | None = None, environment: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Return the jars to add to the class path: from the named folder, else from the folder that `make services` fills.

    The folder is named by `folder` or by an environment variable. Return no jars if Spark's own folder has the
    connector, or if settings of Spark's launcher may add it. Otherwise raise a `UsageError` that names the missing jar
    and the ways to provide it.
    """
    named = folder or environment.get(VARIABLE)
    if named:
        return _jars_in(Path(named))
    home = spark_home(environment)
    if _find(home / "jars", PARTS[0]) is not None:
        return ()
    fetched = cache_folder(environment) / f"spark-kafka-{core_jar(home).version}"
    if fetched.is_dir():
        return _jars_in(fetched)
    if _is_configured(home, environment):
        return ()
    raise UsageError(f"Spark's Kafka connector not found; {ways_to_give_it(environment)}")


def coordinates(environment: Mapping[str, str] = os.environ) -> str:
    """Return the connector's Maven coordinates for the installed version of Spark."""
    core = core_jar(spark_home(environment))
    return f"org.apache.spark:{PARTS[0]}_{core.scala}:{core.version}"


def ways_to_give_it(environment: Mapping[str, str] = os.environ) -> str:
    """Return the text for error messages that says how to provide a missing connector."""
    package = coordinates(environment)
    return (
        f"put the jars of {package} ({', '.join(PARTS)}) into a folder and set jars= or {VARIABLE}, or open the Spark "
        f"session with spark.jars.packages={package}"
    )


def _is_configured(home: Path, environment: Mapping[str, str]) -> bool:
    """True if environment variables or files configure Spark's launcher, and so may name packages."""
    files = (home / "conf" / name for name in ("spark-defaults.conf", "spark-env.sh"))
    return any(map(environment.get, _LAUNCHER_VARIABLES)) or any(file.exists() for file in files)


def _jars_in(folder: Path) -> tuple[Path, ...]:
    missing = [part for part in PARTS if _find(folder, part) is None]
    if missing:
        raise UsageError(f"{folder} has no {missing[0]}*.jar of Spark's Kafka connector; {ways_to_give_it()}")
    return tuple(sorted(path.resolve() for path in folder.glob("*.jar")))


def _find(folder: Path, part: str) -> Path | None:
    return next(folder.glob(f"{part}*.jar"), None)
