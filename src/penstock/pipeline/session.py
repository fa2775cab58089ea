"""The Spark session that everything in the pipeline runs on: its settings, and a fast way to open one."""

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.config import needs_extra
from penstock.pipeline.archive import archive_options
from penstock.pipeline.gateway import JAVA_OPTIONS, LASTING_OPTIONS, Gateway, spark_home, start_gateway
from penstock.pipeline.java import find_java
from penstock.pipeline.shipping import parcel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*]"
TASK_ATTEMPTS = 4
FILTER_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"

# What Spark's own launcher has to work out before Java starts: with one of these we leave the start to PySpark.
_LAUNCHER_SETTINGS = ("spark.jars", "spark.submit", "spark.driver.extra", "spark.driver.memory", "spark.plugins")
_LAUNCHER_VARIABLES = ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_REMOTE")


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
        # The default asks the local disk through processes of their own: 80 ms a batch.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
        "spark.python.daemon.module": "penstock.pipeline.daemon",
        # What the driver can import, its tasks can.
        "spark.executorEnv.PYTHONPATH": _python_path(),
        # A worker keeps up to 64 MB of what a task took, for the next one: the kernel would clear every page again.
        # Whoever sets the one has to set the other: C's library then no longer adapts either.
        "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(64 << 20),
        "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(32 << 20),
        # Read only when PySpark starts Java; `open_session` passes the same ones itself.
        "spark.driver.extraJavaOptions": " ".join(JAVA_OPTIONS),
    }


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
    """Open the session of this process, or return the one that is open. A new one has `jars` on its class path, too;
    one that is `lasting` takes longer to get into its stride, and is faster then.

    Ctrl-C stays what it was: PySpark would make it cancel all jobs, and running work is to end in its own time.
    """
    chosen = with_attempts(master or DEFAULT_MASTER)
    local = is_local(chosen)
    # Other clusters want more than an address: there Spark's launcher knows what.
    jars = () if is_running() else tuple(jars)
    starts = local or chosen.startswith("spark://")
    executors = not chosen.startswith("local[")
    gateway = _start_java(settings or {}, jars, lasting=lasting, executors=executors) if starts else None
    with needs_extra("the pipeline", "spark"):
        from pyspark.sql import SparkSession
    _keep_pandas_out()
    builder = configure(SparkSession.builder.appName(app_name), master=chosen)
    shared = jars if gateway is None or executors else ()
    for name, value in _with_jars(settings or {}, shared).items():
        builder = builder.config(name, value)
    with _ctrl_c_untouched(), _variables(**_spark_variables(gateway, local=local)):
        spark = builder.getOrCreate()
    if gateway is not None:
        # Where PySpark keeps its own: the process lives as long as the pipe to it is held.
        spark.sparkContext._gateway.proc = gateway.process  # type: ignore[union-attr]
    if not local:
        spark.sparkContext.addPyFile(str(parcel()))
    return spark


def _start_java(settings: Mapping[str, str], jars: Sequence[Path], *, lasting: bool, executors: bool) -> Gateway | None:
    """Start Java before anything of PySpark is imported, unless it runs already or needs Spark's launcher."""
    if is_running() or not starts_directly(settings, os.environ):
        return None
    java_home = find_java()
    # What Java runs beside the driver, to look for data sources, is this Python, and not whichever `python3` is.
    own = {"PYTHONPATH": _python_path(), "PYSPARK_DRIVER_PYTHON": sys.executable}
    environment = {**os.environ, **own}
    extra = (*(LASTING_OPTIONS if lasting else ()), *archive_options(java_home, spark_home(environment), environment))
    return start_gateway(java_home, environment, extra=extra, jars=jars, executors=executors)


def _with_jars(settings: Mapping[str, str], jars: Sequence[Path]) -> dict[str, str]:
    """For Spark's launcher, and for executors that are processes of their own."""
    given = [settings["spark.jars"]] if settings.get("spark.jars") else []
    return {**settings, **({"spark.jars": ",".join([*given, *map(str, jars)])} if jars else {})}


def is_running() -> bool:
    """Whether this process has its Java, with the class path that it started with."""
    context = getattr(sys.modules.get("pyspark.core.context"), "SparkContext", None)
    return context is not None and context._gateway is not None


def starts_directly(settings: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    """Whether nothing asks for Spark's own launcher: no setting, no variable, no file beside Spark."""
    configured = spark_home(environment) / "conf"
    return (
        not any(name.startswith(_LAUNCHER_SETTINGS) for name in settings)
        and not any(environment.get(name) for name in _LAUNCHER_VARIABLES)
        and not any((configured / name).exists() for name in ("spark-defaults.conf", "spark-env.sh"))
    )


def _spark_variables(gateway: Gateway | None, *, local: bool) -> dict[str, str]:
    """What PySpark reads from the environment while it opens a session."""
    if local:
        python = {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}
    else:
        # For the Python that Java starts beside the driver to plan a stream: it is the nodes', without Penstock.
        python = {"PYTHONPATH": os.pathsep.join(filter(None, [str(parcel()), os.environ.get("PYTHONPATH")]))}
    if gateway is not None:
        return python | gateway.connection()
    return python if is_running() else python | {"JAVA_HOME": str(find_java())}


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
def _ctrl_c_untouched() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


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
