"""Finds the jars by which Spark reads Kafka: Spark's connector, which no Python package brings.

They must be on the class path of Spark's Java before it starts, and so are looked for before a session is opened.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from penstock.model.errors import UsageError
from penstock.pipeline.spark.installation import core_jar, spark_home
from penstock.pipeline.spark.java import cache_folder

VARIABLE = "PENSTOCK_SPARK_JARS"
_LAUNCHER_VARIABLES = ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_REMOTE")
# The connector, and what it needs and Spark doesn't have.
PARTS = ("spark-sql-kafka-0-10", "spark-token-provider-kafka-0-10", "kafka-clients", "commons-pool2")


def connector_jars(folder: str | None = None, environment: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """The jars to put on the class path: of the folder that is named, else of where `make services` puts them.

    None if Spark's own folder has the connector, or its launcher has settings that may bring it. Otherwise a
    `UsageError` says what is missing, and how it is given.
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
    raise UsageError(f"Spark reads Kafka by a connector, and there is none: {ways_to_give_it(environment)}")


def coordinates(environment: Mapping[str, str] = os.environ) -> str:
    """What Maven knows the connector by, for the Spark that is installed."""
    core = core_jar(spark_home(environment))
    return f"org.apache.spark:{PARTS[0]}_{core.scala}:{core.version}"


def ways_to_give_it(environment: Mapping[str, str] = os.environ) -> str:
    """What a person can do about a connector that is missing."""
    package = coordinates(environment)
    return (
        f"it is {package}. Put its jars ({', '.join(PARTS)}) into a folder and name that, by jars= or {VARIABLE}; or "
        f'open the session with the setting "spark.jars.packages": "{package}", and run on that'
    )


def _is_configured(home: Path, environment: Mapping[str, str]) -> bool:
    """True if variables or files hold settings of Spark's launcher, which may name packages."""
    files = (home / "conf" / name for name in ("spark-defaults.conf", "spark-env.sh"))
    return any(map(environment.get, _LAUNCHER_VARIABLES)) or any(file.exists() for file in files)


def _jars_in(folder: Path) -> tuple[Path, ...]:
    missing = [part for part in PARTS if _find(folder, part) is None]
    if missing:
        raise UsageError(f"{folder} has no {missing[0]}*.jar, which Spark needs to read Kafka: {ways_to_give_it()}")
    return tuple(sorted(path.resolve() for path in folder.glob("*.jar")))


def _find(folder: Path, part: str) -> Path | None:
    return next(folder.glob(f"{part}*.jar"), None)
