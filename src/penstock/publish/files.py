"""`file:///folder` appends events as lines of JSON to files in a folder, each file by one writer only.

A batch is on disk before its outcomes are given. A writer that is killed can leave one line without its end,
the last of its file: it was never acknowledged, and the event comes again in another file.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from penstock.config.options import flag, known_options, whole_number
from penstock.config.permissions import create_file, make_folder
from penstock.model.errors import UsageError
from penstock.model.outcome import PUBLISHED, Outcome
from penstock.publish.api import Message, Unpicklable
from penstock.publish.errors import error_text, nothing_sent
from penstock.publish.json_message import as_json_line

DEFAULT_ROTATE_BYTES = 128 * 1024 * 1024


class FilePublisher(Unpicklable):
    """A batch is written whole or not at all, and so in order."""

    in_order = True

    def __init__(self, folder: Path, *, fsync: bool = True, rotate_bytes: int = DEFAULT_ROTATE_BYTES) -> None:
        self._folder = folder
        self._fsync = fsync
        self._rotate_bytes = rotate_bytes
        self._segment: _Segment | None = None

    def publish(self, messages: Sequence[Message]) -> dict[int, Outcome]:
        if not messages:
            return {}
        batch = "".join(map(as_json_line, messages)).encode()
        try:
            self._append(batch)
        except OSError as error:
            return nothing_sent(messages, error_text(error))
        return dict.fromkeys([message.event.seq for message in messages], PUBLISHED)

    def close(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.close()

    def _append(self, batch: bytes) -> None:
        segment = self._current()
        try:
            segment.append(batch)
        except OSError:
            # After a failed write or fsync nobody knows what the disk holds: this file ends before the batch,
            # and the next batch starts a new one.
            self._segment = None
            segment.abandon()
            raise

    def _current(self) -> "_Segment":
        """The file to append to; a new one when this one is full, or was opened before this process was forked."""
        segment = self._segment
        if segment is None or segment.pid != os.getpid() or segment.size >= self._rotate_bytes:
            self.close()
            segment = self._segment = _Segment.create(self._folder, fsync=self._fsync)
        return segment


class _Segment:
    """One file, and how much of it holds acknowledged batches."""

    def __init__(self, path: Path, descriptor: int, *, fsync: bool) -> None:
        self.pid = os.getpid()
        self.size = 0
        self._path = path
        self._descriptor = descriptor
        self._fsync = fsync

    @classmethod
    def create(cls, folder: Path, *, fsync: bool) -> "_Segment":
        """A file of this writer alone: its name sorts by time, tells the process, and is unique by chance."""
        make_folder(folder)
        path = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}-{os.getpid()}-{uuid4().hex[:12]}.jsonl"
        descriptor = create_file(path, os.O_APPEND)
        segment = cls(path, descriptor, fsync=fsync)
        try:
            segment._keep_name()
        except OSError:
            segment.abandon()
            raise
        return segment

    def append(self, batch: bytes) -> None:
        rest = memoryview(batch)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        if self._fsync:
            os.fsync(self._descriptor)
        self.size += len(batch)

    def abandon(self) -> None:
        """Take back what was not acknowledged, as far as the disk lets us; what stays is delivered twice, not lost."""
        with suppress(OSError):
            if self.size == 0:
                self._path.unlink()
            else:
                os.ftruncate(self._descriptor, self.size)
        with suppress(OSError):
            self.close()

    def close(self) -> None:
        os.close(self._descriptor)

    def _keep_name(self) -> None:
        """A file is only safe once its folder is written too."""
        if not self._fsync:
            return
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def from_url(url: str) -> FilePublisher:
    options = known_options(url, ("fsync", "rotate_bytes"))
    parts = urlsplit(url)
    folder = Path(unquote(parts.path))
    if parts.netloc or not folder.is_absolute():
        raise UsageError(f"{url!r} names no folder of this machine; one is named like file:///var/events")
    return FilePublisher(
        folder,
        fsync=flag(options, "fsync", True),
        rotate_bytes=whole_number(options, "rotate_bytes") or DEFAULT_ROTATE_BYTES,
    )
