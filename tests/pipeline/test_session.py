"""The settings of a session, and the options that its JVM starts with."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZipFile

import pytest

from penstock.model.errors import UsageError
from penstock.pipeline.spark import session
from penstock.pipeline.spark.class_archive import VARIABLE, archive_options, archive_path
from penstock.pipeline.spark.installation import home_without_zips, spark_home
from penstock.pipeline.spark.java import find_java
from penstock.pipeline.spark.session import (
    LOG_SETTINGS,
    configure,
    is_local,
    open_session,
    session_settings,
    with_attempts,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
def test_local_masters_get_task_retries(master: str, given: str) -> None:
    assert with_attempts(master) == given


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*,4]", "local-cluster[2,1,1024]"])
def test_local_session_has_local_driver_settings(master: str) -> None:
    assert is_local(master)
    settings = session_settings(master)
    assert settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.python.daemon.module"] == "penstock.pipeline.spark.python_daemon"
    assert str(Path(session.__file__).parents[3]) in settings["spark.executorEnv.PYTHONPATH"].split(":")
    assert settings.keys() >= {f"spark.executorEnv.MALLOC_{what}_THRESHOLD_" for what in ("TRIM", "MMAP")}


@pytest.mark.parametrize("master", ["yarn", "spark://local:7077", "k8s://https://local", "localhost"])
def test_cluster_settings_are_not_overridden(master: str) -> None:
    assert not is_local(master)
    settings = session_settings(master)
    assert settings["spark.speculation"] == "false"
    assert not [
        name for name in settings if name.startswith(("spark.driver.", "spark.executorEnv", "spark.ui.enabled"))
    ]
    assert "spark.python.daemon.module" not in settings


class Builder:
    """A session builder that records its settings."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}

    def config(self, name: str, value: str) -> "Builder":
        self.settings[name] = value
        return self

    def master(self, master: str) -> "Builder":
        return self.config("spark.master", master)


def test_configure_applies_settings_and_master() -> None:
    builder = Builder()
    configure(builder, master="local[2]")  # type: ignore[arg-type]
    assert builder.settings == {**session_settings("local[2,4]"), "spark.master": "local[2,4]"}


def test_configure_without_master_sets_no_master() -> None:
    builder = Builder()
    configure(builder)  # type: ignore[arg-type]
    assert "spark.master" not in builder.settings


@pytest.mark.spark
def test_sockets_to_python_workers_are_private(spark: "SparkSession") -> None:
    assert spark.sparkContext.parallelize(range(4), 2).map(abs).sum() == 6
    folder = Path(spark.conf.get("spark.python.unix.domain.socket.dir"))
    assert list(folder.glob("*.sock"))
    assert folder.stat().st_mode & 0o777 == 0o700


def test_package_imports_without_spark() -> None:
    code = "import sys, penstock.pipeline, penstock.pipeline.spark.session; sys.exit('pyspark' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_package_contains_log_settings() -> None:
    assert "rootLogger.level = error" in LOG_SETTINGS.read_text()


def test_session_settings_exist_in_spark_jars() -> None:
    """Check that the jars contain each setting's name, because Spark ignores unknown settings silently."""
    jars = [jar for part in ("core", "catalyst") for jar in (spark_home({}) / "jars").glob(f"spark-{part}_*.jar")]
    assert len(jars) == 2
    named = b"".join(archive.read(name) for archive in map(ZipFile, jars) for name in archive.namelist())
    for name in session_settings("local[2]"):
        assert name.startswith("spark.executorEnv.") or name.encode() in named, name


def make_installation(folder: Path) -> tuple[Path, Path]:
    """Create the folders of a JVM with a base archive, and of a Spark installation."""
    java, spark = folder / "java", folder / "spark"
    (java / "lib" / "server").mkdir(parents=True)
    (java / "lib" / "server" / "classes.jsa").touch()
    (java / "bin").mkdir()
    (java / "bin" / "java").touch()
    (spark / "jars").mkdir(parents=True)
    return java, spark


def test_archive_path_depends_on_jvm_and_spark(tmp_path: Path) -> None:
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


def test_archive_options_are_empty_if_archive_is_unusable(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    java, spark = make_installation(tmp_path)
    assert archive_options(java, spark, environment)
    assert archive_options(java, spark, {**environment, VARIABLE: "off"}) == ()
    assert archive_options(java, spark, {**environment, "HADOOP_CONF_DIR": "conf"}) == ()
    (tmp_path / "file").touch()
    assert archive_options(java, spark, {"XDG_CACHE_HOME": str(tmp_path / "file")}) == (), (
        "there is no folder to write to"
    )
    (spark / "conf").mkdir()
    assert archive_options(java, spark, environment) == ()
    (spark / "conf").rmdir()
    (java / "lib" / "server" / "classes.jsa").unlink()
    assert archive_options(java, spark, environment) == ()


def test_linked_spark_has_jars_and_no_zips(tmp_path: Path) -> None:
    _, spark = make_installation(tmp_path)
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "SPARK_HOME": str(spark)}
    linked = home_without_zips(environment)
    assert home_without_zips(environment) == linked
    assert (linked / "jars").samefile(spark / "jars")
    assert not (linked / "python").exists()


STARTS = """
from pathlib import Path
from penstock.pipeline import open_session
settings = {"spark.driver.extraJavaOptions": "-Dmine=yes", "spark.jars": "mine.jar"}
spark = open_session("local[1]", settings=settings, jars=[Path("ours.jar")])
"""
FAILING_JAVA = """\
#!/bin/sh
case "$*" in *launcher.Main*) exec "$REAL_JAVA" "$@";; esac
echo "Java got: $*" >&2
exit 3
"""


def test_failed_jvm_start_is_one_line_and_keeps_user_settings(tmp_path: Path) -> None:
    (tmp_path / "release").write_text('JAVA_VERSION="17.0.15"\n')
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text(FAILING_JAVA)
    java.chmod(0o755)
    environment = {**os.environ, "REAL_JAVA": str(find_java() / "bin" / "java"), "JAVA_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", STARTS], env=environment, capture_output=True, text=True, check=False)
    *_, command, error = [line for line in done.stderr.splitlines() if line.startswith(("Java got: ", "penstock."))]
    assert "-Xss8m" in command
    assert command.index("-XX:+UseSerialGC") < command.index("-Dmine=yes")
    assert "spark.jars=mine.jar,ours.jar" in command
    assert error.endswith("PipelineError: the JVM exited before Spark started; see its error message above, if any")


@pytest.mark.parametrize("master", ["sparc://host:7077", "host:7077", "yarn-cluster"])
def test_unknown_master_is_refused_before_jvm_starts(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(UsageError, match=f"unknown Spark master '{master}'; expected local"):
        open_session(master)


STREAM = """
from penstock import Streams
app = Streams()
app.stream("orders", parts=1)(lambda event, ctx: None)
"""
REFUSED_THEN_LOCAL = """
import sys
from penstock.model.errors import PipelineError
from penstock.pipeline import open_session
try:
    open_session(sys.argv[1])
except PipelineError as error:
    print(error)
print(open_session("local[1]").range(3).count())
"""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("command", ["relay --to null: --once", "streams run shop:app --once"])
def test_command_error_is_one_line_if_spark_cannot_start(command: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(STREAM)
    assert python("-m", "penstock", "init", folder=tmp_path).returncode == 0
    master = "local-cluster[1,1,100]"
    done = python("-m", "penstock", *command.split(), "--master", master, folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"error: cannot start Spark with master {master}: org.apache.spark.SparkException: Asked to launch cluster "
        "with 100 MiB/worker but requested 1024 MiB/executor"
    )
    assert "\tat " not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.spark
def test_session_can_be_opened_after_master_refusal(tmp_path: Path) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{reserved.getsockname()[1]}"
        done = python("-c", REFUSED_THEN_LOCAL, master, folder=tmp_path)
    assert done.stdout.splitlines() == [
        f"cannot start Spark with master {master}: the master is unreachable or rejected the application; "
        "see Spark's log",
        "3",
    ]


def python(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False)
