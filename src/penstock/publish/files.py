"""`file:///folder` appends events as lines of JSON to files in a folder. Each file has a single writer.

A batch is written, and by default synced to disk, before its outcomes are returned. A killed writer can leave an
incomplete last line in its file. That event was never acknowledged, and is delivered again to another file.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from penstock.config.options import flag, known_options, whole_number
from penstock.config.permissions import create_file, make_folder, sync_folder
from penstock.model.errors import UsageError
from penstock.model.outcome import PUBLISHED, Outcome
from penstock.publish.api import Message, Unpicklable
from penstock.publish.errors import error_text, nothing_sent
from penstock.publish.json_message import as_json_line

DEFAULT_ROTATE_BYTES = 128 * 1024 * 1024


class FilePublisher(Unpicklable):
    """Publisher of JSON files. A batch is written completely or not at all, which keeps its order."""

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
            # After a failed write or fsync the content on disk is unknown: end this file before the batch, and start a
            # new file for the next batch.
            self._segment = None
            segment.abandon()
            raise

    def _current(self) -> "_Segment":
        """Return the file to append to. Open a new file if the current one is full or was opened before a fork."""
        segment = self._segment
        if segment is None or segment.pid != os.getpid() or segment.size >= self._rotate_bytes:
            self.close()
            segment = self._segment = _Segment(self._folder, fsync=self._fsync)
        return segment


class _Segment:
    """A file, and the size of its acknowledged batches."""

    def __init__(self, folder: Path, *, fsync: bool) -> None:
        """Create a file for this writer. Its name sorts by time, contains the process id, and has a random part."""
        make_folder(folder)
        self.pid = os.getpid()
        self.size = 0
        self._fsync = fsync
        self._path = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}-{self.pid}-{uuid4().hex[:12]}.jsonl"
        self._descriptor = create_file(self._path, os.O_APPEND)
        try:
            if fsync:
                sync_folder(folder)
        except OSError:
            self.abandon()
            raise

    def append(self, batch: bytes) -> None:
        rest = memoryview(batch)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        if self._fsync:
            os.fsync(self._descriptor)
        self.size += len(batch)

    def abandon(self) -> None:
        """Truncate the file to the acknowledged batches and close it.

        If truncation fails, the remaining lines will be delivered twice, not lost.
        """
        with suppress(OSError):
            if self.size == 0:
                self._path.unlink()
            else:
                os.ftruncate(self._descriptor, self.size)
        with suppress(OSError):
            self.close()

    def close(self) -> None:
        os.close(self._descriptor)


def from_url(url: str) -> FilePublisher:
    options = known_options(url, ("fsync", "rotate_bytes"))
    parts = urlsplit(url)
    folder = Path(unquote(parts.path))
    if parts.netloc or not folder.is_absolute():
        raise UsageError(f"invalid URL {url!r}; expected an absolute local folder such as file:///var/events")
    return FilePublisher(
        folder,
        fsync=flag(options, "fsync", True),
        rotate_bytes=whole_number(options, "rotate_bytes") or DEFAULT_ROTATE_BYTES,
    )
