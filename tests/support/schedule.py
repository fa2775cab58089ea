"""A pytest plugin: with `--dist loadfile`, at most two test processes get files that use Spark.

A Spark session needs a JVM that has to start and warm up. With three test processes, the third takes only files without
the marker `spark`, and ends when no such file is left.
"""

from pathlib import Path
from typing import Any

import pytest

SPARK_PROCESSES = 2


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler.loadfile import LoadFileScheduling

    class SparkFileScheduling(LoadFileScheduling):  # type: ignore[misc]
        """Scheduling by file, with files that use Spark only on the first processes."""

        def _assign_work_unit(self, node: Any) -> None:
            files = self._files_for(node)
            if not files:
                node.shutdown()
                return
            self.workqueue.move_to_end(files[0], last=False)
            super()._assign_work_unit(node)

        def _reschedule(self, node: Any) -> None:
            if not node.shutting_down and self.workqueue and not self._files_for(node):
                node.shutdown()  # the process still finishes its files
            super()._reschedule(node)

        def _files_for(self, node: Any) -> list[str]:
            """Return the waiting files that a process may take, preferred files first."""
            spark = [file for file in self.workqueue if _uses_spark(config.rootpath / file)]
            plain = [file for file in self.workqueue if file not in spark]
            return spark + plain if node in self.nodes[:SPARK_PROCESSES] else plain

    return SparkFileScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def _uses_spark(file: Path) -> bool:
    return "mark.spark" in file.read_text()
