"""The settings of a session and the start of Java, without starting either."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import PipelineError
from penstock.pipeline import session
from penstock.pipeline.archive import VARIABLE, archive_options, archive_path
from penstock.pipeline.gateway import LOG_SETTINGS, spark_home, start_gateway
from penstock.pipeline.session import configure, is_local, session_settings, with_attempts


@pytest.mark.parametrize(
    ("master", "given"),
    [
        ("local", "local[1,4]"),
        ("local[*]", "local[*,4]"),
        ("local[8]", "local[8,4]"),
        ("local[8,2]", "local[8,2]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("spark://host:7077", "spark://host:7077"),
        ("yarn", "yarn"),
    ],
)
def test_local_masters_retry_tasks_as_clusters_do(master: str, given: str) -> None:
    assert with_attempts(master) == given


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*,4]", "local-cluster[2,1,1024]"])
def test_masters_on_this_machine(master: str) -> None:
    assert is_local(master)
    settings = session_settings(master)
    assert settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.python.daemon.module"] == "penstock.pipeline.daemon"
    assert str(Path(session.__file__).parents[2]) in settings["spark.executorEnv.PYTHONPATH"].split(":")
    assert settings.keys() >= {f"spark.executorEnv.MALLOC_{what}_THRESHOLD_" for what in ("TRIM", "MMAP")}


@pytest.mark.parametrize("master", ["yarn", "spark://local:7077", "k8s://https://local", "localhost"])
def test_a_cluster_keeps_what_its_administrators_chose(master: str) -> None:
    assert not is_local(master)
    settings = session_settings(master)
    assert settings["spark.speculation"] == "false"
    assert not [
        name for name in settings if name.startswith(("spark.driver.", "spark.executorEnv", "spark.ui.enabled"))
    ]
    assert "spark.python.daemon.module" not in settings


class Builder:
    """Writes down what it is told, as a session builder does."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}

    def config(self, name: str, value: str) -> "Builder":
        self.told[name] = value
        return self

    def master(self, master: str) -> "Builder":
        return self.config("spark.master", master)


def test_configure_applies_the_settings_and_the_master() -> None:
    builder = Builder()
    configure(builder, master="local[2]")  # type: ignore[arg-type]
    assert builder.told == {**session_settings("local[2,4]"), "spark.master": "local[2,4]"}


def test_configure_without_a_master_leaves_it_to_the_builder() -> None:
    builder = Builder()
    configure(builder)  # type: ignore[arg-type]
    assert "spark.master" not in builder.told


@pytest.mark.parametrize(
    ("settings", "environment", "directly"),
    [
        ({}, {}, True),
        ({"spark.sql.shuffle.partitions": "4"}, {}, True),
        ({"spark.jars.packages": "a:b:1"}, {}, False),
        ({"spark.driver.memory": "4g"}, {}, False),
        ({}, {"PYSPARK_GATEWAY_PORT": "1"}, False),
        ({}, {"PYSPARK_SUBMIT_ARGS": "--jars x.jar pyspark-shell"}, False),
    ],
)
def test_java_is_started_directly_unless_sparks_launcher_is_needed(
    settings: dict[str, str], environment: dict[str, str], directly: bool
) -> None:
    assert session.starts_directly(settings, environment) is directly


def test_the_package_imports_without_spark() -> None:
    code = "import sys, penstock.pipeline, penstock.pipeline.session; sys.exit('pyspark' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_log_settings_ship_with_the_package() -> None:
    assert "rootLogger.level = error" in LOG_SETTINGS.read_text()


def test_settings_that_a_spark_has_never_heard_of_would_be_ignored_silently() -> None:
    """So their names are looked up in the jars."""
    jars = spark_home({}) / "jars"
    named = subprocess.run(
        ["sh", "-c", f"for jar in '{jars}'/spark-core_*.jar '{jars}'/spark-catalyst_*.jar; do unzip -p $jar; done"],
        capture_output=True,
        check=False,
    ).stdout
    if not named:
        pytest.skip("unzip is not installed")
    for name in session_settings("local[2]"):
        assert name.startswith("spark.executorEnv.") or name.encode() in named, name


def make_installation(folder: Path) -> tuple[Path, Path]:
    """Lay out a Java with an archive of its own, and a Spark."""
    java, spark = folder / "java", folder / "spark"
    (java / "lib" / "server").mkdir(parents=True)
    (java / "lib" / "server" / "classes.jsa").touch()
    (java / "bin").mkdir()
    (java / "bin" / "java").touch()
    (spark / "jars").mkdir(parents=True)
    return java, spark


def test_archive_belongs_to_one_java_and_one_spark(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    java, spark = make_installation(tmp_path / "one")
    other_java, other_spark = make_installation(tmp_path / "other")
    pairs = [(java, spark), (other_java, spark), (java, other_spark)]
    assert len({archive_path(*pair, environment) for pair in (*pairs, (java, spark))}) == 3


def test_archive_is_written_once_and_then_used(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    java, spark = make_installation(tmp_path)
    archive = archive_path(java, spark, environment)
    fresh = [archive_options(java, spark, environment)[0].partition("-XX:ArchiveClassesAtExit=")[2] for _ in range(3)]
    assert len(set(fresh)) == 3, "each JVM writes a file of its own"
    abandoned, unfinished, complete = map(Path, fresh)
    abandoned.write_bytes(bytes(8))
    os.utime(abandoned, (0, 0))
    unfinished.write_bytes(bytes(8))
    complete.write_bytes(b"complete")
    assert archive_options(java, spark, environment) == (f"-XX:SharedArchiveFile={archive}",)
    assert archive.read_bytes() == b"complete"
    assert set(archive.parent.iterdir()) == {archive, unfinished}


def test_start_without_archive(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    java, spark = make_installation(tmp_path)
    assert archive_options(java, spark, environment)
    assert archive_options(java, spark, {**environment, VARIABLE: "off"}) == ()
    assert archive_options(java, spark, {**environment, "HADOOP_CONF_DIR": "conf"}) == ()
    (spark / "conf").mkdir()
    assert archive_options(java, spark, environment) == ()
    (spark / "conf").rmdir()
    (java / "lib" / "server" / "classes.jsa").unlink()
    assert archive_options(java, spark, environment) == ()


@pytest.mark.parametrize("executors", [True, False])
def test_what_java_says_is_shown_and_only_who_starts_executors_hears_where_spark_is(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], executors: bool
) -> None:
    """By `SPARK_HOME` it would put the zipped PySpark on the path of every Python that it starts."""
    (tmp_path / "release").write_text('JAVA_VERSION="17.0.15"\n')
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text('#!/bin/sh\necho "Spark is in: $SPARK_HOME" >&2\nexit 3\n')
    java.chmod(0o755)
    gateway = start_gateway(tmp_path, os.environ, executors=executors)
    with pytest.raises(PipelineError, match="ended with code 3"):
        gateway.connection()
    assert gateway.process.stdin is not None
    gateway.process.stdin.close()
    assert capfd.readouterr().err.strip() == f"Spark is in: {spark_home() if executors else ''}".strip()
