"""Starts Spark's Java process for a local master, at once and in the background.

PySpark goes through a shell script and a second Java process to work out a command line that is always the
same here, and imports itself before any of it. Started directly, Java boots while Python is still importing.
"""

import os
import shutil
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from penstock.config import needs_extra
from penstock.errors import PipelineError
from penstock.pipeline.java import java_version
from penstock.pipeline.words import Words

LOG_SETTINGS = Path(__file__).resolve().with_name("log4j2.properties")
START_SECONDS = 60.0
LAST_WORDS_SECONDS = 5.0
STDERR = 2

# What Spark asks of Java for its own sake: the list of its launcher's JavaModuleOptions, but for the vector module.
_SPARK_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(
        f"--add-opens={package}=ALL-UNNAMED"
        for package in (
            *("java.base/java.lang", "java.base/java.lang.invoke", "java.base/java.lang.reflect", "java.base/java.io"),
            *("java.base/java.net", "java.base/java.nio", "java.base/java.util", "java.base/java.util.concurrent"),
            *("java.base/java.util.concurrent.atomic", "java.base/jdk.internal.ref", "java.base/sun.nio.ch"),
            *("java.base/sun.nio.cs", "java.base/sun.util.calendar", "java.security.jgss/sun.security.krb5"),
        )
    ),
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
)

JAVA_OPTIONS = (
    # The driver schedules and little else: a collector and a compiler without threads of their own start faster.
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    # Stopping a query in the middle of a batch overflowed the default stack.
    "-Xss8m",
    "-XX:-UsePerfData",
    f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}",
    "-Dlog4j2.disable.jmx=true",
)
# Where Java itself moves the rows, for hours, its better compiler pays: a third more of them, after a minute or two.
# For what is really hot, that is: by its defaults it is busy for many minutes with all that Spark plans a batch by,
# which runs a few times for each, and takes a fifth of the processors' time from the batches for it.
LASTING_OPTIONS = (
    "-XX:TieredStopAtLevel=4",
    "-XX:Tier4InvocationThreshold=30000",
    "-XX:Tier4MinInvocationThreshold=4000",
    "-XX:Tier4CompileThreshold=60000",
    "-XX:Tier4BackEdgeThreshold=200000",
    # Nearly all that a batch makes is garbage with it: room for several before it is collected.
    "-Xmn256m",
)
# An unusable class-data archive is not worth a warning: Java goes on without it.
_QUIET_JAVA = "-Xlog:disable"


@dataclass(frozen=True, slots=True)
class Gateway:
    """A Java process that is starting or started; it ends when its standard input does, and so with this process."""

    process: subprocess.Popen[bytes]
    folder: Path
    words: threading.Thread
    """Shows what Java and its Pythons write to standard error, for as long as this process lives: what they have to say
    of its end, such as that nobody listens any more, is of no use to anyone."""

    def connection(self) -> dict[str, str]:
        """Wait for Java, and return the variables by which PySpark finds it."""
        info = self.folder / "connection"
        deadline = time.monotonic() + START_SECONDS
        try:
            while not info.exists():
                self._check(deadline)
                time.sleep(0.01)
            written = info.read_bytes()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
        port, length = struct.unpack(">ii", written[:8])
        return {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": written[8 : 8 + length].decode()}

    def _check(self, deadline: float) -> None:
        code = self.process.poll()
        if code is not None:
            self.words.join(LAST_WORDS_SECONDS)
            raise PipelineError(f"Java ended with code {code} before Spark was up; its reason is above, if it gave one")
        if time.monotonic() > deadline:
            self.process.kill()
            raise PipelineError(f"Java took more than {START_SECONDS:g} s to start; is the machine overloaded?")


def spark_home(environment: Mapping[str, str] = os.environ) -> Path:
    """Where Spark is installed, without importing it."""
    if home := environment.get("SPARK_HOME"):
        return Path(home)
    with needs_extra("the pipeline", "spark"):
        spec = find_spec("pyspark")
        if spec is None or spec.origin is None:
            raise ImportError("pyspark")
    return Path(spec.origin).parent


def start_gateway(
    java_home: Path,
    environment: Mapping[str, str],
    *,
    extra: tuple[str, ...] = (),
    jars: Sequence[Path] = (),
    executors: bool = False,
) -> Gateway:
    """Start Java; `extra` are further options for it, `jars` come behind Spark's own on its class path. With
    `executors` it is to start such processes, too."""
    home = spark_home(environment)
    folder = Path(tempfile.mkdtemp(prefix="penstock-"))
    command = [
        str(java_home / "bin" / "java"),
        *("-cp", os.pathsep.join([str(home / "jars" / "*"), *map(str, jars)])),
        f"-Xmx{environment.get('SPARK_DRIVER_MEMORY', '1g')}",
        *_spark_options(java_home),
        *JAVA_OPTIONS,
        _QUIET_JAVA,
        *extra,
        "org.apache.spark.api.python.PythonGatewayServer",
    ]
    variables = {
        **environment,
        "JAVA_HOME": str(java_home),
        "SPARK_HOME": str(home),
        "SPARK_SCALA_VERSION": core_jar(home).scala,
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(folder / "connection"),
    }
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    if not executors and _is_unpacked():
        # By this, Java puts the zipped PySpark first on the path of each Python that it starts to plan a query, and
        # nothing caches the bytecode of a zip: a second for each of them. Executors are all else that needs it.
        del variables["SPARK_HOME"]
    process, words = _started(command, variables)
    return Gateway(process, folder, words)


def _started(command: list[str], variables: dict[str, str]) -> tuple[subprocess.Popen[bytes], threading.Thread]:
    heard, said = os.pipe()
    try:
        # In a process group of its own, Java doesn't get the terminal's Ctrl-C: the driver stops it when work is done.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=said, env=variables, process_group=0)
    except OSError:
        os.close(heard)
        raise
    finally:
        os.close(said)
    words = threading.Thread(target=_show, args=(heard,), name="penstock-java-stderr", daemon=True)
    words.start()
    return process, words


def _show(heard: int) -> None:
    """Until all who could write have ended. Without a buffer, whose lock a thread that is cut off would keep."""
    words = Words()
    try:
        while told := os.read(heard, 65_536):
            _say(words.heard(told))
        _say(words.rest())
    finally:
        os.close(heard)


def _say(told: bytes) -> None:
    with suppress(OSError):  # there is no standard error any more
        while told:
            told = told[os.write(STDERR, told) :]


def _is_unpacked() -> bool:
    """Whether this Python has its PySpark from a folder, and whoever has its path has it, too."""
    spec = find_spec("pyspark")
    return spec is not None and spec.origin is not None and Path(spec.origin).is_file()


def _spark_options(java_home: Path) -> tuple[str, ...]:
    version = java_version(java_home) or 0
    # For each file of a checkpoint Hadoop starts a process, `chmod`: without a third one between, in half the time.
    # Later Java may complain of it.
    quick = ("-Djdk.lang.Process.launchMechanism=VFORK",) if 17 <= version <= 21 else ()
    # Java 24 removed this package, and complains when it is named.
    opened = () if version >= 24 else ("--add-opens=java.base/sun.security.action=ALL-UNNAMED",)
    return (*_SPARK_OPTIONS, *quick, *opened)


class CoreJar(NamedTuple):
    """What the name of Spark's core jar tells."""

    scala: str
    version: str


def core_jar(home: Path) -> CoreJar:
    """The versions of the Spark at `home`. It wants that of Scala to build the command of an executor."""
    core = next((home / "jars").glob("spark-core_*.jar"), None)
    if core is None:
        return CoreJar("2.13", "4")
    scala, _, version = core.stem.removeprefix("spark-core_").partition("-")
    return CoreJar(scala, version)
