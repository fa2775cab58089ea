"""The pipeline's Spark session: its settings, the options of its JVM, and how it is opened."""

import atexit
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.config.extras import needs_extra
from penstock.model.errors import PipelineError, UsageError
from penstock.pipeline.spark.class_archive import archive_options
from penstock.pipeline.spark.code_shipping import parcel
from penstock.pipeline.spark.errors import gone, is_sparks, java_is_gone, root_cause
from penstock.pipeline.spark.installation import home_without_zips, spark_home
from penstock.pipeline.spark.java import find_java, java_version, quiet_home
from penstock.runtime.signals import signals_restored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*]"
TASK_ATTEMPTS = 4
FILTER_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"

LOG_SETTINGS = Path(__file__).resolve().with_name("log4j2.properties")
JAVA_OPTIONS = (
    # The driver only schedules: the serial collector and the first-tier compiler start fewer threads, and faster.
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    # Stopping a query during a batch overflowed the default stack.
    "-Xss8m",
    "-XX:-UsePerfData",
    f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}",
    "-Dlog4j2.disable.jmx=true",
    # Suppress the warning about an unusable class-data archive: the JVM starts without it.
    "-Xlog:disable",
)
# For sessions in which the JVM itself moves rows for hours: after a minute or two, the optimising compiler raises the
# throughput by a third. The higher thresholds restrict this compiler to the hottest methods. With the default
# thresholds it spends many minutes, and a fifth of the processors' time, on Spark's planning code, which runs a few
# times per batch.
LASTING_OPTIONS = (
    "-XX:TieredStopAtLevel=4",
    "-XX:Tier4InvocationThreshold=30000",
    "-XX:Tier4MinInvocationThreshold=4000",
    "-XX:Tier4CompileThreshold=60000",
    "-XX:Tier4BackEdgeThreshold=200000",
    # Nearly all objects die with their batch: a young generation of this size holds several batches.
    "-Xmn256m",
)
# Spark puts these options before the user's own `spark.driver.extraJavaOptions`.
_OPTIONS_SETTING = "spark.driver.defaultJavaOptions"


def is_local(master: str) -> bool:
    """True if the executors run on this machine: `local[…]`, or `local-cluster[…]` with separate processes."""
    return re.match(r"local(-cluster)?(\[|$)", master) is not None


def with_attempts(master: str) -> str:
    """Return the master with TASK_ATTEMPTS if it is a plain local master, which never retries a task by default."""
    found = re.fullmatch(r"local(?:\[([^,\]]+)\])?", master)
    return f"local[{found[1] or 1},{TASK_ATTEMPTS}]" if found else master


def session_settings(master: str) -> dict[str, str]:
    """Return the settings that Penstock needs in a session on `master`."""
    everywhere = {
        # A speculative copy of a running task would claim more events, needlessly.
        "spark.speculation": "false",
        # A Python worker process reuses its connections to the store and the brokers in later slices.
        "spark.python.worker.reuse": "true",
        "spark.ui.showConsoleProgress": "false",
        # Delete the temporary checkpoints of queries that are started without a checkpoint folder.
        "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
        # Let the store evaluate a query's filters.
        FILTER_PUSHDOWN: "true",
        # Raise an error if a query cannot be stopped, instead of hanging.
        "spark.sql.streaming.stopTimeout": "60s",
    }
    return everywhere | (_local_settings() if is_local(master) else {})


def _local_settings() -> dict[str, str]:
    """Return the settings for executors on this machine. On a cluster, they are the administrators' choice."""
    return {
        "spark.ui.enabled": "false",
        # Use loopback: the machine's name may resolve to an outdated address, or to one that others can reach.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # Unix sockets between the JVM and its Python workers: half the latency of TCP.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": _socket_folder(),
        # The default manager starts processes for operations on the local disk: 80 ms per batch.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
        "spark.python.daemon.module": "penstock.pipeline.spark.python_daemon",
        # Tasks can import the same modules as the driver.
        "spark.executorEnv.PYTHONPATH": _python_path(),
        # Keep up to 64 MB of freed memory for a worker's next task: the kernel would have to clear every page again.
        # Both variables are needed: if one is set, the C library no longer adapts the other.
        "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(64 << 20),
        "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(32 << 20),
        _OPTIONS_SETTING: " ".join(JAVA_OPTIONS),
    }


@cache
def _socket_folder() -> str:
    """Create a folder for the sockets between the JVM and its Python workers. Other users cannot connect to them."""
    folder, owner = tempfile.mkdtemp(prefix="ps-"), os.getpid()  # a short name: a socket's path has a maximum length

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def configure(builder: "SparkSession.Builder", *, master: str | None = None) -> "SparkSession.Builder":
    """Add the settings that Penstock needs to a session builder."""
    chosen = with_attempts(master or DEFAULT_MASTER)
    for name, value in session_settings(chosen).items():
        builder = builder.config(name, value)
    return builder.master(chosen) if master else builder


@contextmanager
def settings(spark: "SparkSession", values: Mapping[str, str]) -> Iterator[None]:
    """Change settings of a session, and restore them at the end of the block.

    A query that is started inside the block keeps the changed settings.
    """
    before = {name: spark.conf.get(name, None) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, known in before.items():
            spark.conf.unset(name)
            if known is not None:
                spark.conf.set(name, known)


def open_session(
    master: str | None = None,
    app_name: str = "penstock",
    *,
    settings: Mapping[str, str] | None = None,
    jars: Sequence[Path] = (),
    lasting: bool = False,
) -> "SparkSession":
    """Open the session of this process, or return the open one.

    If this call starts the JVM, `jars` are on the JVM's class path. With `lasting`, the JVM takes longer to reach full
    speed, and is then faster. The process's handler of Ctrl-C is kept: PySpark's handler would cancel all Spark jobs,
    but running work must finish.
    """
    chosen = with_attempts(master or DEFAULT_MASTER)
    if chosen != "yarn" and not chosen.startswith(("local", "spark://", "k8s://")):
        raise UsageError(
            f"unknown Spark master {chosen!r}; expected local[…], local-cluster[…], spark://, k8s:// or yarn"
        )
    with needs_extra("the pipeline", "spark"):
        from pyspark.sql import SparkSession
    _keep_pandas_out()
    given = dict(settings or {})
    with signals_restored(), _variables(**_python_variables(chosen)):
        if not is_running():
            given = _with_jars(given, jars)
            _start_jvm(chosen, given, lasting=lasting)
        builder = configure(SparkSession.builder.appName(app_name), master=chosen)
        for name, value in given.items():
            builder = builder.config(name, value)
        try:
            spark = builder.getOrCreate()
            if not is_local(chosen):
                spark.sparkContext.addPyFile(str(parcel()))
        except Exception as error:
            _drop_stopped_context()
            raise _not_started(error, chosen) from None
    return spark


def _not_started(error: Exception, master: str) -> Exception:
    """Return the error for a session that failed to start: one line if Spark raised it, else unchanged."""
    if java_is_gone(error):
        return gone(error)
    if not is_sparks(error):
        return error
    cause = root_cause(str(error))
    if "stopped SparkContext" in cause:  # another thread of the JVM has stopped it, and logged the reason
        cause = "the master is unreachable or rejected the application; see Spark's log"
    return PipelineError(f"cannot start Spark with master {master}: {cause}")


def _drop_stopped_context() -> None:
    """Drop a Spark context that the JVM has stopped: PySpark would return it for every new session."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    with suppress(Exception):  # the JVM is gone
        if context is not None and context._jsc.sc().isStopped():
            context.stop()


def _start_jvm(master: str, settings: Mapping[str, str], *, lasting: bool) -> None:
    """Start the JVM with PySpark's launcher, in a separate process group.

    Signals to the driver's process group, such as Ctrl-C or those of `timeout`, do not reach the JVM: the driver
    finishes its work first. The JVM ends when its standard input is closed, and therefore with this process.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    plain = master.startswith("local[") and "SPARK_HOME" not in os.environ
    java_home, home = find_java(), home_without_zips() if plain else spark_home()
    with _variables(JAVA_HOME=str(quiet_home(java_home)), SPARK_HOME=str(home)):
        try:
            options = _java_options(master, java_home, home, lasting=lasting)
            conf = {**session_settings(master), "spark.master": master, **options, **settings}
            launched = SparkConf(loadDefaults=False).setAll([*conf.items()])
            gateway = launch_gateway(launched, {"process_group": 0})  # type: ignore[no-untyped-call]
        except PySparkRuntimeError:
            raise PipelineError("the JVM exited before Spark started; see its error message above, if any") from None
        except OSError as error:
            raise PipelineError(f"cannot start Spark: {error}") from None
    SparkContext._ensure_initialized(gateway=gateway)


def _java_options(master: str, java_home: Path, home: Path, *, lasting: bool) -> dict[str, str]:
    """Return the setting with the JVM's options; empty on YARN and Kubernetes, where administrators choose them."""
    if not is_local(master) and not master.startswith("spark://"):
        return {}
    # Hadoop starts a `chmod` for each checkpoint file, three per micro-batch: 1.4 ms each with this option, 2.4 ms
    # without. Java versions after 21 print a warning about the option.
    quick = ("-Djdk.lang.Process.launchMechanism=VFORK",) if (java_version(java_home) or 0) <= 21 else ()
    # The place of Spark's local folders and unpacked native libraries: the JVM ignores TMPDIR.
    temporary = f"-Djava.io.tmpdir={tempfile.gettempdir()}"
    lasts = LASTING_OPTIONS if lasting else ()
    options = (*JAVA_OPTIONS, *quick, temporary, *lasts, *archive_options(java_home, home))
    return {_OPTIONS_SETTING: shlex.join(options)}


def _with_jars(settings: Mapping[str, str], jars: Sequence[Path]) -> dict[str, str]:
    """Return the settings with `jars` appended to their `spark.jars`."""
    given = [settings["spark.jars"]] if settings.get("spark.jars") else []
    return {**settings, **({"spark.jars": ",".join([*given, *map(str, jars)])} if jars else {})}


def is_running() -> bool:
    """True if this process has started its JVM, after which the class path cannot change."""
    context = getattr(sys.modules.get("pyspark.core.context"), "SparkContext", None)
    return context is not None and context._gateway is not None


def _python_variables(master: str) -> dict[str, str]:
    """Return the environment variables by which Spark finds Python, on this machine and on the nodes."""
    if is_local(master):
        # Without PYSPARK_PYTHON the JVM would look up data sources with the first `python3` on the path.
        python = os.environ.get("PYSPARK_PYTHON", sys.executable)
        own = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONPATH": _python_path()}
    else:
        # Spark plans a stream on the driver's machine with the nodes' Python, which does not have Penstock installed.
        path = os.pathsep.join(filter(None, [str(parcel()), os.environ.get("PYTHONPATH")]))
        own = {"PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONPATH": path}
    return {**own, "PYTHONDONTWRITEBYTECODE": ""}


def _python_path() -> str:
    return os.pathsep.join(os.path.abspath(path) for path in sys.path if not path.endswith(".zip"))


def _keep_pandas_out() -> None:
    """Keep PySpark from importing pandas into the driver, which costs half a second and memory.

    To test if an argument is a NumPy value, PySpark imports its test helpers and with them pandas. As long as NumPy is
    not imported, no argument can be a NumPy value.
    """
    from pyspark.sql import types

    def is_scalar(_: Any, value: Any) -> bool:
        numpy = sys.modules.get("numpy")
        return numpy is not None and isinstance(value, numpy.generic)

    def is_array(_: Any, value: Any) -> bool:
        numpy = sys.modules.get("numpy")
        return numpy is not None and isinstance(value, numpy.ndarray) and value.ndim == 1

    types.NumpyScalarConverter.can_convert = is_scalar  # type: ignore[method-assign, assignment]
    types.NumpyArrayConverter.can_convert = is_array  # type: ignore[method-assign, assignment]


@contextmanager
def _variables(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
