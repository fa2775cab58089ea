"""The Spark session of the pipeline: its settings, the options of its JVM, and how to open one."""

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
    # The driver only schedules: a collector and a compiler without threads of their own start faster.
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    # Stopping a query in the middle of a batch overflowed the default stack.
    "-Xss8m",
    "-XX:-UsePerfData",
    f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}",
    "-Dlog4j2.disable.jmx=true",
    # An unusable class-data archive is not worth a warning: the JVM starts without.
    "-Xlog:disable",
)
# Where the JVM itself moves rows for hours, its better compiler pays: a third more rows, after a minute or two. The
# higher thresholds keep it to the hottest methods: by default it spends many minutes, and a fifth of the processors'
# time, on Spark's planning code, which runs a few times a batch.
LASTING_OPTIONS = (
    "-XX:TieredStopAtLevel=4",
    "-XX:Tier4InvocationThreshold=30000",
    "-XX:Tier4MinInvocationThreshold=4000",
    "-XX:Tier4CompileThreshold=60000",
    "-XX:Tier4BackEdgeThreshold=200000",
    # Nearly all objects die with their batch: room for several batches between two collections.
    "-Xmn256m",
)
# Spark puts these options before the user's own `spark.driver.extraJavaOptions`.
_OPTIONS_SETTING = "spark.driver.defaultJavaOptions"


def is_local(master: str) -> bool:
    """Whether the executors run on this machine: `local[…]`, or `local-cluster[…]` with processes of their own."""
    return re.match(r"local(-cluster)?(\[|$)", master) is not None


def with_attempts(master: str) -> str:
    """A plain local master never retries a task; ours gets as many attempts as a cluster gives."""
    found = re.fullmatch(r"local(?:\[([^,\]]+)\])?", master)
    return f"local[{found[1] or 1},{TASK_ATTEMPTS}]" if found else master


def session_settings(master: str) -> dict[str, str]:
    """Everything that Penstock asks of a session on `master`."""
    everywhere = {
        # A second copy of a running task would claim events of its own, for nothing.
        "spark.speculation": "false",
        # A worker keeps its connections to the store and the brokers from one slice to the next.
        "spark.python.worker.reuse": "true",
        "spark.ui.showConsoleProgress": "false",
        # Queries without a checkpoint of their own leave nothing behind.
        "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
        # What a query filters by, the store is asked for.
        FILTER_PUSHDOWN: "true",
        # A query that can't be stopped is an error to see, not a process that hangs.
        "spark.sql.streaming.stopTimeout": "60s",
    }
    return everywhere | (_local_settings() if is_local(master) else {})


def _local_settings() -> dict[str, str]:
    """What only makes sense where the executors share this machine; a cluster's administrators chose theirs."""
    return {
        "spark.ui.enabled": "false",
        # The name of this machine may resolve to an address that is gone, or that others can reach.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # Between Java and its Python workers: half the latency of TCP.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": _socket_folder(),
        # The default asks the local disk through processes of their own: 80 ms a batch.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
        "spark.python.daemon.module": "penstock.pipeline.spark.python_daemon",
        # What the driver can import, its tasks can.
        "spark.executorEnv.PYTHONPATH": _python_path(),
        # A worker keeps up to 64 MB of what a task took, for the next one: the kernel would clear every page again.
        # Whoever sets the one has to set the other: C's library then no longer adapts either.
        "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(64 << 20),
        "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(32 << 20),
        _OPTIONS_SETTING: " ".join(JAVA_OPTIONS),
    }


@cache
def _socket_folder() -> str:
    """Create a folder for the sockets between the JVM and its Python workers. Other users cannot connect to them."""
    folder, owner = tempfile.mkdtemp(prefix="ps-"), os.getpid()  # a short name: paths of sockets are limited

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def configure(builder: "SparkSession.Builder", *, master: str | None = None) -> "SparkSession.Builder":
    """Give a session builder of your own the settings that Penstock needs."""
    chosen = with_attempts(master or DEFAULT_MASTER)
    for name, value in session_settings(chosen).items():
        builder = builder.config(name, value)
    return builder.master(chosen) if master else builder


@contextmanager
def settings(spark: "SparkSession", values: Mapping[str, str]) -> Iterator[None]:
    """Settings of a session for as long as a query is started: the query keeps them."""
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
    """Open the session of this process, or return the one that is open. A new session has `jars` on its class path; a
    `lasting` one takes longer to reach its speed, and is faster then.

    The handler of Ctrl-C stays: PySpark would install one that cancels all jobs, and running work is to finish.
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
    """Return the error of a session that can't start, in one line if it is Spark's."""
    if java_is_gone(error):
        return gone(error)
    if not is_sparks(error):
        return error
    cause = root_cause(str(error))
    if "stopped SparkContext" in cause:  # another thread of the JVM has stopped it, and logged the reason
        cause = "the master is unreachable or rejected the application; see Spark's log"
    return PipelineError(f"cannot start Spark with master {master}: {cause}")


def _drop_stopped_context() -> None:
    """Forget a context that the JVM has stopped: PySpark would return it for ever."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    with suppress(Exception):  # the JVM is gone
        if context is not None and context._jsc.sc().isStopped():
            context.stop()


def _start_jvm(master: str, settings: Mapping[str, str], *, lasting: bool) -> None:
    """Start the JVM with PySpark's launcher, in a process group of its own.

    Signals to the driver's group, such as Ctrl-C or those of `timeout`, do not reach it: the driver finishes its work
    first. The JVM ends when its standard input does, and so with this process.
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
    """Return the setting with the JVM's options. On YARN and Kubernetes it belongs to the administrators."""
    if not is_local(master) and not master.startswith("spark://"):
        return {}
    # For each file of a checkpoint Hadoop starts a `chmod`, three in a micro-batch: 1.4 ms each instead of 2.4. Later
    # versions of Java warn of the setting.
    quick = ("-Djdk.lang.Process.launchMechanism=VFORK",) if (java_version(java_home) or 0) <= 21 else ()
    # Spark's local folders and unpacked native libraries: the JVM doesn't know TMPDIR.
    temporary = f"-Djava.io.tmpdir={tempfile.gettempdir()}"
    lasts = LASTING_OPTIONS if lasting else ()
    options = (*JAVA_OPTIONS, *quick, temporary, *lasts, *archive_options(java_home, home))
    return {_OPTIONS_SETTING: shlex.join(options)}


def _with_jars(settings: Mapping[str, str], jars: Sequence[Path]) -> dict[str, str]:
    """Add `jars` to the settings, beside those that are given."""
    given = [settings["spark.jars"]] if settings.get("spark.jars") else []
    return {**settings, **({"spark.jars": ",".join([*given, *map(str, jars)])} if jars else {})}


def is_running() -> bool:
    """Whether this process has its Java, with the class path that it started with."""
    context = getattr(sys.modules.get("pyspark.core.context"), "SparkContext", None)
    return context is not None and context._gateway is not None


def _python_variables(master: str) -> dict[str, str]:
    """Return the variables by which Spark finds Python, on this machine and on the nodes."""
    if is_local(master):
        # The JVM looks for data sources with the driver's Python, and not with whichever `python3` is found.
        python = os.environ.get("PYSPARK_PYTHON", sys.executable)
        own = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONPATH": _python_path()}
    else:
        # The Python that plans a stream beside the driver is the nodes', without Penstock.
        path = os.pathsep.join(filter(None, [str(parcel()), os.environ.get("PYTHONPATH")]))
        own = {"PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONPATH": path}
    return {**own, "PYTHONDONTWRITEBYTECODE": ""}


def _python_path() -> str:
    return os.pathsep.join(os.path.abspath(path) for path in sys.path if not path.endswith(".zip"))


def _keep_pandas_out() -> None:
    """Spare the driver half a second and the memory of pandas.

    To ask whether an argument is a NumPy value, PySpark imports its test helpers and with them pandas. What was
    never imported has no values.
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
