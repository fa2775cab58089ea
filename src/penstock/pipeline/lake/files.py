"""Files of a lake, accessed through Spark's Hadoop file systems: any path that Spark can write is supported.

A batch is first written to a hidden folder; its files are then moved into the lake under unique names. A note, written
before the first file is moved, lists the files and events of the move. A note that was never removed identifies a move
to complete or to undo.
"""

import json
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from penstock.model.errors import PipelineError
from penstock.model.lease import Lease, LeaseId, Token
from penstock.pipeline.lake.layout import shaped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HIDDEN = "_penstock"
MAX_RECORDS_A_FILE = 1_000_000


@dataclass(frozen=True, slots=True)
class LakeNote:
    """Files that a relay is about to move into the lake, and their events, all claimed under one lease."""

    lease: Lease
    seqs: list[int]
    witness: str
    """ID of one of the events. A store without this event is not the store that the events came from."""
    files: list[str]

    @property
    def name(self) -> str:
        return f"{self.lease.lease_id}.{self.lease.token}.json"

    def to_json(self) -> str:
        lease = self.lease
        return json.dumps(
            {
                "lease": str(lease.lease_id),
                "token": str(lease.token),
                "queue": lease.queue,
                "lease_seconds": lease.lease_seconds,
                "witness": self.witness,
                "files": self.files,
                "seqs": self.seqs,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "LakeNote":
        read = json.loads(text)
        lease = Lease(LeaseId(UUID(read["lease"])), Token(UUID(read["token"])), read["queue"], read["lease_seconds"])
        return cls(lease, read["seqs"], read["witness"], read["files"])


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A written file, with its path in the hidden folder, its path in the lake, and the token of its lease."""

    source: str
    target: str
    token: str


class LakeFolder:
    """The folder of a lake, accessed from the driver. All path arguments and results are relative to the folder."""

    def __init__(self, spark: "SparkSession", path: str) -> None:
        context: Any = spark.sparkContext
        self._jvm = context._jvm
        self._root = self._jvm.org.apache.hadoop.fs.Path(path)
        self._fs = self._root.getFileSystem(context._jsc.hadoopConfiguration())

    def stage(self, events: "DataFrame") -> tuple[str, list[StagedFile]]:
        """Write claimed events to a hidden folder, on the executors; return the folder and its files."""
        folder = f"{HIDDEN}/staging/{int(time.time())}-{uuid4().hex}"
        # The session belongs to this query: no other files are affected. Parquet has deprecated Spark's default type.
        events.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        folders = ("lease", "token", "day", "event_type")
        writer = shaped(events).sortWithinPartitions(*folders, "seq").write.partitionBy(*folders)
        writer = writer.option("maxRecordsPerFile", MAX_RECORDS_A_FILE).option("compression", "zstd")
        writer.parquet(self._path(folder).toString())
        return folder, list(self._staged(folder))

    def _staged(self, folder: str) -> Iterator[StagedFile]:
        numbers: dict[str, int] = {}
        for file in sorted(self._below(folder)):
            parts = file.removeprefix(f"{folder}/").split("/")
            if len(parts) == 5 and parts[-1].endswith(".parquet"):
                lease, token = (part.partition("=")[2] for part in parts[:2])
                number = numbers[lease] = numbers.get(lease, -1) + 1
                yield StagedFile(file, f"{parts[2]}/{parts[3]}/{lease}.{token}-{number}.parquet", token)

    def forget_staged(self, older_than_seconds: float) -> None:
        """Delete staged files of relays that died before they moved them.

        The time is taken from the folder's name, since S3 has no modification time for folders.
        """
        found = (re.match(rf"({HIDDEN}/staging/(\d+)-\w+)/", path) for path in self._below(f"{HIDDEN}/staging"))
        begun = {name[1]: int(name[2]) for name in found if name is not None}
        self.delete(name for name, at in begun.items() if at < time.time() - older_than_seconds)

    def move(self, file: StagedFile) -> None:
        target = self._path(file.target)
        self._fs.mkdirs(target.getParent())
        if not self._fs.rename(self._path(file.source), target):
            raise PipelineError(f"cannot move {file.target} into the lake")

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._fs.delete(self._path(path), True)

    def holds(self, paths: Iterable[str]) -> bool:
        return all(self._fs.exists(self._path(path)) for path in paths)

    # -- notes ------------------------------------------------------------------------------------------------

    def put(self, note: LakeNote) -> None:
        """Write a note atomically, by renaming."""
        fresh, final = f"{HIDDEN}/notes/.{note.name}", f"{HIDDEN}/notes/{note.name}"
        with closing(self._fs.create(self._path(fresh), True)) as stream:
            stream.write(bytearray(note.to_json().encode()))
        if not self._fs.rename(self._path(fresh), self._path(final)):
            raise PipelineError(f"cannot write {final}")

    def take_away(self, note: LakeNote) -> None:
        self.delete([f"{HIDDEN}/notes/{note.name}"])

    def notes(self, lease_id: object = "") -> list[LakeNote]:
        """Return all notes, or the notes of one lease."""
        names = (path.rpartition("/")[2] for path in self._below(f"{HIDDEN}/notes"))
        wanted = [name for name in names if name.startswith(str(lease_id)) and not name.startswith(".")]
        return [note for name in sorted(wanted) if (note := self._note(name)) is not None]

    def _note(self, name: str) -> LakeNote | None:
        path = self._path(f"{HIDDEN}/notes/{name}")
        if not self._fs.exists(path):
            return None  # its relay has removed the note in the meantime
        with closing(self._fs.open(path)) as stream:
            return LakeNote.from_json(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))

    # -- paths ------------------------------------------------------------------------------------------------

    def _path(self, relative: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, relative)

    def _below(self, folder: str) -> Iterator[str]:
        """Yield the paths of all files below a folder, at any depth."""
        path = self._path(folder)
        if not self._fs.exists(path):
            return
        root = self._fs.makeQualified(self._root).toString()
        found = self._fs.listFiles(path, True)
        while found.hasNext():
            yield found.next().getPath().toString().removeprefix(root).lstrip("/")
