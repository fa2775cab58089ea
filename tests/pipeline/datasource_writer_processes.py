"""A stream that emits numbers, in a separate process, for tests that kill the process and check the events."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from sqlalchemy import func, select

from penstock.model.selection import Selection
from penstock.outbox import Outbox
from penstock.store.sql.schema import staged
from tests.support import crashes
from tests.support.processes import living, wait_until

FILES = 2
ROWS = 200
RUN_SECONDS = 180.0

SCRIPT = """
import json, sys
from penstock.pipeline import open_session, register
from tests.support import crashes

given = json.loads(sys.argv[1])
crashes.arm()
spark = open_session(given["master"])
register(spark)
from tests.support.crashing_sink import CrashingDataSource
spark.dataSource.register(CrashingDataSource)
lines = spark.readStream.option("maxFilesPerTrigger", 1).text(given["files"])
events = lines.selectExpr("'number.counted' AS event_type", "value AS payload").repartition(given["partitions"])
sink = events.writeStream.format("penstock").option("store", given["store"]).trigger(availableNow=True)
sink.option("checkpointLocation", given["checkpoint"]).start().awaitTermination()
"""


class NumberStream:
    """Files of numbers, a checkpoint, and the store that the numbers are emitted to, in one batch per file."""

    def __init__(self, folder: Path, url: str, outbox: Outbox) -> None:
        self._folder = folder
        self._url = url
        self.store = outbox.store
        (folder / "in").mkdir()
        for file in range(FILES):
            numbers = range(file * ROWS, (file + 1) * ROWS)
            (folder / "in" / f"{file}.txt").write_text("".join(f"{number}\n" for number in numbers))

    @property
    def plan(self) -> Path:
        """File with the plan of a crash that must happen only once, in any of the processes."""
        return self._folder / "plan"

    def run(self, cores: int, partitions: int, crash: str = "") -> int:
        """Emit the numbers of the files; return the exit code after all processes of the session have ended."""
        scratch = tempfile.mkdtemp(prefix="sink-")
        given = {
            "master": f"local[{cores}]",
            "partitions": partitions,
            "files": str(self._folder / "in"),
            "store": self._url,
            "checkpoint": str(self._folder / "checkpoint"),
        }
        temporary = {"SPARK_LOCAL_DIRS": scratch, "JDK_JAVA_OPTIONS": f"-Djava.io.tmpdir={scratch}", "TMPDIR": scratch}
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", SCRIPT, json.dumps(given)],
                stdout=log,
                stderr=log,
                env={**os.environ, crashes.VARIABLE: crash, **temporary},
                start_new_session=True,
            )
        code = process.wait(RUN_SECONDS)
        assert wait_until(lambda: not _of_session(process.pid), 60), (
            f"outlived their stream: {_of_session(process.pid)}"
        )
        shutil.rmtree(scratch)
        return code

    @property
    def _log(self) -> Path:
        return self._folder / "stream.log"

    @property
    def log(self) -> str:
        return self._log.read_text()

    def emitted(self) -> Counter[int]:
        """Return the number of events for each number."""
        return Counter(int(record.payload) for record in self.store.find(Selection(), limit=100_000).records)

    def staged(self) -> int:
        with self.store.transaction() as connection:
            return int(connection.execute(select(func.count()).select_from(staged)).scalar_one())

    def committed(self) -> list[int]:
        """Return the last committed batch of each query, as recorded in the store."""
        with self.store.transaction() as connection:
            return list(connection.exec_driver_sql("SELECT batch_id FROM penstock_sinks").scalars())

    def known_to_spark(self) -> list[int]:
        """Return the batches in Spark's commit log."""
        return sorted(int(file.name) for file in (self._folder / "checkpoint" / "commits").glob("[0-9]*"))

    def assert_each_once(self) -> None:
        assert self.emitted() == dict.fromkeys(range(FILES * ROWS), 1)
        assert self.committed() == [FILES - 1]
        assert self.staged() == 0


def _of_session(leader: int) -> list[int]:
    found: list[int] = []
    for pid in living():
        try:
            if os.getsid(pid) == leader:
                found.append(pid)
        except ProcessLookupError:
            continue
    return found
