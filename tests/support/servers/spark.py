"""A standalone Spark cluster for tests: a master and workers, each in a separate JVM, on this machine."""

import json
import os
import signal
import urllib.request
from collections.abc import Mapping
from typing import Any

from penstock.pipeline.spark.installation import core_jar, spark_home
from penstock.pipeline.spark.java import find_java, quiet_home
from tests.support.processes import command_of, free_port, living
from tests.support.servers.base import Server

_SMALL = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class _SparkServer(Server):
    """Base of master and worker."""

    end_signal = signal.SIGTERM
    main_class = ""

    def __init__(self, *, settings: Mapping[str, object] | None = None) -> None:
        super().__init__(settings=settings)
        self.web_port = 0

    def _prepare(self) -> None:
        self.web_port = free_port()

    def _command(self) -> list[str]:
        java_home, home = find_java(), spark_home(os.environ)
        # A worker passes these variables on to its executors.
        variables = [
            f"SPARK_HOME={home}",
            f"JAVA_HOME={quiet_home(java_home)}",
            "SPARK_LOCAL_IP=127.0.0.1",
            f"SPARK_SCALA_VERSION={core_jar(home).scala}",
        ]
        java = [
            "env",
            *variables,
            str(java_home / "bin" / "java"),
            *_SMALL,
            f"-Djava.io.tmpdir={self.folder}",
            "-cp",
            str(home / "jars" / "*"),
        ]
        address = ["--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self.web_port)]
        return [*java, self.main_class, *address, *self._arguments()]

    def _arguments(self) -> list[str]:
        return []

    def _page(self) -> dict[str, Any]:
        """Return the status that the web page reports; empty if the server doesn't answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.web_port}/json/", timeout=5) as answer:
                page: dict[str, Any] = json.load(answer)
        except (OSError, ValueError):
            return {}
        return page


class SparkMaster(_SparkServer):
    """The cluster manager, which assigns the workers' cores to applications."""

    name = "Spark-master"
    main_class = "org.apache.spark.deploy.master.Master"

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def workers(self) -> int:
        """Return the number of registered workers."""
        return int(self._page().get("aliveworkers", 0))

    def _answers(self) -> bool:
        return self._page().get("url") == self.url


class SparkWorker(_SparkServer):
    """A worker, which starts executors as child processes."""

    name = "Spark-worker"
    main_class = "org.apache.spark.deploy.worker.Worker"

    def __init__(self, master: str, *, cores: int = 1, memory: str = "1g") -> None:
        super().__init__()
        self._master = master
        self._resources = ["--cores", str(cores), "--memory", memory]

    def executors(self) -> list[int]:
        """Return the process ids of the worker's executors."""
        return [pid for pid, parent in living().items() if parent == self.pid and b"ExecutorBackend" in command_of(pid)]

    def _arguments(self) -> list[str]:
        return [*self._resources, "--work-dir", str(self.folder / "work"), self._master]

    def _answers(self) -> bool:
        return self._page().get("masterurl") == self._master
